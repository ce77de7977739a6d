package hstu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/compute/ref"
	"grebe/model"
	"grebe/plan"
)

// fixtureCase is a request and what Meta's code computes for it.
type fixtureCase struct {
	Order       string             `json:"order"`
	Items       []int32            `json:"items"`
	Actions     []int32            `json:"actions"`
	Times       []int64            `json:"times"`
	Candidates  []int32            `json:"candidates"`
	Query       int64              `json:"query"`
	Features    map[string][]int32 `json:"features"`
	Content     map[string][]int32 `json:"content"` // of the history, then of the candidates
	Hidden      [][]float32        `json:"hidden"`
	Last        []float32          `json:"last"`
	Predictions [][]float32        `json:"predictions"`
	Retrieval   []float32          `json:"retrieval"`
}

var fixtures = []string{"meta", "window", "context", "prefix", "absolute", "tables"}

func fixtureDir(name string) string {
	return filepath.Join("..", "..", "testdata", "fixtures", "hstu", name)
}

func readCases(t testing.TB, name string) []fixtureCase {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(fixtureDir(name), "cases.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cases []fixtureCase
	if err := json.Unmarshal(raw, &cases); err != nil {
		t.Fatal(err)
	}
	return cases
}

func devices(t testing.TB) map[string]compute.Device {
	dev, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	return map[string]compute.Device{"ref": ref.New(), "cpu": dev}
}

func open(t testing.TB, dir string, dev compute.Device, dtype string) *Model {
	t.Helper()
	m, err := Open(dir, dev, model.Options{DType: dtype})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// layout is the plan of a case, and the segments that are scored.
func (c *fixtureCase) layout(t testing.TB, m *Model) (p *plan.Plan, user int, answers []int) {
	t.Helper()
	history, err := m.Context(c.Features, len(c.Items)+len(c.Candidates))
	if err != nil {
		t.Fatal(err)
	}
	for i, item := range c.Items {
		history = append(history, m.Event(item, c.Actions[i]))
	}
	content, candidates := c.content(m, history)
	if m.Featured() {
		history = m.Identify(nil, content).Tokens()
	}
	p = &plan.Plan{}
	add := func(start int, sees []int32, tokens ...int32) int {
		p.Segments = append(p.Segments, plan.Segment{Tokens: tokens, Start: start, Sees: sees})
		return len(p.Segments) - 1
	}
	if c.Order == "user" {
		user = add(0, nil, history...)
		for _, item := range c.Candidates {
			answers = append(answers, add(len(history), []int32{0}, m.Candidate(item)))
		}
	} else {
		var all []int32
		for _, item := range c.Candidates {
			all = append(all, int32(add(0, nil, m.Candidate(item))))
		}
		user = add(1, all, history...)
		for i, item := range c.Candidates {
			answers = append(answers, add(1+len(history), []int32{int32(i), int32(user)}, m.Candidate(item)))
		}
	}
	if err := errors.Join(m.Annotate(p, user, &Moment{Events: c.Times, Query: c.Query}),
		m.Describe(p, user, content, candidates)); err != nil {
		t.Fatal(err)
	}
	return p, user, answers
}

// content returns what rows of the history and candidates are made of, where the model has content features.
func (c *fixtureCase) content(m *Model, history []int32) (rows, candidates []int32) {
	if !m.Featured() {
		return nil, nil
	}
	at, events := 0, len(c.Items)
	row := func(f *ContentFeature) int32 { return c.Content[f.Name][at] }
	contexts := len(history) - events
	rows = m.AppendContext(nil, history[:contexts])
	for at = range events {
		rows = m.AppendEvent(rows, history[contexts+at], row)
	}
	for i, item := range c.Candidates {
		at = events + i
		candidates = m.AppendCandidate(candidates, m.Candidate(item), row)
	}
	return rows, candidates
}

// features returns the rows of the candidates' features.
func (c *fixtureCase) features(m *Model) (out []int32) {
	for i := range c.Candidates {
		for f := range m.cfg.Content {
			out = append(out, c.Content[m.cfg.Content[f].Name][len(c.Items)+i])
		}
	}
	return out
}

// hidden runs a plan with nothing cached and returns the states of the given segments' last rows.
func hidden(t testing.TB, m *Model, dev compute.Device, p *plan.Plan, segments []int) [][]float32 {
	t.Helper()
	b := &compute.Batch{}
	var want []int32
	shape := m.Shape()
	last := make([]int32, len(p.Segments))
	for i := range p.Segments {
		s := &p.Segments[i]
		block, err := dev.Memory().Alloc(shape.ChunkBytes(max(1, len(s.Tokens)), true))
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Memory().Free(block)
		b.Segments = append(b.Segments, compute.Segment{
			First: len(b.Tokens), Len: len(s.Tokens), Sees: s.Sees, Start: s.Start, Scale: s.Scale,
			Chunks: []compute.Chunk{block.Chunk(len(s.Tokens), true)}})
		for j, token := range s.Tokens {
			b.Tokens, b.Positions = append(b.Tokens, token), append(b.Positions, int32(s.Start+j))
		}
		b.Extra, b.Content = append(b.Extra, s.Extra...), append(b.Content, s.Content...)
		last[i] = int32(len(b.Tokens) - 1)
	}
	for _, s := range segments {
		want = append(want, last[s])
	}
	r, err := dev.Open(shape, len(b.Tokens))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := m.Forward(r, b, nil); err != nil {
		t.Fatal(err)
	}
	flat := make([]float32, len(want)*shape.Hidden)
	if err := m.Hidden(r, want, flat); err != nil {
		t.Fatal(err)
	}
	var out [][]float32
	for i := range want {
		out = append(out, flat[i*shape.Hidden:(i+1)*shape.Hidden])
	}
	return out
}

// near holds values against the fixture: within 1e-4, of the value where that is above 1.
func near(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	for i := range want {
		if diff := math.Abs(float64(got[i]) - float64(want[i])); !(diff <= 1e-4*max(1, math.Abs(float64(want[i])))) {
			t.Fatalf("%s: value %d is %v, want %v", what, i, got[i], want[i])
		}
	}
}

// What Meta's code computes comes out, on the reference and on the CPU, in float32.
func TestFixtures(t *testing.T) {
	for device, dev := range devices(t) {
		for _, name := range fixtures {
			t.Run(device+"/"+name, func(t *testing.T) {
				m := open(t, fixtureDir(name), dev, "f32")
				for i, c := range readCases(t, name) {
					at := fmt.Sprintf("case %d (%s, %d events)", i, c.Order, len(c.Items))
					p, user, answers := c.layout(t, m)
					states := hidden(t, m, dev, p, append(answers, user))
					for j := range answers {
						near(t, fmt.Sprintf("%s: state of candidate %d", at, j), states[j], c.Hidden[j])
					}
					if c.Last != nil {
						near(t, at+": state of the last event", states[len(answers)], c.Last)
					}
					scored, err := m.Score(states[:len(answers)], c.Candidates, c.features(m), c.Query)
					if err != nil {
						t.Fatal(err)
					}
					for j := range scored {
						near(t, fmt.Sprintf("%s: predictions of candidate %d", at, j), scored[j].Tasks, c.Predictions[j])
					}
					if c.Retrieval != nil {
						checkRetrieval(t, m, states[len(answers)], c.Retrieval)
					}
				}
			})
		}
	}
}

// checkRetrieval compares all items' scores, and their order.
func checkRetrieval(t *testing.T, m *Model, state, want []float32) {
	t.Helper()
	found, _, err := m.Retrieve(t.Context(), state, len(want)+5, 0, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]float32, len(want))
	for i, f := range found {
		got[f.Item] = f.Score
		if i > 0 && worse(found[i-1], f) {
			t.Fatalf("item %d with %v comes before %d with %v", found[i-1].Item, found[i-1].Score, f.Item, f.Score)
		}
	}
	near(t, "retrieval", got, want)
	few, _, err := m.Retrieve(t.Context(), state, 3, 0, nil, func(item int32) bool { return item != found[1].Item })
	if err != nil {
		t.Fatal(err)
	}
	for i, j := range []int{0, 2, 3} {
		if few[i] != found[j] {
			t.Fatalf("without the second, the best are %v of %v", few, found[:4])
		}
	}
	b := m.index.blocks[0]
	b.bias = make([]float32, b.out)
	b.bias[found[0].Item] = float32(math.NaN())
	rest, broken, err := m.Retrieve(t.Context(), state, 1, 0, nil, nil)
	if err != nil || broken != 1 || rest[0] != found[1] {
		t.Errorf("with a NaN for the best item: %v, %d broken, %v; want %v", rest, broken, err, found[1])
	}
	b.bias = nil
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := m.Retrieve(gone, state, 1, 0, nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("when nobody waits any more: %v", err)
	}
}

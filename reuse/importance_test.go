package reuse

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"grebe/blend"
	"grebe/compute"
	"grebe/engine"
	"grebe/kv"
	"grebe/kv/proto/rows"
	"grebe/plan"
)

// lists are users with items, of random tokens.
func lists(seed uint64, n int) *Samples {
	r := rand.New(rand.NewPCG(seed, 3))
	tokens := func(n int) []int32 {
		out := make([]int32, n)
		for i := range out {
			out[i] = int32(r.IntN(vocabulary))
		}
		return out
	}
	users, items := make([][]int32, n), make([][][]int32, n)
	for i := range n {
		users[i] = tokens(10 + r.IntN(20))
		for range 6 {
			items[i] = append(items[i], tokens(3+r.IntN(12)))
		}
	}
	return &Samples{
		Prompts: n, Vocab: vocabulary, Layers: 1, Order: plan.Causal,
		Prompt: func(i int) ([]int32, [][]int32, error) { return users[i], items[i], nil },
	}
}

// Importance is the attention received after the first layers, times the error of a block's keys and values there, as
// separate jobs compute them. It is the same in memory that the host cannot read.
func TestLearnImportance(t *testing.T) {
	for name, far := range map[string]bool{"near": false, "far": true} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, 1, []int32{1, 2, 3}, "", far)
			from := lists(1, 3)
			told := 0
			from.Progress = func(done, all int) { told += done * all }
			got, err := m.LearnImportance(t.Context(), m.engine.Do, from)
			if err != nil {
				t.Fatal(err)
			}
			tally := blend.NewTally(vocabulary, nil)
			for i := range from.Prompts {
				user, items, _ := from.Prompt(i)
				tokens, matters := m.byDefinition(t, user, items)
				tally.Add(tokens, matters)
			}
			for token, want := range tally.Importance().Tokens() {
				if v := got.Of(int32(token)); math.Abs(float64(v-want)) > 1e-3*float64(want) {
					t.Errorf("token %d: %v, want %v", token, v, want)
				}
			}
			if told != 3*(1+2+3) {
				t.Errorf("progress says %d", told)
			}
		})
	}
}

// byDefinition computes the importance of items' tokens, layer by layer and token by token. The machine has three
// layers; the first computes all tokens.
func (m *machine) byDefinition(t *testing.T, user []int32, items [][]int32) (tokens []int32, matters []float64) {
	t.Helper()
	do := func(j *engine.Job) *engine.Result {
		r, err := m.engine.Do(context.Background(), j)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	shape := m.opt.Shape
	l, err := m.prompt.Rank(plan.Causal, user, items)
	if err != nil {
		t.Fatal(err)
	}
	tokens = l.Plan.Segments[l.Items].Tokens
	keep := make([]engine.Segment, len(l.Plan.Segments))
	keep[l.Items].Keep = true
	received := map[int][]float32{}
	watch := &engine.Rule{Watch: func(layer int, r []float32) { received[layer] = slices.Clone(r) }}
	whole := do(&engine.Job{Plan: l.Plan, Segments: keep}).Kept[l.Items]
	do(&engine.Job{Plan: l.Plan, Blend: &engine.Blend{Rule: watch}})
	defer whole.Release()
	own, err := rows.Read(m.opt.Pool.Memory(), &shape, whole)
	if err != nil {
		t.Fatal(err)
	}
	n, first := l.Plan.Tokens(), len(m.preamble.tokens)+len(user)
	for i, it := range items {
		alone := m.prompt.ItemsAlone([][]int32{it})
		r := do(&engine.Job{Plan: alone.Plan, Segments: keepItems(alone.Plan)})
		block, err := rows.Read(m.opt.Pool.Memory(), &shape, r.Kept[alone.Items])
		r.Kept[alone.Items].Release()
		if err != nil {
			t.Fatal(err)
		}
		for k := range it {
			at, sum := l.ItemAt[i]+k, 0.0
			for layer := 1; layer < shape.Layers; layer++ {
				a, b := vectors(&shape, own, layer, at, first+at), vectors(&shape, block, layer, k, len(m.preamble.tokens)+k)
				off := 0.0
				for d := range a {
					off += float64(a[d]-b[d]) * float64(a[d]-b[d])
				}
				sum += float64(received[layer][first+at]) / float64(n-first-at) * off
			}
			matters = append(matters, sum)
		}
	}
	return tokens, matters
}

func keepItems(p *plan.Plan) []engine.Segment {
	out := make([]engine.Segment, len(p.Segments))
	for i := range out {
		out[i].Keep = p.Segments[i].Kind == plan.Item
	}
	return out
}

// vectors returns the keys, rotated back to position 0, and the values of a token.
func vectors(s *compute.Shape, chunks []rows.Chunk, layer, token, position int) []float32 {
	c, place := rows.Find(chunks, token)
	n := rows.Width(s)
	out := make([]float32, 2*n)
	c.Keys(out[:n], s, layer, place, position)
	c.Values(out[n:], s, layer, place)
	return out
}

// If there is no room for a prompt, or the caller gives up, nothing is learned and nothing stays pinned.
func TestLearnImportanceFails(t *testing.T) {
	m := newMachine(t, 1, []int32{1, 2, 3}, "", false)
	ctx, cancel := context.WithCancel(t.Context())
	from := lists(2, 4)
	from.Progress = func(int, int) { cancel() }
	if _, err := m.LearnImportance(ctx, m.engine.Do, from); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v after it was canceled", err)
	}
	nothing := lists(2, 1)
	nothing.Prompt = func(int) ([]int32, [][]int32, error) { return []int32{5}, nil, nil }
	if _, err := m.LearnImportance(t.Context(), m.engine.Do, nothing); err == nil ||
		!strings.Contains(err.Error(), "no prompt says") {
		t.Errorf("error %v where there are no items", err)
	}
	none := func(ctx context.Context, j *engine.Job) (*engine.Result, error) {
		r, err := m.engine.Do(ctx, j)
		if err == nil && j.Blend != nil {
			for i, e := range r.Kept {
				if e != nil {
					e.Release()
					r.Kept[i] = nil
				}
			}
		}
		return r, err
	}
	if _, err := m.LearnImportance(t.Context(), none, lists(2, 1)); !errors.Is(err, kv.ErrFull) {
		t.Errorf("error %v where nothing is kept", err)
	}
	if used := m.opt.Pool.Stats().Used; used != 0 {
		t.Errorf("%d bytes are in use", used)
	}
}

// A file returns what was written. A file of another model or a damaged one is refused.
func TestImportanceFile(t *testing.T) {
	m := newMachine(t, 1, []int32{1, 2, 3}, "", false)
	file := ImportanceFile(t.TempDir(), "a/b")
	if _, err := m.ReadImportance(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: error %v", err)
	}
	values := []float32{0, 1, 2.5, math.MaxFloat32}
	for range 2 { // the second replaces the first
		if err := m.WriteImportance(file, blend.NewImportance(values)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := m.ReadImportance(file)
	if err != nil || !slices.Equal(got.Tokens(), values) {
		t.Fatalf("read %v, %v", got, err)
	}
	if names, _ := filepath.Glob(filepath.Join(filepath.Dir(file), "*")); len(names) != 1 {
		t.Errorf("files %v are left", names)
	}
	other := newMachine(t, 2, []int32{1, 2, 3}, "", false)
	if _, err := other.ReadImportance(file); !errors.Is(err, ErrOtherModel) {
		t.Errorf("another model: error %v", err)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	refused := func(what string, raw []byte) {
		t.Helper()
		if err := os.WriteFile(file, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := m.ReadImportance(file); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: error %v", what, err)
		}
	}
	for i := range raw {
		broken := slices.Clone(raw)
		broken[i] ^= 0x10
		refused("a byte that is another", broken)
		refused("a file that is cut off", raw[:i])
	}
	wrong := slices.Clone(raw[:len(raw)-4])
	binary.LittleEndian.PutUint32(wrong[len(wrong)-4:], math.Float32bits(float32(math.NaN())))
	refused("a value that is no number", binary.LittleEndian.AppendUint32(wrong, crc32.Checksum(wrong, castagnoli)))
}

package generate

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/engine"
	"grebe/kv"
	"grebe/model"
	_ "grebe/model/llama"
	"grebe/model/modeltest"
	_ "grebe/model/qwen"
	"grebe/plan"
	"grebe/pool"
	"grebe/prompt"
	"grebe/residency"
	"grebe/reuse"
	"grebe/schedule"
)

// site is a small model with a catalog of semantic IDs.
type site struct {
	*Generator
	engine *engine.Engine
	items  []*prompt.Item
	sizes  []int32
	user   []int32
}

// idle is a load without work.
type idle struct{}

func (idle) Backlog() (float64, int)      { return 0, 0 }
func (idle) Model() schedule.PrefillModel { return schedule.PrefillModel{Row: 1} }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func newSite(t *testing.T, r *rand.Rand, architecture string, depth, count int, cached bool) *site {
	t.Helper()
	spec := modeltest.Spec{Architecture: architecture, Hidden: 64, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 16, Inter: 96,
		Vocab: 400, Seed: r.Uint64()}
	return newSiteOn(t, must(cpu.New(cpu.Options{Threads: 2})), r, spec, depth, count, cached)
}

// newSiteOn makes a site on a device, and closes it at the end.
func newSiteOn(t *testing.T, dev compute.Device, r *rand.Rand, spec modeltest.Spec, depth, count int,
	cached bool) *site {
	t.Helper()
	dir := t.TempDir()
	if err := modeltest.Write(dir, spec); err != nil {
		t.Fatal(err)
	}
	m := must(model.Open(dir, dev, model.Options{DType: spec.DType.String()}))
	pages := must(pool.Over(dev.Memory(), 32<<20, 4096))
	store := kv.New(m.Shape(), pages)
	e := must(engine.New(m, dev, engine.Options{MaxTokens: 4096, Cache: store}))
	t.Cleanup(func() {
		e.Close()
		store.Close()
		if err := pages.Close(); err != nil {
			t.Error(err)
		}
		m.Close()
		dev.Close()
	})
	s := &site{engine: e}
	codes := prompt.Codes{}
	for l := range depth {
		codes.FirstToken = append(codes.FirstToken, int32(100+40*l))
		codes.Size = append(codes.Size, int32(2+r.IntN(30)))
	}
	s.sizes = codes.Size
	b := must(prompt.New(prompt.Config{
		Preamble:            prompt.Text{Tokens: []int32{1, 2}[:r.IntN(3)]},
		GenerateInstruction: prompt.Text{Tokens: []int32{8, 9}[:r.IntN(3)]}, Codes: codes,
	}, nil, m.Vocab()))
	for i := range count {
		it := &prompt.Item{ID: fmt.Sprint("i", i), Attributes: map[string][]string{"kind": {fmt.Sprint(i % 5)}}}
		for _, size := range codes.Size {
			it.Codes = append(it.Codes, r.Int32N(size))
		}
		s.items = append(s.items, it)
	}
	for range 3 + r.IntN(80) {
		s.user = append(s.user, r.Int32N(100))
	}
	s.Generator = &Generator{Prompt: b, Do: e.Do, Shape: m.Shape()}
	if cached {
		if err := store.SetHotness(residency.HotnessConfig{Users: 100, Items: 100}); err != nil {
			t.Fatal(err)
		}
		s.Cache = reuse.New(b, reuse.Options{Store: store, Pool: pages, Load: idle{}, Shape: m.Shape()})
	}
	s.Use(must(NewSnapshot("1", s.items, b, m, nil)))
	return s
}

// paths scores every path of the catalog in the obvious way: each prefix as a prompt of its own, with probabilities
// over the continuations that some item has.
func (s *site) paths(t *testing.T) map[string]float64 {
	scores := map[string]float64{"": 0}
	for l := range s.sizes {
		next := map[string]float64{}
		for prefix, score := range scores {
			valid := map[int32]bool{}
			var codes []int32
			for _, it := range s.items {
				if key(it.Codes[:l]) == prefix {
					valid[it.Codes[l]] = true
					codes = it.Codes[:l]
				}
			}
			logits := s.logits(t, l, codes)
			sum := 0.0
			for c := range valid {
				sum += math.Exp(float64(logits[c]))
			}
			for c := range valid {
				next[key(append(slices.Clone(codes), c))] = score + float64(logits[c]) - math.Log(sum)
			}
		}
		scores = next
	}
	return scores
}

func key(codes []int32) string {
	out := ""
	for _, c := range codes {
		out += fmt.Sprint(c, ",")
	}
	return out
}

// logits returns those of all codes of a level after a path.
func (s *site) logits(t *testing.T, level int, codes []int32) []float32 {
	l := s.Prompt.Generate(s.user)
	p := &plan.Plan{Segments: slices.Clone(l.Plan.Segments)}
	answer := l.Answers
	if len(codes) > 0 {
		var path, sees []int32
		for i, c := range codes {
			path = append(path, int32(100+40*i)+c)
		}
		for i := range p.Segments {
			sees = append(sees, int32(i))
		}
		answer = len(p.Segments)
		p.Segments = append(p.Segments, plan.Segment{Kind: plan.Beam, Tokens: path, Start: l.End, Sees: sees})
	}
	var ids []int32
	for c := range s.sizes[level] {
		ids = append(ids, int32(100+40*level)+c)
	}
	r, err := s.engine.Do(t.Context(), &engine.Job{Plan: p, Want: []engine.Want{{Segment: answer, IDs: ids}}})
	if err != nil {
		t.Fatal(err)
	}
	return r.Logits[0]
}

// brute is a plain constrained beam search over the scored paths.
func (s *site) brute(all map[string]float64, eligible func(*prompt.Item) bool, n int) (ids []string, scores []float64) {
	type hit struct {
		i     int
		score float64
	}
	var hits []hit
	for i, it := range s.items {
		if eligible(it) {
			hits = append(hits, hit{i, all[key(it.Codes)]})
		}
	}
	slices.SortStableFunc(hits, func(a, b hit) int {
		return cmp.Or(cmp.Compare(b.score, a.score), slices.Compare(s.items[a.i].Codes, s.items[b.i].Codes))
	})
	for _, h := range hits[:min(n, len(hits))] {
		ids, scores = append(ids, s.items[h.i].ID), append(scores, h.score)
	}
	return ids, scores
}

// With beams for every path the result equals scoring all items: for several depths, collisions, filters, exclusions
// and N beyond the number of items, with and without a cache.
func TestRecommendEqualsBruteForce(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	for trial := range 12 {
		arch := []string{modeltest.Qwen2, modeltest.Qwen3, modeltest.Llama}[trial%3]
		depth := 1 + trial%5
		t.Run(fmt.Sprintf("%s depth %d", arch, depth), func(t *testing.T) {
			s := newSite(t, r, arch, depth, 20+r.IntN(60), trial%2 == 0)
			all := s.paths(t)
			for _, c := range []struct {
				name     string
				change   func(*Request)
				eligible func(*prompt.Item) bool
			}{
				{"all", func(*Request) {}, func(*prompt.Item) bool { return true }},
				{"again", func(*Request) {}, func(*prompt.Item) bool { return true }}, // from the cache
				{"excluded", func(q *Request) { q.Exclude = []string{"i1", "i2", "i7", "nobody"} },
					func(it *prompt.Item) bool { return it.ID != "i1" && it.ID != "i2" && it.ID != "i7" }},
				{"filtered", func(q *Request) { q.Filter = anyOf(map[string][]string{"kind": {"1", "3"}}) },
					func(it *prompt.Item) bool { k := it.Attributes["kind"][0]; return k == "1" || k == "3" }},
				{"nothing", func(q *Request) { q.Filter = anyOf(map[string][]string{"kind": {"none"}}) },
					func(*prompt.Item) bool { return false }},
				{"more than there are", func(q *Request) { q.N = 500 }, func(*prompt.Item) bool { return true }},
			} {
				req := &Request{UserID: "u", User: s.user, N: 10, Width: 128}
				c.change(req)
				got, err := s.Recommend(context.Background(), req)
				if err != nil {
					t.Fatalf("%s: %v", c.name, err)
				}
				ids, scores := s.brute(all, c.eligible, req.N)
				if len(got.Items) != len(ids) || got.Short != (len(ids) < req.N) {
					t.Fatalf("%s: %d items, short %v; want %d of %d", c.name, len(got.Items), got.Short, len(ids), req.N)
				}
				for i, it := range got.Items {
					if math.Abs(it.Score-scores[i]) > 1e-4 {
						t.Fatalf("%s: place %d: %s with %.6f, want %s with %.6f", c.name, i, it.ID, it.Score, ids[i], scores[i])
					}
					if it.ID != ids[i] && math.Abs(all[key(it.Codes)]-scores[i]) > 1e-5 {
						t.Fatalf("%s: place %d: %s, want %s", c.name, i, it.ID, ids[i])
					}
				}
			}
		})
	}
}

// A user who was ranked or recommended to before computes only new tokens.
func TestReturningUser(t *testing.T) {
	s := newSite(t, rand.New(rand.NewPCG(8, 8)), modeltest.Qwen3, 3, 50, true)
	ask := func(user []int32) *Result {
		t.Helper()
		return must(s.Recommend(t.Context(), &Request{UserID: "u", User: user, N: 5, Width: 16}))
	}
	first := ask(s.user)
	again := ask(append(slices.Clone(s.user), 5, 6, 7))
	prompt := again.Computed - again.Rows
	if want := 3 +
		len(s.Prompt.Generate(nil).Plan.Segments[len(s.Prompt.Generate(nil).Plan.Segments)-1].Tokens); prompt > want+1 ||
		first.Cached != 0 {
		t.Errorf("three new tokens: %d of the prompt's computed, want about %d; first time %d cached", prompt, want,
			first.Cached)
	}
	if _, err := (&Generator{Prompt: s.Prompt, Do: s.Do}).Recommend(t.Context(),
		&Request{N: 1, Width: 1}); err != ErrNoCodes {
		t.Errorf("without a snapshot: %v", err)
	}
}

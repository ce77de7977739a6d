package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/engine"
	"grebe/generate"
	"grebe/internal/fixture"
	"grebe/kv"
	"grebe/model"
	"grebe/pool"
	"grebe/prompt"
	"grebe/residency"
	"grebe/reuse"
	"grebe/schedule"
)

// generation is a catalog and a user, with the result of a plain constrained beam search over transformers' logits:
// see testdata/fixtures/recommend.py.
type generation struct {
	Depth       int
	Preamble    []int32
	User        []int32
	Instruction []int32
	FirstToken  []int32 `json:"first_token"`
	Size        []int32
	Items       []struct {
		ID    string
		Codes []int32
		Kind  string
	}
	Requests []struct {
		N         int32
		BeamWidth int32 `json:"beam_width"`
		TopK      int32 `json:"top_k"`
		Exclude   []string
		Filter    map[string][]string
		Short     bool
		Results   []struct {
			ID    string
			Score float64
		}
	}
}

func generations(t *testing.T, name string) []generation {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "testdata", "fixtures", "recommend", name+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("no fixture of recommendations with %s: run testdata/fixtures/recommend.py where transformers is installed",
			name)
	}
	must(t, err)
	var file struct{ Cases []generation }
	must(t, json.Unmarshal(data, &file))
	return file.Cases
}

// The server returns what a plain beam search finds with the logits of transformers: the same items in the same
// order, scores within 1e-4. Every request is sent twice; the second time the prompt is cached.
func TestRecommendTransformers(t *testing.T) {
	for _, name := range []string{"qwen2-tiny", "qwen3-tiny", "llama-tiny"} {
		t.Run(name, func(t *testing.T) {
			set := fixture.Load(t, name)
			dev, err := cpu.New(cpu.Options{Threads: 2})
			must(t, err)
			defer dev.Close()
			m, err := model.Open(set.Dir, dev, model.Options{DType: "f32"})
			must(t, err)
			defer m.Close()
			for i, c := range generations(t, name) {
				t.Run(fmt.Sprintf("depth %d case %d", c.Depth, i),
					func(t *testing.T) { c.check(t, serveGeneration(t, &c, m, dev)) })
			}
		})
	}
}

// serveGeneration opens a server whose catalog is the case's.
func serveGeneration(t *testing.T, c *generation, m model.Model, dev compute.Device) *Service {
	t.Helper()
	pages, err := pool.New(4<<20, 4096)
	must(t, err)
	store := kv.New(m.Shape(), pages)
	e, err := engine.New(m, dev, engine.Options{MaxTokens: 8192, Cache: store})
	must(t, err)
	t.Cleanup(func() {
		e.Close()
		store.Close()
		must(t, pages.Close())
	})
	b, err := prompt.New(prompt.Config{
		Preamble: prompt.Text{Tokens: c.Preamble}, GenerateInstruction: prompt.Text{Tokens: c.Instruction},
		Codes: prompt.Codes{FirstToken: c.FirstToken, Size: c.Size},
	}, nil, m.Vocab())
	must(t, err)
	must(t, store.SetHotness(residency.HotnessConfig{Users: 10, Items: 10}))
	cache := reuse.New(b, reuse.Options{Store: store, Pool: pages, Load: steady{}, Shape: m.Shape()})
	var items []*prompt.Item
	for _, it := range c.Items {
		items = append(items, &prompt.Item{ID: it.ID, Codes: it.Codes, Identifier: -1,
			Attributes: map[string][]string{"kind": {it.Kind}}})
	}
	snap, err := generate.NewSnapshot("1", items, b, m, nil)
	must(t, err)
	g := &generate.Generator{Prompt: b, Do: e.Do, Cache: cache, Shape: m.Shape()}
	g.Use(snap)
	s, err := New(Config{SLO: time.Minute, Models: []Model{
		{Name: "m", Runner: e, Prompt: b, Cache: cache, Generate: g, Vocab: m.Vocab(), Positions: m.MaxPositions()}}})
	must(t, err)
	return s
}

// steady is a load without work.
type steady struct{}

func (steady) Backlog() (float64, int)      { return 0, 0 }
func (steady) Model() schedule.PrefillModel { return schedule.PrefillModel{Row: 1} }

func (c *generation) check(t *testing.T, s *Service) {
	for i, q := range c.Requests {
		req := &grebev1.RecommendRequest{User: &grebev1.User{Id: "u", Tokens: c.User}, N: q.N, BeamWidth: q.BeamWidth,
			TopK: q.TopK, Exclude: q.Exclude}
		for name, values := range q.Filter {
			req.Filter = map[string]*grebev1.Condition{name: {Values: values}}
		}
		for range 2 {
			got, err := s.Recommend(t.Context(), req)
			must(t, err)
			if len(got.Results) != len(q.Results) || got.Short != q.Short {
				t.Fatalf("request %d (%v): %d items, short %v; want %d, %v", i, req, len(got.Results), got.Short, len(q.Results),
					q.Short)
			}
			for k, want := range q.Results {
				if r := got.Results[k]; r.Id != want.ID || math.Abs(r.Score-want.Score) > 1e-4 {
					t.Fatalf("request %d (%v): place %d is %s with %.6f, want %s with %.6f", i, req, k, r.Id, r.Score, want.ID,
						want.Score)
				}
			}
		}
	}
}

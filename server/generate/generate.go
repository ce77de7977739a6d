// Package generate recommends: from a user's prompt to items of the catalog, by beam search over their
// semantic IDs (xGR).
//
// The prompt is computed once, or what is cached of it reused; then each level of the IDs is a round:
// one row per beam goes through the model, and package beam chooses the continuations that are real
// items. The prompt's KV is shared by all beams; what they add is kept apart, width × depth tokens, and
// moved in place between rounds. Rounds of different requests share batches, and one request's
// selection runs while another's round computes.
//
// A Generator is safe for concurrent use.
package generate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"grebe/beam"
	"grebe/compute"
	"grebe/engine"
	"grebe/kv"
	"grebe/plan"
	"grebe/prompt"
	"grebe/server/reuse"
)

var (
	// ErrNoCodes says that no item of the catalog has semantic IDs that the model has.
	ErrNoCodes = errors.New("the catalog has no item with codes of this model")
	// ErrEmpty says that there is nothing to generate from.
	ErrEmpty = errors.New("the prompt is empty: the user has no tokens, and the model no generate_instruction")
)

// Generator recommends with one model.
type Generator struct {
	Prompt *prompt.Builder
	Do     reuse.Do
	Cache  *reuse.Cache // nil: nothing is kept between requests
	Shape  compute.Shape

	snapshot atomic.Pointer[Snapshot]
	searches sync.Pool // of *beam.Search
}

// Snapshot returns the items that are generated now; nil before the first Use.
func (g *Generator) Snapshot() *Snapshot { return g.snapshot.Load() }

// Use has new requests generate the items of s. Those under way keep theirs.
func (g *Generator) Use(s *Snapshot) { g.snapshot.Store(s) }

// Request says for whom and what.
type Request struct {
	UserID  string
	User    []int32
	N       int
	Width   int
	TopK    int // 0: Width
	Exclude []string
	Filter  map[string][]string
}

// Item is a recommended item.
type Item struct {
	*prompt.Item
	Codes []int32
	Score float64 // log-probability of its path
}

// Result is what a request yields.
type Result struct {
	Items            []Item
	Short            bool // fewer than N exist
	Version          string
	Layout           prompt.Layout
	Computed, Cached int // tokens, over all rounds
	Prompt           int // of Computed, those of the first round, which is the prompt
	Disk             int // of Cached, those that came from disk
	Fetch            time.Duration
	Queue, Compute   time.Duration
	BatchTokens      int // of the prompt's batch
	Rows             int // beams computed, over all rounds
}

// Recommend generates items for a request.
func (g *Generator) Recommend(ctx context.Context, r *Request) (*Result, error) {
	snap := g.snapshot.Load()
	if snap == nil || snap.index == nil {
		return nil, ErrNoCodes
	}
	search, err := g.search(snap, r)
	if err != nil {
		return nil, err
	}
	defer g.searches.Put(search)
	run := &run{g: g, snap: snap, search: search, request: r}
	defer run.close()
	out := &Result{Version: snap.Version}
	if err := run.all(ctx, out); err != nil {
		return nil, err
	}
	results, short := search.Results(nil, r.N)
	out.Short = short
	for _, item := range results {
		out.Items = append(out.Items, Item{snap.items[item.Item], append([]int32(nil), item.Codes...), item.Score})
	}
	return out, nil
}

// search prepares a search with what the request leaves eligible.
func (g *Generator) search(snap *Snapshot, r *Request) (*beam.Search, error) {
	var eligible *beam.Eligible
	if len(r.Exclude) > 0 || len(r.Filter) > 0 {
		eligible = &beam.Eligible{}
		var set *beam.Set
		if len(r.Filter) > 0 {
			set = snap.filter(r.Filter)
		}
		eligible.Reset(snap.index, set)
		for _, id := range r.Exclude {
			if i, ok := snap.byID[id]; ok {
				eligible.Exclude(i)
			}
		}
	}
	opt := beam.Options{Width: r.Width, TopK: r.TopK, N: r.N}
	if s, ok := g.searches.Get().(*beam.Search); ok {
		if err := s.Reset(snap.index, eligible, opt); err != nil {
			return nil, fmt.Errorf("generate: %w", err)
		}
		return s, nil
	}
	s, err := beam.New(snap.index, eligible, opt)
	if err != nil {
		return nil, fmt.Errorf("generate: %w", err)
	}
	return s, nil
}

// run is a request on its way through its rounds.
type run struct {
	g       *Generator
	snap    *Snapshot
	search  *beam.Search
	request *Request

	layout prompt.Layout
	prompt []*kv.Entry // of the prompt's segments, nil where there is none; a reference to each is held
	beams  *engine.Beams
	paths  [][]int32 // tokens of each row's codes so far
	flat   []float32
}

func (r *run) close() {
	for _, e := range r.prompt {
		if e != nil {
			e.Release()
		}
	}
	if r.beams != nil {
		r.beams.Close()
	}
}

// all runs every round that the search needs.
func (r *run) all(ctx context.Context, out *Result) error {
	r.layout = r.g.Prompt.Generate(r.request.User)
	out.Layout = r.layout
	if len(r.layout.Plan.Segments[r.layout.Answers].Tokens) == 0 {
		return ErrEmpty
	}
	for first := true; !r.search.Done(); first = false {
		var err error
		if first {
			err = r.first(ctx, out)
		} else {
			err = r.round(ctx, out)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// first computes the prompt and chooses the first codes.
func (r *run) first(ctx context.Context, out *Result) error {
	level := r.search.Level()
	job := &engine.Job{Plan: r.layout.Plan, Want: []engine.Want{{Segment: r.layout.Answers, Head: r.snap.heads[level]}}}
	start := time.Now()
	cache := r.g.Cache
	var visit *reuse.Visit
	if cache != nil {
		visit = cache.Generate(r.request.UserID, r.request.User)
		visit.AttachPrompt(&r.layout, job)
		out.Fetch = time.Since(start)
	}
	res, err := r.g.Do(ctx, job)
	if errors.Is(err, kv.ErrFull) {
		job.Cached, job.Keep = nil, nil
		res, err = r.g.Do(ctx, job)
	}
	if visit != nil {
		out.Disk = visit.Disk // before the end, after which the visit is another request's
		r.prompt = visit.EndPrompt(&r.layout, res)
	}
	if err != nil {
		return err
	}
	out.Computed, out.Prompt, out.Cached = res.Computed, res.Computed, res.Cached
	out.Queue, out.Compute, out.BatchTokens = res.Queue, res.Compute, res.BatchTokens
	return r.search.Advance(res.Logits[0], len(res.Logits[0]))
}

// round computes the rows of the beams and chooses their continuations.
func (r *run) round(ctx context.Context, out *Result) error {
	if err := r.move(); err != nil {
		return err
	}
	level, rows, segments := r.search.Level(), r.search.Rows(), r.layout.Plan.Segments
	p := &plan.Plan{Segments: make([]plan.Segment, len(segments), len(segments)+rows)}
	copy(p.Segments, segments)
	sees := make([]int32, len(segments))
	for i := range sees {
		sees[i] = int32(i)
	}
	job := &engine.Job{Plan: p, Beams: r.beams, Cached: make([]*kv.Entry, len(segments)+rows)}
	copy(job.Cached, r.prompt)
	for i := range rows {
		p.Segments = append(p.Segments, plan.Segment{Kind: plan.Beam, Tokens: r.paths[i], Start: r.layout.End, Sees: sees})
		job.Want = append(job.Want, engine.Want{Segment: len(segments) + i, Head: r.snap.heads[level]})
	}
	res, err := r.g.Do(ctx, job)
	if err != nil {
		return err
	}
	r.beams.Advance()
	out.Rows += rows
	out.Computed += res.Computed
	out.Queue += res.Queue
	out.Compute += res.Compute
	size := len(res.Logits[0])
	r.flat = r.flat[:0]
	for _, l := range res.Logits {
		r.flat = append(r.flat, l...)
	}
	return r.search.Advance(r.flat, size)
}

// move gives each new row the path and the KV of its parent.
func (r *run) move() error {
	parents, codes, level := r.search.Parents(), r.search.Codes(), r.search.Level()
	if r.beams == nil {
		depth := r.snap.index.Depth()
		var err error
		if r.beams, err = engine.NewBeams(r.g.Shape, max(len(parents), min(r.request.Width, r.snap.Len())), depth-1); err != nil {
			return err
		}
		r.beams.First = len(r.layout.Plan.Segments)
		r.paths = make([][]int32, len(parents))
	} else if err := beam.Permute(parents, r.beams.Move); err != nil {
		return fmt.Errorf("generate: %w", err)
	}
	old := r.paths
	r.paths = make([][]int32, len(parents))
	for i, p := range parents {
		path := make([]int32, 0, level)
		if level > 1 {
			path = append(path, old[p]...)
		}
		r.paths[i] = append(path, r.snap.tokens[level-1][codes[i]])
	}
	return nil
}

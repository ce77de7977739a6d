package generate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"grebe/beam"
	"grebe/compute"
	"grebe/engine"
	"grebe/kv"
	"grebe/plan"
	"grebe/prompt"
	"grebe/reuse"
)

// run is a request in its rounds. Its memory is reused by the next request.
type run struct {
	g       *Generator
	snap    *Snapshot
	request *Request

	search   beam.Search
	eligible beam.Eligible
	late     bool  // begin the search while the prompt is computed
	failed   error // error of prepare
	layout   prompt.Layout
	shared   bool        // the prompt begins as those of other requests, so its KV is found and kept
	prompt   []*kv.Entry // entries of the prompt's segments, or nil; the run holds a reference to each
	beams    engine.Beams
	begun    bool // beams are in use

	job           engine.Job
	result        engine.Result
	plan          plan.Plan
	sees          []int32          // all segments of the prompt
	cached        []engine.Segment // of a round
	want          []engine.Want
	logits        []float32
	paths, before []int32 // tokens of each row's codes, in this round and the one before; depth-1 each
	results       []beam.Result
	there         beam.Elsewhere // the search as the device runs it
	found         engine.Search  // the search on the device; keeps the memory of its leaves
	meanwhile     func()         // the method value prepare
}

// close releases what the request holds and returns the run to the pool.
func (r *run) close() {
	r.release()
	r.beams.Close()
	g := r.g
	clear(r.plan.Segments[:cap(r.plan.Segments)])
	clear(r.cached[:cap(r.cached)])
	clear(r.want[:cap(r.want)])
	r.g, r.snap, r.request, r.failed, r.begun = nil, nil, nil, nil, false
	r.layout, r.job, r.result = prompt.Layout{}, engine.Job{}, engine.Result{}
	r.found = engine.Search{Leaves: r.found.Leaves}
	g.runs.Put(r)
}

// release releases the prompt's KV.
func (r *run) release() {
	for _, e := range r.prompt {
		if e != nil {
			e.Release()
		}
	}
	r.prompt = nil
}

// all runs all rounds of the search.
func (r *run) all(ctx context.Context, out *Result) error {
	r.layout, r.shared = r.g.Layout(r.request)
	out.Layout = r.layout
	if len(r.layout.Plan.Segments[r.layout.Answers].Tokens) == 0 {
		return ErrEmpty
	}
	r.late = r.snap.tree == nil && r.snap.mustBuild(r.request)
	if !r.late {
		if err := r.begin(); err != nil {
			return err
		}
	}
	if done, err := r.remote(ctx, out); done || err != nil {
		return err
	}
	for first := true; r.late || !r.search.Done(); first = false {
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

// begin starts the search with the eligible items.
func (r *run) begin() error {
	q := r.request
	var eligible *beam.Eligible
	if len(q.Exclude) > 0 || len(q.Filter) > 0 {
		eligible = &r.eligible
		var set *beam.Set
		if len(q.Filter) > 0 {
			set = r.snap.filter(q.Filter)
		}
		eligible.Reset(r.snap.index, set)
		for _, id := range q.Exclude {
			if i, ok := r.snap.number(id); ok {
				eligible.Exclude(i)
			}
		}
	}
	opt := beam.Options{Width: q.Width, TopK: q.TopK, N: q.N, Free: q.Free, Rules: r.snap.rules(&q.Rules),
		OnePerPath: q.OnePerPath}
	for _, w := range r.g.Widths {
		if q.whole {
			break
		}
		opt.Widths = append(opt.Widths, min(w, q.Width))
	}
	if err := r.search.Reset(r.snap.index, eligible, opt); err != nil {
		return fmt.Errorf("generate: %w", err)
	}
	return nil
}

// prepare does the part of a selection that needs no logits, while they are computed. It runs again if the job runs
// again.
func (r *run) prepare() {
	if r.late {
		r.late = false
		r.failed = r.begin()
	}
	if r.failed == nil {
		r.search.Prepare()
	}
}

// first computes the prompt and chooses the first codes.
func (r *run) first(ctx context.Context, out *Result) error {
	level := 0 // of a search that is not begun
	if !r.late {
		level = r.search.Level()
	}
	head := r.snap.heads[level]
	r.want = append(r.want[:0], engine.Want{Segment: r.layout.Answers, Head: head})
	r.logits = grown(r.logits, head.Out())
	r.job = engine.Job{Plan: r.layout.Plan, Want: r.want, Into: r.logits, Out: &r.result, Meanwhile: r.meanwhile}
	if err := r.prefill(ctx, out); err != nil {
		return err
	}
	if r.search.Level() != level || r.search.Done() {
		return nil // the search begun late needs no logits, or none of this level
	}
	return r.search.Advance(r.logits, len(r.logits))
}

// prefill runs the job of the prompt with its cached KV, and keeps the KV that it computes.
func (r *run) prefill(ctx context.Context, out *Result) error {
	start := time.Now()
	var res *engine.Result
	var visit *reuse.Visit
	switch cache := r.g.Cache; {
	case cache == nil:
	case !r.shared:
		r.job.Segments = make([]engine.Segment, len(r.layout.Plan.Segments))
		for i := range r.job.Segments {
			r.job.Segments[i].Keep = true
		}
		defer func() {
			if res != nil {
				r.prompt = res.Kept
			}
		}()
	default:
		visit = cache.Generate(r.request.UserID, r.layout.Plan.Segments[r.layout.User].Tokens)
		defer func() { r.prompt = visit.EndPrompt(&r.layout, res) }() // also after an error
		visit.AttachPrompt(ctx, &r.layout, &r.job)
		out.Fetch = time.Since(start)
	}
	var err error
	res, err = r.g.Do(ctx, &r.job)
	if errors.Is(err, kv.ErrFull) {
		r.job.Segments = nil
		res, err = r.g.Do(ctx, &r.job)
	}
	if err == nil {
		err = r.checkPrompt(res)
	}
	if errors.Is(err, errNotFinite) && r.job.Reuses() { // it may be the cached KV: compute all of it
		r.job.Segments, r.job.Once = nil, false
		if res, err = r.g.Do(ctx, &r.job); err == nil {
			err = r.checkPrompt(res)
		}
		if err == nil {
			visit.Discard(&r.layout)
		}
	}
	if errors.Is(err, errNotFinite) {
		res = nil
	}
	if err == nil {
		err = r.failed
	}
	if err != nil {
		return err
	}
	out.Computed, out.Prompt, out.Cached, out.Tiers = res.Computed, res.Computed, res.Cached, res.Tiers(&r.job)
	out.Shared = res.Shared
	if r.request.Explain {
		out.Origins = make([]Origin, len(r.layout.Plan.Segments))
		for i := range out.Origins {
			out.Origins[i].Cached, out.Origins[i].Tier = res.Source(&r.job, i)
		}
	}
	out.Queue, out.Compute, out.BatchTokens = res.Queue, res.Compute, res.BatchTokens
	return nil
}

var errNotFinite = errors.New("generate: logits are not finite")

// checkPrompt checks the logits of the prompt. If one is not a number, it releases what the job kept.
func (r *run) checkPrompt(res *engine.Result) error {
	if !slices.ContainsFunc(r.job.Into, notNumber) {
		return nil
	}
	for _, e := range res.Kept {
		if e != nil {
			e.Release()
		}
	}
	return errNotFinite
}

// notNumber reports whether a logit is NaN or +Inf. −Inf is valid: a probability of zero.
func notNumber(logit float32) bool { return logit != logit || logit > math.MaxFloat32 }

// round computes the rows of the beams and chooses their continuations.
func (r *run) round(ctx context.Context, out *Result) error {
	if err := r.move(); err != nil {
		return err
	}
	level, rows := r.search.Level(), r.search.Rows()
	head := r.snap.heads[level]
	r.lay(rows, level, head)
	r.logits = grown(r.logits, rows*head.Out())
	r.job = engine.Job{Plan: &r.plan, Beams: &r.beams, Segments: r.cached, Want: r.want, Into: r.logits, Out: &r.result,
		Meanwhile: r.meanwhile}
	res, err := r.g.Do(ctx, &r.job)
	if err != nil {
		return err
	}
	r.beams.Advance()
	out.Rows += rows
	out.Computed += res.Computed
	out.Queue += res.Queue
	out.Compute += res.Compute
	return r.search.Advance(r.logits, head.Out())
}

// lay makes the plan of a round: the prompt, and for each row a segment that sees all of it.
func (r *run) lay(rows, level int, head compute.Linear) {
	segments := r.layout.Plan.Segments
	r.sees = r.sees[:0]
	for i := range segments {
		r.sees = append(r.sees, int32(i))
	}
	r.plan.Segments = append(slices.Grow(r.plan.Segments[:0], len(segments)+rows), segments...)
	r.cached = grown(r.cached, len(segments)+rows)
	clear(r.cached)
	for i, e := range r.prompt {
		r.cached[i].Entry = e
	}
	r.want = slices.Grow(r.want[:0], rows)
	room := r.snap.index.Depth() - 1
	for i := range rows {
		path := r.paths[i*room:][:level]
		r.plan.Segments = append(r.plan.Segments, plan.Segment{
			Kind: plan.Beam, Tokens: path, Start: r.layout.End, Sees: r.sees})
		r.want = append(r.want, engine.Want{Segment: len(segments) + i, Head: head})
	}
}

// move gives each new row the path and the KV of its parent.
func (r *run) move() error {
	parents, codes, level := r.search.Parents(), r.search.Codes(), r.search.Level()
	room := r.snap.index.Depth() - 1
	if !r.begun {
		width := r.request.Width
		if !r.request.Free {
			width = min(width, r.snap.Len())
		}
		if err := r.beams.Begin(&r.g.Shape, max(len(parents), width), room); err != nil {
			return err
		}
		r.begun = true
		r.beams.First = len(r.layout.Plan.Segments)
	} else if err := beam.Permute(parents, r.beams.Move); err != nil {
		return fmt.Errorf("generate: %w", err)
	}
	r.paths, r.before = grown(r.before, len(parents)*room), r.paths
	for i, p := range parents {
		path := r.paths[i*room:][:level]
		if level > 1 {
			copy(path, r.before[int(p)*room:][:level-1])
		}
		path[level-1] = r.snap.tokens[level-1][codes[i]]
	}
	return nil
}

// grown returns a slice of n elements, in the memory of s if it suffices.
func grown[T any](s []T, n int) []T { return slices.Grow(s[:0], n)[:n] }

// mustBuild reports whether a filter or boost has values without a set of items. Building one reads all items.
func (s *Snapshot) mustBuild(q *Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, c := range q.Filter {
		for _, v := range slices.Concat(c.Any, c.Not) {
			if _, ok := s.sets[attribute{name, v}]; !ok {
				return true
			}
		}
		if c.Range != nil && s.ordered[column{name, c.Range.Kind}] == nil {
			return true
		}
	}
	for name, values := range q.Rules.Boost {
		for v := range values {
			if _, ok := s.sets[attribute{name, v}]; !ok {
				return true
			}
		}
	}
	return false
}

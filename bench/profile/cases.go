package profile

import (
	"context"
	"fmt"

	"grebe/engine"
	"grebe/kv"
	"grebe/plan"
	"grebe/prompt"
	"grebe/sim"
)

// work is a batch to measure: requests that are alike. As in a server, KV that is computed ahead of the question is
// kept.
type work struct {
	requests    int
	order       plan.Order
	user        int // tokens of the user
	userCached  int // of these, at the beginning
	items, each int // items have half to one and a half times as many tokens as each
	itemsCached bool
}

func (w *work) String() string {
	return fmt.Sprintf("%d × (user %d, %d cached; %d items of %d, cached %v; order %v)",
		w.requests, w.user, w.userCached, w.items, w.each, w.itemsCached, w.order)
}

// rows is the number of rows computed, without instructions.
func (w *work) rows() int {
	n := w.user - w.userCached
	if !w.itemsCached {
		n += w.items * w.each
	}
	return w.requests * n
}

// decoderWork covers the batches of rankings: prompts without a cache, users that return, items from the cache, alone
// and together, in ascending order of rows.
func decoderWork() []work {
	var out []work
	for _, n := range []int{16, 64, 128, 256, 512, 1024, 2048, 3000, 4096, 6000, 8000} {
		out = append(out, work{requests: 1, user: n})
	}
	for _, n := range []int{2, 4, 8, 16} {
		out = append(out, work{requests: n, user: 32}, work{requests: n, user: 256})
	}
	out = append(out, work{requests: 2, user: 2000}, work{requests: 4, user: 1000}, work{requests: 8, user: 900})
	for _, requests := range []int{1, 2, 4} {
		for _, user := range []int{500, 1500, 4000} {
			out = append(out,
				work{requests: requests, order: plan.UserFirst, user: user, userCached: user, items: 100, each: 10},
				work{requests: requests, order: plan.UserFirst, user: user + 30, userCached: user, items: 20, each: 15},
				work{requests: requests, order: plan.ItemFirst, user: user / requests, items: 100, each: 15, itemsCached: true})
		}
	}
	for _, requests := range []int{1, 3} {
		for _, user := range []int{150, 400, 900} {
			for _, items := range []int{15, 60} {
				out = append(out,
					work{requests: requests, order: plan.UserFirst, user: user, items: items, each: 16},
					work{requests: requests, order: plan.UserFirst, user: user + 15, userCached: user, items: items, each: 16},
					work{requests: requests, order: plan.ItemFirst, user: user, items: items, each: 16, itemsCached: true},
					work{requests: requests, order: plan.ItemFirst, user: user, items: items, each: 16})
			}
		}
	}
	out = append(out,
		work{requests: 1, order: plan.UserFirst, user: 7000, userCached: 7000, items: 100, each: 10},
		work{requests: 1, order: plan.ItemFirst, user: 7000, items: 100, each: 10, itemsCached: true},
		work{requests: 1, order: plan.ItemFirst, user: 1500, items: 100, each: 15},
		work{requests: 2, order: plan.UserFirst, user: 1500, items: 100, each: 15},
		work{requests: 8, order: plan.ItemFirst, user: 400, items: 100, each: 10, itemsCached: true})
	return out
}

// eventWork covers the batches of a model of events: histories without a cache, and users that return with new events.
func eventWork(longest int) []work {
	var out []work
	for _, n := range []int{64, 500, 1000, 2000, 5000, 8000, 10000, 15000} {
		if n <= longest {
			out = append(out, work{requests: 1, order: plan.UserFirst, user: n, items: 100, each: 1})
		}
	}
	for _, requests := range []int{1, 2, 4, 8} {
		for _, n := range []int{1000, 5000, 10000, 14900} {
			if n+100 <= longest {
				out = append(out, work{requests: requests, order: plan.UserFirst, user: n + 20, userCached: n, items: 100, each: 1})
			}
		}
		if requests > 1 {
			out = append(out, work{requests: requests, order: plan.UserFirst, user: 2000, items: 100, each: 1})
		}
	}
	return append(out, work{requests: 1, order: plan.UserFirst, user: 5000, userCached: 4000, items: 100, each: 1})
}

// jobs makes the jobs of a batch. What they take from the cache MUST be released.
func (s *subject) jobs(ctx context.Context, w *work) (jobs []*engine.Job, release func(), err error) {
	var held []*kv.Entry
	release = func() {
		for _, e := range held {
			e.Release()
		}
	}
	for range w.requests {
		user, items := s.tokens(w.user), make([][]int32, w.items)
		for i := range items {
			if s.events != nil {
				items[i] = []int32{s.events.Candidate(s.rand.Int32N(eventItems))}
				continue
			}
			items[i] = s.tokens(w.each/2 + (3+7*i)%(w.each+1)) // the same in every pass
		}
		l, err := s.lay(w, user, items)
		if err != nil {
			return nil, release, err
		}
		j := &engine.Job{Plan: l.Plan, Segments: make([]engine.Segment, len(l.Plan.Segments))}
		if s.events != nil {
			for i := range items {
				j.Hidden = append(j.Hidden, l.Answers+i)
			}
		} else {
			j.Want = []engine.Want{{Segment: l.Answers, IDs: identifiers}}
		}
		if w.userCached > 0 {
			kept, err := s.keep(ctx, &plan.Plan{Segments: []plan.Segment{{Kind: plan.User, Tokens: user[:w.userCached]}}}, 0, 1)
			if err != nil {
				return nil, release, err
			}
			held = append(held, kept...)
			j.Segments[l.User].Entry = kept[0]
		}
		if w.itemsCached {
			alone := s.prompt.ItemsAlone(items)
			kept, err := s.keep(ctx, alone.Plan, alone.Items, len(items))
			if err != nil {
				return nil, release, err
			}
			held = append(held, kept...)
			for i, e := range kept {
				j.Segments[l.Items+i].Entry = e
			}
		}
		s.keepOf(j, w, &l)
		jobs = append(jobs, j)
	}
	return jobs, release, nil
}

// keepOf has a job keep what a server keeps of it: the user, or with items first the items.
func (s *subject) keepOf(j *engine.Job, w *work, l *prompt.Layout) {
	if w.items > 0 && w.order == plan.ItemFirst {
		for i := range w.items {
			j.Segments[l.Items+i].Keep = !w.itemsCached
		}
		return
	}
	j.Segments[l.User].Keep = w.userCached < w.user
}

// workOf counts the work of a batch, with tiles of so many rows.
func workOf(jobs []*engine.Job, tile int) (w sim.Work) {
	for _, j := range jobs {
		w.Requests++
		for i := range j.Plan.Segments {
			g := &j.Plan.Segments[i]
			cached, _ := j.Cached(i)
			seen := 0
			for _, k := range g.Sees {
				seen += len(j.Plan.Segments[k].Tokens)
			}
			w.Segment(cached, len(g.Tokens), seen, tile)
			w.Cached += cached
		}
	}
	return w
}

// keep computes a plan and returns the KV of n of its segments, from first on.
func (s *subject) keep(ctx context.Context, p *plan.Plan, first, n int) ([]*kv.Entry, error) {
	j := &engine.Job{Plan: p, Segments: make([]engine.Segment, len(p.Segments))}
	for i := range n {
		j.Segments[first+i].Keep = true
	}
	r, err := s.engine.Do(ctx, j)
	if err != nil {
		return nil, err
	}
	kept := r.Kept[first : first+n]
	for _, e := range kept {
		if e == nil {
			return kept, kv.ErrFull
		}
	}
	return kept, nil
}

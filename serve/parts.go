package serve

import (
	grebev1 "grebe/api/grebe/v1"
	"grebe/engine"
	"grebe/plan"
	"grebe/prompt"
)

// accountOf tells where the KV of each segment of a job that ran came from. A job that had to run without
// what was cached has none of it left.
func accountOf(l *prompt.Layout, job *engine.Job, r *engine.Result) []*grebev1.Part {
	out := make([]*grebev1.Part, len(l.Plan.Segments))
	for i := range out {
		s := &l.Plan.Segments[i]
		p := &grebev1.Part{Kind: s.Kind.String(), Tokens: int32(len(s.Tokens))}
		if n, at := r.Source(job, i); n > 0 {
			p.Cached, p.Source = int32(n), plan.Cached.Name(at)
		}
		out[i] = p
	}
	return out
}

// name gives the parts that are items the ids of a ranking's items, which are in the same order.
func name(parts []*grebev1.Part, items []*prompt.Item) {
	next := 0
	for _, p := range parts {
		if p.Kind == plan.Item.String() && next < len(items) {
			p.Id = items[next].ID
			next++
		}
	}
}

package serve

import (
	grebev1 "grebe/api/grebe/v1"
	"grebe/engine"
	"grebe/generate"
	"grebe/plan"
	"grebe/prompt"
)

// accountOf returns, for each segment of a job that ran, where its KV came from. If the job had to run without cached
// KV, none was cached.
func accountOf(l *prompt.Layout, job *engine.Job, r *engine.Result) []*grebev1.Part {
	return partsOf(l, func(i int) (int, plan.Tier) { return r.Source(job, i) })
}

// partsOfSearch does for a search that ran what accountOf does for a job. It returns nil if no prompt was computed.
func partsOfSearch(r *generate.Result) []*grebev1.Part {
	if r.Origins == nil {
		return nil
	}
	return partsOf(&r.Layout, func(i int) (int, plan.Tier) { return r.Origins[i].Cached, r.Origins[i].Tier })
}

// partsOf returns the segments of a prompt, of which source returns how many tokens were cached, and where.
func partsOf(l *prompt.Layout, source func(i int) (cached int, at plan.Tier)) []*grebev1.Part {
	out := make([]*grebev1.Part, len(l.Plan.Segments))
	for i := range out {
		s := &l.Plan.Segments[i]
		p := &grebev1.Part{Kind: s.Kind.String(), Tokens: int32(len(s.Tokens))}
		if n, at := source(i); n > 0 {
			p.Cached, p.Source = int32(n), plan.Cached.Name(at)
		}
		out[i] = p
	}
	return out
}

// name sets the ids of the parts that are items. items are in the same order.
func name(parts []*grebev1.Part, items []*prompt.Item) {
	next := 0
	for _, p := range parts {
		if p.Kind == plan.Item.String() && next < len(items) {
			p.Id = items[next].ID
			next++
		}
	}
}

package serve

import (
	"cmp"
	"context"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/blend"
	"grebe/engine"
	"grebe/plan"
	"grebe/prompt"
	"grebe/reuse"
)

// budget returns the budget of a request, or nil if it has none. A share that the request leaves out is the model's.
func (c *call) budget(req *grebev1.RankRequest) (*blend.Budget, error) {
	if req.Budget == nil {
		return nil, nil
	}
	if req.Prefix != "blend" {
		return nil, Errorf(InvalidArgument, "budget", "needs prefix blend, but the request's prefix is %s",
			Quoted(cmp.Or(req.Prefix, "auto")))
	}
	var b blend.Budget
	if c.model.Blend != nil {
		b = c.model.Blend.Budget
	}
	if req.Budget.Items != nil {
		b.Items = *req.Budget.Items
	}
	if req.Budget.History != nil {
		b.History = *req.Budget.History
	}
	if err := b.Check(); err != nil {
		return nil, Errorf(InvalidArgument, "budget", "%v", err)
	}
	return &b, nil
}

// pays reports whether to blend a ranking whose prefix is auto: the model's configuration must allow it, and the
// prediction must be faster.
func (w *work) pays(pointwise bool, visit *reuse.Visit) bool {
	how := w.model.Blend
	return how != nil && how.Auto && w.auto && !pointwise && w.lay == nil && w.model.Scoring.Kind == Identifier &&
		visit.BlendPays(how)
}

// runBlended ranks with an ordinary prompt that reuses KV of other prompts for some tokens. visit was begun by the
// caller; nil: there is no cache, and everything is computed.
func (s *Service) runBlended(ctx context.Context, w *work, visit *reuse.Blended, start time.Time,
	ask func(l *prompt.Layout, job *engine.Job)) (*ranking, error) {
	r := &ranking{prefix: "blend", reason: "blend"}
	if visit != nil { // also after an error
		defer func() { visit.End(&r.layout, r.result) }()
	}
	var err error
	r.layout, err = w.model.Prompt.Rank(w.model.Blend.Order(), w.user, w.items)
	job := &engine.Job{Plan: r.layout.Plan}
	if err == nil {
		ask(&r.layout, job)
		if visit != nil {
			visit.Attach(ctx, &r.layout, job, w.model.Blend, w.budgetOf())
			r.fetch = time.Since(start)
			s.cfg.Tracer.Stage(ctx, "fetch", start, r.fetch)
		}
		r.result, err = s.do(ctx, w.call, job)
	} else {
		err = w.layoutError(err)
	}
	if err == nil {
		r.blended(job, visit, w.explain)
		s.metrics.prompted(w.call.op, r.account.Computed, r.usage().BySource)
	}
	return r, err
}

// budgetOf returns the budget of the request, or else the model's.
func (w *work) budgetOf() blend.Budget {
	if w.budget != nil {
		return *w.budget
	}
	return w.model.Blend.Budget
}

// blended records where the tokens of a blended prompt came from. If the job had to run without cached KV, it records
// none.
func (r *ranking) blended(job *engine.Job, visit *reuse.Blended, explain bool) {
	r.account = &reuse.Account{Computed: r.result.Computed}
	if visit != nil {
		*r.account = visit.Account(r.result)
	}
	if !explain {
		return
	}
	for i := range r.layout.Plan.Segments {
		seg := &r.layout.Plan.Segments[i]
		if i == r.layout.Items {
			for k, at := range r.layout.ItemAt {
				end := len(seg.Tokens)
				if k+1 < len(r.layout.ItemAt) {
					end = r.layout.ItemAt[k+1]
				}
				var n int
				var source string
				if visit != nil {
					n, source = visit.Part(r.result, i, at)
				}
				r.parts = append(r.parts, &grebev1.Part{Kind: plan.Item.String(), Tokens: int32(end - at), Cached: int32(n),
					Source: source})
			}
			continue
		}
		p := &grebev1.Part{Kind: seg.Kind.String(), Tokens: int32(len(seg.Tokens))}
		if n, at := job.Cached(i); n > 0 {
			p.Cached, p.Source = int32(n), plan.Cached.Name(at)
		} else if visit != nil {
			if n := visit.Prototypes(r.result, i); n > 0 {
				p.Cached, p.Source = int32(n), plan.Prototype.Name(plan.Missing)
			}
		}
		r.parts = append(r.parts, p)
	}
}

// usage counts the tokens of a ranking by the source of their KV.
func (r *ranking) usage() *grebev1.Usage {
	if r.account == nil {
		return usage(r)
	}
	a := r.account
	u := promptUsage(r.layout.Plan, 0, [plan.NumTiers]int{})
	u.CachedTokens, u.ComputedTokens = int32(a.Reused()), int32(a.Computed)
	u.PartlyComputedTokens, u.BesideTokens = int32(a.Partly), int32(a.Beside)
	u.BySource = &grebev1.Sources{
		Device: int32(a.Device), Host: int32(a.Host), Disk: int32(a.Disk), Peer: int32(a.Peer),
		Prototype: int32(a.Prototype), Recomputed: int32(a.Recomputed),
	}
	return u
}

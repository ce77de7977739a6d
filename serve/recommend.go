package serve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog/filter"
	"grebe/dispatch"
	"grebe/generate"
	"grebe/internal/wire"
	"grebe/serve/tracing"
)

// Defaults of a recommendation.
const (
	defaultResults   = 10
	defaultBeamWidth = 128
)

// Reasons why fewer items came back than requested.
const (
	shortCatalog = "catalog" // no more are eligible
	shortBeam    = "beam"    // more are eligible, but the search kept too few paths
)

// maxExcluded bounds the bytes of an id in exclude. The catalog has no longer ones.
const maxExcluded = 512

// Recommend generates items of the catalog for a user, and ranks them if the request says so.
func (s *Service) Recommend(ctx context.Context, req *grebev1.RecommendRequest) (*grebev1.RecommendResponse, error) {
	if req.Rank != nil {
		if req.WholePrompt {
			return nil, Errorf(InvalidArgument, "rank", "a request with whole_prompt has no user to rank for")
		}
		return s.findAndRank(ctx, req)
	}
	return s.find(ctx, req)
}

// find generates items of the catalog.
func (s *Service) find(ctx context.Context, req *grebev1.RecommendRequest) (*grebev1.RecommendResponse, error) {
	describe := func(c *call, a *Asked) error {
		if req.WholePrompt {
			return nil
		}
		if cold, err := s.cold(c, req); cold != nil || err != nil {
			return err // nothing is computed
		}
		return s.describe(c, a, req.User, nil)
	}
	return routed(ctx, s, "recommend", req.Model, req.DeadlineMs, req, describe, s.recommendHere)
}

func (s *Service) recommendHere(ctx context.Context,
	req *grebev1.RecommendRequest) (*grebev1.RecommendResponse, error) {
	defer s.serving(req.User.GetId())()
	resp, err := on(s, "recommend", req.Model, req.DeadlineMs, func(c *call) (*grebev1.RecommendResponse, error) {
		return entered(ctx, c, dispatch.Rounds, 1, func(ctx context.Context) (*grebev1.RecommendResponse, error) {
			return s.recommend(ctx, c, req)
		})
	})
	if err == nil {
		s.noteHot(req.User.GetId(), nil)
	}
	return resp, err
}

// recommend finds items with the call's model.
func (s *Service) recommend(ctx context.Context, c *call,
	req *grebev1.RecommendRequest) (*grebev1.RecommendResponse, error) {
	id, err := requestID(req.RequestId)
	if err != nil {
		return nil, err
	}
	tracing.Named(ctx, id, c.model.Name)
	return c.model.reads().recommend(ctx, s, c, id, req)
}

// generationUsage counts the tokens of a recommendation. They are 0 if nothing was computed, because no item or only
// one path is eligible.
func generationUsage(r *generate.Result) *grebev1.Usage {
	if r.Cached+r.Computed == 0 {
		return &grebev1.Usage{BySource: &grebev1.Sources{}}
	}
	u := promptUsage(r.Layout.Plan, r.Cached, r.Tiers)
	u.ComputedTokens, u.BeamTokens = int32(r.Prompt), int32(r.Computed-r.Prompt)
	return u
}

// generation checks a request and resolves its user. The user of a request that falls back has no tokens.
func (s *Service) generation(c *call, req *grebev1.RecommendRequest) (r *generate.Request, cold bool, err error) {
	// A client that sets beam_width or top_k gets exactly that search.
	r = &generate.Request{N: int(req.N), Width: int(req.BeamWidth), TopK: int(req.TopK), Widen: req.BeamWidth == 0 &&
		req.TopK == 0}
	orDefault(&r.N, defaultResults)
	orDefault(&r.Width, defaultBeamWidth)
	if err := checkRange("n", r.N, 1, wire.MaxResults); err != nil {
		return nil, false, err
	}
	if err := checkRange("beam_width", r.Width, 1, wire.MaxBeamWidth); err != nil {
		return nil, false, err
	}
	if err := checkRange("top_k", r.TopK, 0, math.MaxInt32); err != nil {
		return nil, false, err
	}
	if err := checkExclude(req.Exclude); err != nil {
		return nil, false, err
	}
	if r.Filter, err = filterOf(req.Filter); err != nil {
		return nil, false, err
	}
	if err := checkAttributes("filter", r.Filter, c.model.Generate.Snapshot()); err != nil {
		return nil, false, err
	}
	if r.Rules, err = rulesOf(req, c.model.Generate.Snapshot()); err != nil {
		return nil, false, err
	}
	r.Exclude, r.OnePerPath, r.Explain = req.Exclude, req.OnePerPath, req.Explain
	if req.WholePrompt {
		r.Whole = true
		r.User, err = c.wholePrompt(req)
		return r, false, err
	}
	user, err := s.cold(c, req)
	if cold = user != nil; !cold && err == nil {
		user, err = s.whom(c, req.User)
	}
	if err != nil {
		return nil, false, err
	}
	r.UserID = user.Id
	if req.ExcludeSeen {
		r.Exclude = slices.Concat(req.Exclude, user.History, itemsOf(user.Events), itemsOf(user.NewEvents))
	}
	if !cold {
		r.User, err = s.userTokens(c, user)
	}
	return r, cold, err
}

// generate runs a recommendation within the call's deadline and records metrics.
func (s *Service) generate(ctx context.Context, c *call, r *generate.Request) (*generate.Result, error) {
	ctx, cancel := c.within(ctx)
	defer cancel()
	if err := ctx.Err(); err != nil {
		return nil, AsError(err)
	}
	res, err := c.model.Generate.Recommend(ctx, r)
	switch {
	case errors.Is(err, generate.ErrNoCodes):
		return nil, Errorf(Unprocessable, "", "model %q cannot recommend: %v", c.model.Name, err)
	case errors.Is(err, generate.ErrEmpty):
		return nil, Errorf(Unprocessable, "user", "%v", err)
	case err != nil:
		return nil, s.explain(c, err)
	}
	s.metrics.recommended(c.op, res)
	if time.Since(c.start) <= c.deadline {
		s.metrics.sloOK.WithLabelValues(c.op).Inc()
	}
	return res, nil
}

func checkRange(field string, v, low, high int) error {
	if v < low || v > high {
		return Errorf(InvalidArgument, field, "%d is not between %d and %d", v, low, high)
	}
	return nil
}

func checkExclude(ids []string) error {
	if len(ids) > wire.MaxExclude {
		return Errorf(InvalidArgument, "exclude", "%d elements, at most %d", len(ids), wire.MaxExclude)
	}
	for i, id := range ids {
		if id == "" {
			return Errorf(InvalidArgument, path{"exclude", i}.String(), "is empty")
		}
		if len(id) > maxExcluded {
			return Errorf(InvalidArgument, path{"exclude", i}.String(), "%d bytes, at most %d", len(id), maxExcluded)
		}
	}
	return nil
}

// filterOf checks the conditions on attributes. An attribute without a condition is an error.
func filterOf(m map[string]*grebev1.Condition) (filter.Filter, error) {
	if len(m) > wire.MaxFilter {
		return nil, Errorf(InvalidArgument, "filter", "%d attributes, at most %d", len(m), wire.MaxFilter)
	}
	out := make(filter.Filter, len(m))
	for name, c := range m {
		field := "filter." + shown(name)
		if c == nil {
			c = &grebev1.Condition{}
		}
		bounds := filter.Bounds{GTE: c.Gte, GT: c.Gt, LTE: c.Lte, LT: c.Lt}
		switch n := max(len(c.Values), len(c.Not)); {
		case name == "":
			return nil, Errorf(InvalidArgument, field, "the attribute has no name")
		case n == 0 && bounds == filter.Bounds{}:
			return nil, Errorf(InvalidArgument, field, "has no values")
		case n > wire.MaxWanted:
			return nil, Errorf(InvalidArgument, field, "%d values, at most %d", n, wire.MaxWanted)
		}
		between, bound, err := bounds.Range()
		if err != nil {
			if bound != "" {
				field += "." + bound
			}
			return nil, Errorf(InvalidArgument, field, "%v", err)
		}
		out[name] = filter.Condition{Any: c.Values, Not: c.Not, Range: between}
	}
	return out, nil
}

// attributes are the attributes that items have.
type attributes interface {
	Attributes(name string) (has bool, all []string)
}

// checkAttributes refuses an attribute that no item has: it is probably misspelt.
func checkAttributes[V any](field string, named map[string]V, items attributes) error {
	for _, name := range slices.Sorted(maps.Keys(named)) {
		if has, all := items.Attributes(name); !has {
			return noAttribute(field+"."+shown(name), all)
		}
	}
	return nil
}

// unmatched returns notes on the values of a filter that no item has: they are probably misspelt. lacking returns those
// of the values of an attribute that no item has. Longer lists than maxChecked are not checked.
func unmatched(f filter.Filter, lacking func(name string, values []string) []string) (notes []string) {
	for _, name := range slices.Sorted(maps.Keys(f)) {
		values := f[name].Any
		if len(values) == 0 || len(values) > maxChecked {
			continue
		}
		var none []string
		for _, v := range lacking(name, values) {
			none = append(none, Quoted(v))
		}
		if len(none) > 0 {
			notes = append(notes, fmt.Sprintf("filter.%s: no item has %s", shown(name), strings.Join(none, ", ")))
		}
	}
	return notes
}

// maxChecked bounds the values of an attribute that are checked: snapshots keep which items have so few.
const maxChecked = 8

// maxShown bounds the attributes that an error names.
const maxShown = 20

func noAttribute(field string, all []string) error {
	if len(all) == 0 {
		return Errorf(InvalidArgument, field, "no item has attributes")
	}
	var names []string
	for _, a := range all[:min(len(all), maxShown)] {
		names = append(names, Quoted(a))
	}
	more := ""
	if n := len(all) - len(names); n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return Errorf(InvalidArgument, field, "no item has this attribute; items have %s%s", strings.Join(names, ", "), more)
}

// shown shortens a name for the path of an error.
func shown(name string) string {
	if name == "" || len(name) > 64 {
		return fmt.Sprintf("%.64q", name)
	}
	return name
}

func itemsOf(events []*grebev1.Event) []string {
	out := make([]string, len(events))
	for i, e := range events {
		out[i] = e.GetItem()
	}
	return out
}

// snapshot returns the items that the model generates; nil if it cannot generate.
func (m *Model) snapshot() *generate.Snapshot {
	if m.Generate == nil {
		return nil
	}
	return m.Generate.Snapshot()
}

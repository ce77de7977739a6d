package serve

import (
	"context"
	"slices"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/generate"
	"grebe/plan"
	"grebe/prompt"
	"grebe/schedule"
)

// texts is a language model: users and items are texts, and recommended items are generated code by code.
type texts struct{}

// Texts returns the Reader of language models. The Model's Scoring, Orders, Blend and Generate configure it.
func Texts() Reader { return texts{} }

func (texts) scoring(m *Model) string      { return m.Scoring.Kind.String() }
func (texts) checkOp(*Model, string) error { return nil }
func (texts) knows(string) bool            { return false }
func (texts) readsTexts() bool             { return true }
func (texts) recommends(m *Model) bool     { return m.Generate != nil }

func (texts) policy(m *Model) schedule.Policy {
	if m.Cache != nil {
		return m.Cache.Policy()
	}
	if only, ok := m.Orders.Only(); ok && only == plan.ItemFirst {
		return schedule.Item
	}
	return schedule.User
}

func (texts) checkBlend(m *Model) error {
	switch {
	case m.Scoring.Kind != Identifier:
		return Errorf(Unprocessable, "prefix", "model %q scores item by item: blend needs scoring by identifier", m.Name)
	case m.Cache != nil && m.Blend == nil:
		return Errorf(Unprocessable, "prefix", "model %q keeps its KV in a format that cannot be moved: want kv_dtype "+
			"auto, f32 or bf16", m.Name)
	}
	return nil
}

// checkUser refuses a user of whom the prompt would show nothing: only a history without {history} in the template,
// or only a text without {text}. A history beside a text is fine: users of a catalog have both, and exclude_seen
// needs it.
func (texts) checkUser(m *Model, u *grebev1.User) error {
	p := m.Prompt
	switch {
	case p == nil || u.Tokens != nil:
	case u.GetText() != "" && !p.ShowsText() && (len(u.History) == 0 || !p.ShowsHistory()):
		return Errorf(Unprocessable, "user.text", "the prompt of %q has no {text}, so the text would not be read", m.Name)
	case len(u.History) > 0 && !p.ShowsHistory() && (u.GetText() == "" || !p.ShowsText()):
		return Errorf(Unprocessable, "user.history", "the prompt of %q has no {history}, so the history would not be read",
			m.Name)
	}
	return nil
}

// shows is true at the first item that the prompt shows, and also for a prompt without {history}: checkUser explains
// those.
func (texts) shows(s *Service, c *call, u *grebev1.User) bool {
	p := c.model.Prompt
	if p == nil || u.GetText() != "" || len(u.Tokens) > 0 {
		return true
	}
	items := u.History
	if len(items) == 0 {
		items = itemsOf(u.Events)
	}
	items = slices.Concat(items, itemsOf(u.NewEvents))
	if !p.ShowsHistory() {
		return len(items) > 0
	}
	for _, id := range items {
		if it, ok := s.item(c.model.Model, id); ok && p.Lists(it) {
			return true
		}
	}
	s.resolved(c, u)
	return false
}

func (texts) tokens(s *Service, w *work, user *grebev1.User, candidates []*grebev1.Item) (err error) {
	if w.user, err = s.userTokens(w.call, user); err != nil {
		return err
	}
	w.items = make([][]int32, len(candidates))
	for i, m := range candidates {
		it, err := s.candidate(w.call, i, m)
		if err != nil {
			return err
		}
		if w.items[i], err = w.itemTokens(i, it); err != nil {
			return err
		}
	}
	return nil
}

// rank orders candidates by their texts.
func (texts) rank(ctx context.Context, s *Service, w *work, user *grebev1.User,
	candidates []*grebev1.Item) ([]*prompt.Item, *ranking, error) {
	var err error
	if w.user, err = s.userTokens(w.call, user); err != nil {
		return nil, nil, err
	}
	items := make([]*prompt.Item, len(candidates))
	for i, m := range candidates {
		if items[i], err = s.candidate(w.call, i, m); err != nil {
			return nil, nil, err
		}
	}
	r, err := s.rankItems(ctx, w, items)
	if err != nil {
		return nil, nil, err
	}
	r.note = w.note
	return items, r, nil
}

// recommend generates items.
func (texts) recommend(ctx context.Context, s *Service, c *call, id string,
	req *grebev1.RecommendRequest) (*grebev1.RecommendResponse, error) {
	if !c.model.Recommends() {
		return nil, Errorf(Unprocessable, "", "model %q has no codes: it ranks, but cannot recommend", c.model.Name)
	}
	r, cold, err := s.generation(c, req)
	if err != nil {
		return nil, err
	}
	if cold {
		resp, err := s.fallBack(ctx, c, id, req, func(list []generate.Share) (*generate.Result, error) {
			return c.model.Generate.Listed(r, list)
		})
		if err != nil {
			return nil, err
		}
		if r.Rules.Temperature > 0 {
			resp.Seed = &r.Rules.Seed
		}
		if resp.Short {
			resp.Notes = append(resp.Notes, unmatched(r.Filter, c.model.Generate.Snapshot().Lacking)...)
		}
		return resp, nil
	}
	l, _ := c.model.Generate.Layout(r)
	if err := c.checkEnd(l.End + c.model.Prompt.Depth() - 1); err != nil {
		return nil, err
	}
	res, err := s.generate(ctx, c, r)
	if err != nil {
		return nil, err
	}
	resp := &grebev1.RecommendResponse{
		Model: c.model.Name, RequestId: id, Node: s.cfg.Node, Short: res.Short, CatalogVersion: res.Version,
		Usage: generationUsage(res),
		TimingMs: &grebev1.Timing{Queue: milliseconds(res.Queue), Fetch: milliseconds(res.Fetch),
			Compute: milliseconds(res.Compute)},
	}
	resp.Usage.Note, resp.Parts = c.note, partsOfSearch(res)
	if res.Short {
		if resp.ShortReason = shortCatalog; res.Beam {
			resp.ShortReason = shortBeam
		}
		resp.Notes = append(resp.Notes, unmatched(r.Filter, c.model.Generate.Snapshot().Lacking)...)
	}
	if r.Rules.Temperature > 0 {
		resp.Seed = &r.Rules.Seed
		if res.Cut {
			resp.Notes = append(resp.Notes, cutSamples)
		}
	}
	for _, it := range res.Items {
		resp.Results = append(resp.Results, &grebev1.Recommended{
			Id: it.ID, Codes: it.Codes, Score: it.Score, Boost: it.Boost})
	}
	resp.TimingMs.Total = milliseconds(time.Since(c.start))
	return resp, nil
}

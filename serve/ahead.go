package serve

import (
	"context"

	"grebe/ahead"
	"grebe/dispatch"
	"grebe/engine"
	"grebe/plan"
	"grebe/schedule"
)

// newIndexer returns the Indexer of all models that reuse the KV of items.
func (s *Service) newIndexer() *ahead.Indexer {
	opt := ahead.Options{Catalog: s.catalog, Hot: s.hotNow, Off: s.cfg.AheadOff || s.cfg.Rests, Log: s.log}
	if s.cfg.Cluster != nil {
		opt.Share = s.cfg.Cluster.Index
	}
	x := ahead.New(opt)
	for _, sl := range s.served {
		if keepsItems(sl.serving().Model) {
			x.Add(sl.name, sl.indexed)
		}
	}
	return x
}

// keepsItems reports whether requests that name no prefix may use an item's KV.
func keepsItems(m *Model) bool {
	if m.Cache == nil || !m.ReadsTexts() {
		return false
	}
	if m.Blend != nil && m.Blend.Auto {
		return true
	}
	if only, one := m.Orders.Only(); one && only == plan.UserFirst {
		return false
	}
	return m.Cache.Policy() != schedule.User && m.Cache.Policy() != schedule.None
}

// indexed is the slot's ahead.Take.
func (sl *slot) indexed() (ahead.Checkpoint, func()) {
	c := sl.take()
	release := func() { sl.release(c) }
	if !keepsItems(c.Model) {
		return ahead.Checkpoint{}, release
	}
	do := func(ctx context.Context, j *engine.Job) (*engine.Result, error) {
		return c.Runner.Do(dispatch.Background(ctx), j)
	}
	return ahead.Checkpoint{Cache: c.Cache, Do: do, Disk: c.Disk}, release
}

// hotNow returns the items that requests name most.
func (s *Service) hotNow() []ahead.Hot {
	top := s.hotItems.top(hotKept)
	out := make([]ahead.Hot, len(top))
	for i, e := range top {
		out[i] = ahead.Hot{ID: e.id, Asked: e.count}
	}
	return out
}

// Index returns the progress of indexing, for each model that reuses the KV of items.
func (s *Service) Index() []ahead.Progress { return s.ahead.Progress() }

// IndexNow starts a full pass over the catalog for a model, or for all models if the name is empty. It returns at once:
// the items are computed in the background, in idle time.
func (s *Service) IndexNow(model string) ([]ahead.Progress, error) {
	if s.changing.Err() != nil {
		return nil, Errorf(Unavailable, "", "shutting down")
	}
	if s.cfg.Rests {
		return nil, Errorf(Unprocessable, "", "this process computes nothing: ask a member with the role node")
	}
	if err := s.ahead.Ask(model); err != nil {
		if model != "" && s.models[model] == nil {
			return nil, Errorf(NotFound, "model", "no model %s", Quoted(model))
		}
		return nil, Errorf(Unprocessable, "model", "keeps no items: it is a model of events, has no cache, or always puts "+
			"the user first")
	}
	return s.ahead.Progress(), nil
}

// RunAhead starts indexing in the background. It ends with EndReloads or Close.
func (s *Service) RunAhead() { s.background.Go(func() { s.ahead.Run(s.changing) }) }

package serve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	grebev1 "grebe/api/grebe/v1"
)

// Loader opens checkpoints of models while others serve.
type Loader interface {
	// Open loads the checkpoint that the model's configuration names. It MUST return soon after ctx ends. The model's
	// Retire frees it.
	Open(ctx context.Context, model string, progress func(done, total int64)) (*Model, error)
}

// Errors of a Loader that clients may see.
var (
	// ErrNoMemory means that a checkpoint does not fit beside the one that serves.
	ErrNoMemory = errors.New("not enough memory for a second checkpoint")
	// ErrUnchanged means that the checkpoint is the one that serves.
	ErrUnchanged = errors.New("the checkpoint of the configuration already serves")
)

// reloading is a change of a model's checkpoint.
type reloading struct {
	began time.Time
	ended chan struct{} // closed at the end
	again chan struct{} // closed when a trial was rolled back

	unchanged atomic.Bool // it failed with ErrUnchanged

	mu  sync.Mutex
	now grebev1.Reload
}

func (r *reloading) set(f func(now *grebev1.Reload)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.now)
}

// at begins the next state.
func (r *reloading) at(state string) {
	r.set(func(now *grebev1.Reload) { now.State, now.Progress = state, 0 })
}

func (r *reloading) progress(done, total int64) {
	r.set(func(now *grebev1.Reload) { now.Progress = min(1, float64(done)/float64(max(total, 1))) })
}

// rolledBack records why a trial was rolled back. It must be called once.
func (r *reloading) rolledBack(why string) {
	r.set(func(now *grebev1.Reload) { now.Error = why })
	close(r.again)
}

func (r *reloading) over() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

func (r *reloading) describe() *grebev1.Reload {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := &grebev1.Reload{
		State: r.now.State, From: r.now.From, To: r.now.To, Progress: r.now.Progress, WarmedItems: r.now.WarmedItems,
		Error: r.now.Error, Seconds: r.now.Seconds,
	}
	if out.Seconds == 0 {
		out.Seconds = time.Since(r.began).Seconds()
	}
	return out
}

// ReloadModel opens the checkpoint that the configuration names beside the one that serves, checks it, computes the
// most used items and then swaps the two. Requests in flight finish on the old checkpoint. If anything fails before
// the swap, nothing changes. A member of a cluster has all nodes do that, one after the other, unless the scope is
// node.
func (s *Service) ReloadModel(ctx context.Context, req *grebev1.ReloadModelRequest) (*grebev1.Model, error) {
	sl, err := s.slot(req.Model)
	if err != nil {
		return nil, err
	}
	all, err := s.everywhere(req.Scope)
	if err != nil {
		return nil, err
	}
	if all {
		return s.rollOut(ctx, sl, false, req.Wait)
	}
	r, err := s.startReload(sl, nil)
	if err != nil {
		return nil, err
	}
	return s.describeWhen(ctx, sl, r, req.Wait)
}

// RollbackModel returns to the checkpoint before the one that serves, with the settings that it had. During a trial
// this is immediate. Otherwise it is a reload from the old folder.
func (s *Service) RollbackModel(ctx context.Context, req *grebev1.RollbackModelRequest) (*grebev1.Model, error) {
	sl, err := s.slot(req.Model)
	if err != nil {
		return nil, err
	}
	all, err := s.everywhere(req.Scope)
	if err != nil {
		return nil, err
	}
	if all {
		return s.rollOut(ctx, sl, true, req.Wait)
	}
	r, err := s.startRollback(sl)
	if err != nil {
		return nil, err
	}
	return s.describeWhen(ctx, sl, r, req.Wait)
}

// describeWhen describes a model at once or, with wait, when its reload ended. A failed reload is an error only with
// wait.
func (s *Service) describeWhen(ctx context.Context, sl *slot, r *reloading, wait bool) (*grebev1.Model, error) {
	if wait {
		limit := time.NewTimer(s.cfg.ReloadWait)
		defer limit.Stop()
		select {
		case <-r.ended:
		case <-limit.C: // the reload goes on; Model reports its progress
		case <-ctx.Done():
			return nil, AsError(ctx.Err())
		}
		if now := r.describe(); now.State == "failed" {
			return nil, Errorf(Conflict, "", "the checkpoint stays as it was: %s", now.Error)
		}
	}
	return s.describeModel(sl), nil
}

// startReload begins a reload, unless one is running. back is the checkpoint to return to, or nil.
func (s *Service) startReload(sl *slot, back *served) (*reloading, error) {
	if s.cfg.Loader == nil {
		return nil, Errorf(Unprocessable, "", "this server cannot load another checkpoint")
	}
	r := &reloading{began: time.Now(), ended: make(chan struct{}), again: make(chan struct{})}
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if sl.reload != nil && !sl.reload.over() {
		return nil, Errorf(Conflict, "", "model %q is being reloaded: %s", sl.name, sl.reload.describe().State)
	}
	if s.changing.Err() != nil {
		return nil, Errorf(Unavailable, "", "shutting down")
	}
	r.now.From = sl.now.Version
	r.at("loading")
	sl.reload = r
	s.background.Go(func() { s.reload(sl, r, back) })
	return r, nil
}

// reload runs a reload and logs how it ended.
func (s *Service) reload(sl *slot, r *reloading, back *served) {
	s.log.Info("reloading", "model", sl.name, "from", r.now.From)
	outcome := "done"
	err := s.replace(s.changing, sl, r, back)
	// Frees the matrices of the checkpoint that is gone, which lie outside of Go's heap, and gives memory back.
	debug.FreeOSMemory()
	switch {
	case errors.Is(err, errBack):
		outcome = "rolled_back"
	case err != nil:
		outcome = "failed"
	}
	r.unchanged.Store(errors.Is(err, ErrUnchanged))
	r.set(func(now *grebev1.Reload) {
		now.State, now.Progress, now.Seconds = outcome, 1, time.Since(r.began).Seconds()
		if outcome == "failed" {
			now.Error = err.Error()
		}
	})
	s.lifecycle.reloads.WithLabelValues(sl.name, outcome).Inc()
	st := r.describe()
	stopped := err != nil && s.changing.Err() != nil
	if errors.Is(err, ErrUnchanged) || errors.Is(err, errBack) || stopped { // as requested, or logged already
		s.log.Warn("a reload ended without a new checkpoint", "model", sl.name, "outcome", outcome, "reason", err,
			"seconds", st.Seconds)
	} else if err != nil {
		s.log.Error("a reload ended without a new checkpoint", "model", sl.name, "outcome", outcome, "reason", st.Error,
			"seconds", st.Seconds)
	} else {
		s.log.Info("reloaded", "model", sl.name, "version", st.To, "warmed_items", st.WarmedItems, "seconds", st.Seconds)
	}
	close(r.ended)
}

// errBack means that a trial was rolled back.
var errBack = errors.New("rolled back")

// replace opens another checkpoint and makes it serve.
func (s *Service) replace(ctx context.Context, sl *slot, r *reloading, back *served) error {
	sl.expect()
	m, err := s.open(ctx, sl, back, r)
	if err != nil {
		sl.expectNone()
		return err
	}
	next := newCheckpoint(m)
	m.trace(s.cfg.Tracer)
	r.set(func(now *grebev1.Reload) { now.To = m.Version })
	if err := s.catchUp(next, sl.bring(next)); err != nil {
		return errors.Join(err, s.dispose(ctx, sl, next))
	}
	if err := s.beside(sl.serving(), next, func() error { return s.ready(ctx, sl, next, r, back) }); err != nil {
		return errors.Join(err, s.dispose(ctx, sl, next))
	}
	old := sl.swap(next)
	r.at("trying")
	s.log.Info("the new checkpoint serves", "model", sl.name, "version", m.Version, "trial", s.cfg.Trial)
	trial := time.NewTimer(s.cfg.Trial)
	defer trial.Stop()
	select {
	case <-trial.C:
	case <-r.again:
	case <-ctx.Done():
		return errors.New("the server stopped while the checkpoint was on trial")
	}
	if !sl.keep() {
		return errors.Join(errBack, s.dispose(ctx, sl, next))
	}
	r.at("draining")
	return s.dispose(ctx, sl, old)
}

// catchUp removes the KV of users who were deleted while a checkpoint was opened.
func (s *Service) catchUp(next *checkpoint, deleted map[string]struct{}) error {
	if len(deleted) > mostDeleted {
		return fmt.Errorf("more than %d users were deleted while the checkpoint was opened: try again", mostDeleted)
	}
	return s.dropUsers(next, slices.Collect(maps.Keys(deleted)))
}

// open loads a checkpoint. A panic fails the reload, not the server.
func (s *Service) open(ctx context.Context, sl *slot, back *served, r *reloading) (m *Model, err error) {
	defer s.Rescue("reload", &err)
	if back != nil {
		return back.reopen(ctx, r.progress)
	}
	return s.cfg.Loader.Open(ctx, sl.name, r.progress)
}

// ready checks and warms a checkpoint before it serves. A panic fails the reload.
func (s *Service) ready(ctx context.Context, sl *slot, next *checkpoint, r *reloading, back *served) (err error) {
	defer s.Rescue("reload", &err)
	if back != nil && next.Version != back.version {
		return fmt.Errorf("the folder has version %s now, not %s which served before: its files changed", next.Version,
			back.version)
	}
	if s.cfg.Rests {
		return ctx.Err()
	}
	r.at("checking")
	if err := s.probe(ctx, next); err != nil {
		return fmt.Errorf("the new checkpoint does not answer: %w", err)
	}
	r.at("warming")
	if err := s.warm(ctx, sl.serving(), next, r); err != nil {
		return fmt.Errorf("compute items ahead: %w", err)
	}
	return ctx.Err()
}

// beside runs work of a new checkpoint. If that has a queue of its own, requests of the checkpoint that serves compete
// with it for the device, and its queue is told.
func (s *Service) beside(now, next *checkpoint, work func() error) error {
	if now.Queue != nil && now.Queue != next.Queue {
		defer now.Queue.Crowd()()
	}
	return work()
}

// dispose frees a checkpoint in beside after its last request. If the server stops first, closing it frees
// everything.
func (s *Service) dispose(ctx context.Context, sl *slot, c *checkpoint) error {
	sl.retire(c)
	select {
	case <-c.drained:
	case <-ctx.Done():
		return nil
	}
	sl.remove(c)
	if c.Retire == nil {
		return nil
	}
	err := c.Retire(ctx)
	if err != nil && ctx.Err() != nil {
		s.log.Warn("KV of a retired checkpoint stays on disk until the next start", "model", sl.name, "version", c.Version,
			"reason", err)
	} else if err != nil {
		s.log.Error("a retired checkpoint was not freed", "model", sl.name, "version", c.Version, "error", err)
	}
	return nil
}

// probes is the number of items in a request that checks a checkpoint.
const probes = 16

// probe sends a checkpoint all kinds of requests, with users and items of the catalog and made-up ones. Refused
// requests do not count as errors. Failures and results that are not finite do.
func (s *Service) probe(ctx context.Context, next *checkpoint) error {
	ask := func(f func(c *call) error) error {
		return ownFault(s.turns(probeTime, func(within time.Duration) error {
			return f(&call{op: "probe", start: time.Now(), deadline: within, model: next})
		}))
	}
	tokens, made := madeUp(next)
	users := []*grebev1.User{{Tokens: tokens}}
	for _, id := range askedFor(s.hotUsers, s.catalog.UserIDs, 3) {
		users = append(users, &grebev1.User{Id: id})
	}
	var known []*grebev1.Item
	for _, id := range askedFor(s.hotItems, s.catalog.ItemIDs, probes) {
		known = append(known, &grebev1.Item{Id: id})
	}
	for _, user := range users {
		defer s.serving(user.Id)()
		for _, candidates := range [][]*grebev1.Item{made, known} {
			for _, prefix := range []string{"user", "item", "blend"} { // blend comes last: it uses blocks that item made
				err := ask(func(c *call) error {
					_, err := s.rank(ctx, c, &grebev1.RankRequest{User: user, Candidates: candidates, Prefix: prefix})
					return err
				})
				if err != nil {
					return err
				}
			}
		}
		err := ask(func(c *call) error {
			_, err := s.recommend(ctx, c, &grebev1.RecommendRequest{User: user, N: probes, BeamWidth: probes})
			return err
		})
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// askedFor returns the n ids that requests name most, or any if there are none.
func askedFor(h *hot, some func(prefix string, limit int, random bool) ([]string, bool), n int) []string {
	var out []string
	for _, e := range h.top(n) {
		out = append(out, e.id)
	}
	if len(out) == 0 {
		out, _ = some("", n, false)
	}
	return out
}

// warm computes the most used items of the old checkpoint, within the budget.
func (s *Service) warm(ctx context.Context, old, next *checkpoint, r *reloading) error {
	if next.Cache == nil || old.Cache == nil || !next.ReadsTexts() || s.cfg.Warm == 0 {
		return nil
	}
	items := s.hottest(old)
	budget := int64(s.cfg.Warm * float64(next.Cache.Books().Total))
	list, total := make([][]int32, 0, len(items)), int64(0)
	for _, id := range items {
		it, ok := s.catalog.Item(id)
		if !ok {
			continue
		}
		tokens, err := next.Prompt.ItemTokens(it)
		if err != nil || len(tokens) == 0 {
			continue
		}
		if total += next.Cache.Bytes(len(tokens)); total > budget {
			break
		}
		list = append(list, tokens)
	}
	done := int64(0)
	_, _, err := next.Cache.Precompute(ctx, s.inTurn(next.Runner.Do), list, func(items, _ int) {
		done += int64(items)
		r.progress(done, int64(len(list)))
		r.set(func(now *grebev1.Reload) { now.WarmedItems = done })
	})
	return err
}

// hottest returns the items that a checkpoint has cached or that requests named, most used first.
func (s *Service) hottest(old *checkpoint) []string {
	rank := map[string]int{}
	for i, e := range s.hotItems.top(hotKept) {
		rank[e.id] = hotKept - i
	}
	type heat struct {
		id   string
		uses float64
		rank int
	}
	var all []heat
	for e := range s.catalog.All() {
		it := e.Item
		tokens, err := old.Prompt.ItemTokens(it)
		if err != nil || len(tokens) == 0 {
			continue
		}
		uses, cached := old.Cache.Heat(tokens)
		if cached || uses > 0 || rank[it.ID] > 0 {
			all = append(all, heat{it.ID, uses, rank[it.ID]})
		}
	}
	slices.SortStableFunc(all, func(a, b heat) int {
		if a.uses != b.uses {
			return compareDown(a.uses, b.uses)
		}
		return b.rank - a.rank
	})
	out := make([]string, len(all))
	for i := range all {
		out[i] = all[i].id
	}
	return out
}

func compareDown(a, b float64) int {
	if a > b {
		return -1
	}
	return 1
}

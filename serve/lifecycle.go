package serve

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// checkpoint is a model as it was loaded. Requests hold it while they use it.
type checkpoint struct {
	*Model
	loaded  time.Time
	refs    int           // requests in flight; guarded by the slot's lock
	retired bool          // it takes no more requests; guarded by the slot's lock
	drained chan struct{} // closed when it is retired and no request holds it
}

func newCheckpoint(m *Model) *checkpoint {
	return &checkpoint{Model: m, loaded: time.Now(), drained: make(chan struct{})}
}

// slot is a model by name: the checkpoint that serves, and others that are loaded beside it.
type slot struct {
	name string

	mu     sync.Mutex
	now    *checkpoint
	beside []*checkpoint // loaded too: not serving yet, kept during a trial, or draining
	held   *checkpoint   // the checkpoint to return to if the trial fails; nil: there is no trial
	before served        // the checkpoint before now
	reload *reloading    // the last reload; nil: there was none
	// Users deleted since the opening of a checkpoint began. It may have read KV of them and does not receive changes
	// yet. nil: none is being opened.
	deleted map[string]struct{}
}

// mostDeleted bounds the users that may be deleted while a checkpoint is opened.
const mostDeleted = 1 << 16

// expect starts to record deleted users, for a checkpoint that is being opened.
func (sl *slot) expect() {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	sl.deleted = map[string]struct{}{}
}

// expectNone stops recording if the checkpoint could not be opened.
func (sl *slot) expectNone() {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	sl.deleted = nil
}

// forgets records deleted users if a checkpoint is being opened.
func (sl *slot) forgets(ids []string) {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if sl.deleted == nil {
		return
	}
	for _, id := range ids {
		if len(sl.deleted) <= mostDeleted {
			sl.deleted[id] = struct{}{}
		}
	}
}

// served is a checkpoint that served before: how to open it again, and which version that must give.
type served struct {
	reopen  func(ctx context.Context, progress func(done, total int64)) (*Model, error)
	version string
}

// take returns the checkpoint that serves. The caller MUST release it.
func (sl *slot) take() *checkpoint {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	sl.now.refs++
	return sl.now
}

func (sl *slot) release(c *checkpoint) {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	c.refs--
	c.settle()
}

// settle closes drained if no request is left. The caller holds the slot's lock.
func (c *checkpoint) settle() {
	if c.retired && c.refs == 0 {
		close(c.drained)
	}
}

// serving returns the checkpoint that serves, to describe it. It does not hold it.
func (sl *slot) serving() *checkpoint {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	return sl.now
}

// Serving returns the version of the checkpoint that serves a model, or "" if there is no such model.
func (s *Service) Serving(model string) string {
	sl := s.models[model]
	if sl == nil {
		return ""
	}
	return sl.serving().Version
}

// hold returns all checkpoints that are not being freed. The caller MUST release each.
func (sl *slot) hold() []*checkpoint {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	var out []*checkpoint
	for _, c := range append(slices.Clone(sl.beside), sl.now) {
		if !c.retired || c.refs > 0 {
			c.refs++
			out = append(out, c)
		}
	}
	return out
}

// bring adds a checkpoint that does not serve yet. From then on it receives changes. It returns the users who were
// deleted while it was opened.
func (sl *slot) bring(c *checkpoint) (deleted map[string]struct{}) {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	sl.beside = append(sl.beside, c)
	deleted, sl.deleted = sl.deleted, nil
	return deleted
}

// swap makes a checkpoint that was brought serve. It holds the old one until keep or back.
func (sl *slot) swap(next *checkpoint) (old *checkpoint) {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	old = sl.now
	sl.exchange(next)
	sl.held = old
	return old
}

// exchange makes next, which is in beside, serve. The caller holds the lock.
func (sl *slot) exchange(next *checkpoint) {
	i := slices.Index(sl.beside, next)
	sl.beside[i], sl.now = sl.now, next
}

// back ends a trial: the held checkpoint serves again. It returns the reload that ended, or nil if there was no
// trial.
func (sl *slot) back(why string) *reloading {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if sl.held == nil {
		return nil
	}
	sl.exchange(sl.held)
	sl.held = nil
	sl.reload.rolledBack(why)
	return sl.reload
}

// keep ends a trial: the new checkpoint stays. It returns false if it was rolled back already.
func (sl *slot) keep() bool {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if sl.held == nil {
		return false
	}
	sl.before = served{sl.held.Reopen, sl.held.Version}
	sl.held = nil
	return true
}

// retire stops a checkpoint in beside from taking requests. drained is closed when its last request is done.
func (sl *slot) retire(c *checkpoint) {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	c.retired = true
	c.settle()
}

// remove removes a checkpoint from beside.
func (sl *slot) remove(c *checkpoint) {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	sl.beside = slices.DeleteFunc(sl.beside, func(o *checkpoint) bool { return o == c })
}

// onTrial reports whether a checkpoint serves on trial (now), or was rolled back (before).
func (sl *slot) onTrial(c *checkpoint) (now, before bool) {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	return sl.held != nil && sl.now == c, sl.now != c
}

// on answers a request with the checkpoint that serves. If a request fails on a checkpoint on trial, the checkpoint
// is rolled back and the one before it answers.
func on[R any](s *Service, op, model string, deadline int32, answer func(*call) (R, error)) (R, error) {
	s.underWay.Add(1)
	defer s.underWay.Add(-1)
	for {
		r, again, err := once(s, op, model, deadline, answer)
		if !again {
			return r, err
		}
	}
}

func once[R any](s *Service, op, model string, deadline int32,
	answer func(*call) (R, error)) (r R, again bool, err error) {
	c, err := s.begin(op, model, deadline)
	if err != nil {
		return r, false, err
	}
	defer c.slot.release(c.model)
	r, err = answer(c)
	return r, err != nil && AsError(err).code == Internal && s.distrust(c), err
}

// distrust rolls back a checkpoint on trial. It reports whether another one serves.
func (s *Service) distrust(c *call) bool {
	now, before := c.slot.onTrial(c.model)
	if now && c.slot.back("a request failed; the log says why") != nil {
		s.log.Error("a request failed on the new checkpoint during its trial: the previous one serves again",
			"model", c.slot.name,
			"version", c.model.Version)
		return true
	}
	return now || before
}

// lifecycleMetrics report loaded checkpoints and reloads. Labels are models of the configuration.
type lifecycleMetrics struct {
	slots                        []*slot
	loaded, age, state, progress *prometheus.Desc
	reloads                      *prometheus.CounterVec
}

func newLifecycleMetrics(slots []*slot) *lifecycleMetrics {
	label := []string{"model"}
	return &lifecycleMetrics{
		slots: slots,
		loaded: prometheus.NewDesc("grebe_model_checkpoints",
			"Checkpoints of a model that are loaded: more than one while it is reloaded.",
			label, nil),
		age: prometheus.NewDesc("grebe_model_age_seconds", "Time since the checkpoint that serves was loaded.", label, nil),
		state: prometheus.NewDesc("grebe_model_reloading",
			"1 while a model is reloaded, with what it is at: loading, checking, warming, trying or draining.",
			[]string{"model", "state"}, nil),
		progress: prometheus.NewDesc("grebe_model_reload_progress", "How far the state of a reload is, 0 to 1.", label, nil),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "grebe_model_reloads_total", Help: "Reloads of a model that ended: done, failed or rolled_back."},
			[]string{"model", "outcome"}),
	}
}

// Describe implements prometheus.Collector.
func (m *lifecycleMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.loaded, m.age, m.state, m.progress} {
		out <- d
	}
	m.reloads.Describe(out)
}

// Collect implements prometheus.Collector.
func (m *lifecycleMetrics) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, sl := range m.slots {
		sl.mu.Lock()
		n, since, r := 1+len(sl.beside), sl.now.loaded, sl.reload
		sl.mu.Unlock()
		gauge(m.loaded, float64(n), sl.name)
		gauge(m.age, time.Since(since).Seconds(), sl.name)
		if r != nil && !r.over() {
			st := r.describe()
			gauge(m.state, 1, sl.name, st.State)
			gauge(m.progress, st.Progress, sl.name)
		}
	}
	m.reloads.Collect(out)
}

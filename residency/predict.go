package residency

import (
	"encoding/binary"

	"grebe/evict"
	"grebe/plan"
)

// forecast predicts when the entries of one level are used again.
type forecast struct {
	*evict.Forecaster
	keys   [64]uint64 // keys to predict again
	models int64
}

const (
	leastRemembered = 1 << 10 // entries
	mostRemembered  = 1 << 18 // entries: half a million keys, about 100 MB
)

// newForecast remembers eight times as many keys as a level with these slots has entries, and twice as many for a large
// level.
func newForecast(slots int) *forecast {
	return &forecast{Forecaster: evict.NewGrowingForecaster(leastRemembered,
		min(max(slots, leastRemembered), mostRemembered))}
}

// teacher gathers training samples for one level at a time. Each use of an entry adds a few. The owner does the
// training: it takes a complete lesson from Lesson and returns the model with Trained.
type teacher[V any] struct {
	lesson *evict.Lesson
	of     *level[V] // whose samples are being gathered
	ready  *level[V] // whose lesson is complete
	busy   bool      // a lesson is gathered, waits or is trained on
}

func newTeacher[V any](levels []*level[V]) *teacher[V] {
	t := &teacher[V]{lesson: evict.NewLesson(levels[0].forecast.Forecaster)}
	for _, l := range levels {
		l.teach = t
	}
	return t
}

// gather adds samples to the lesson of a level. It begins a lesson when one is due and none is under way.
func (t *teacher[V]) gather(l *level[V]) {
	if !t.busy && l.forecast.Due() {
		t.busy, t.of = true, l
		t.lesson.Reset()
	}
	if t.of != l || t.lesson.Gather(l.forecast.Forecaster, l.now) {
		return
	}
	t.of, t.ready = nil, l
}

// Lesson returns a complete lesson and its level, once, or nil. Until Trained is called the lesson belongs to the
// caller.
func (c *Core[V]) Lesson() (*evict.Lesson, int) {
	if c.teach == nil || c.teach.ready == nil {
		return nil, 0
	}
	level := c.teach.ready.index
	c.teach.ready = nil
	return c.teach.lesson, level
}

// Trained uses the model of a lesson from now on. Nil means that the samples were too few.
func (c *Core[V]) Trained(level int, m *evict.Model) {
	c.teach.busy = false
	if m != nil {
		f := c.levels[level].forecast
		f.Use(m)
		f.models++
	}
}

// Floor compares the top level's policy with LRU. It returns false when the policy has no floor.
func (c *Core[V]) Floor() (evict.FloorStats, bool) {
	f, ok := c.top().policy.(*evict.Floor)
	if !ok {
		return evict.FloorStats{}, false
	}
	return f.Stats(), true
}

// Forecasts returns the tracker of prediction errors on the top level, and the number of trained models; nil without
// predictions.
func (c *Core[V]) Forecasts() (t *evict.Tracker, models int64) {
	if f := c.top().forecast; f != nil {
		return f.Tracker, f.models
	}
	return nil, 0
}

// predict returns the predicted time of the next use of an entry that is used now. There MUST be a forecast.
func (l *level[V]) predict(h *Held[V]) int64 {
	ret := l.forecast.Access(Hash(h.Key), l.now, h.context())
	l.teach.gather(l)
	return ret
}

// context describes an entry to the predictor.
func (h *Held[V]) context() evict.Context {
	// the number of tokens approximates the cost of computing it again
	tokens, bytes := float32(h.Tokens), float32(h.Bytes)
	if r := &h.request; r.prompt.Tokens() > 0 {
		return r.prompt.Context(int(r.before), h.Tokens, bytes, tokens)
	}
	return evict.Single(int(h.Kind), tokens, bytes, tokens)
}

// refresh makes new predictions for entries that were not used at the predicted time.
func (l *level[V]) refresh(slots []evict.Slot, returns []int64) {
	keys := l.forecast.keys[:len(slots)]
	for i, s := range slots {
		keys[i] = Hash(l.bySlot[s].Key)
	}
	l.forecast.Refresh(keys, l.now, returns)
}

// Hash returns the first 64 bits of a key, which is a digest.
func Hash(k plan.Key) uint64 { return binary.LittleEndian.Uint64(k[:]) }

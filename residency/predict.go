package residency

import (
	"encoding/binary"

	"grebe/evict"
	"grebe/plan"
)

// forecast predicts when the entries of one level are used again.
type forecast struct {
	*evict.Forecaster
	keys   [64]uint64 // of slots that want another prediction
	models int64
}

const (
	leastRemembered = 1 << 10 // entries
	mostRemembered  = 1 << 18 // entries: half a million keys, about 100 MB
)

// newForecast remembers keys of eight times the entries that a level of so many slots holds, and of large levels of twice as many.
func newForecast(slots int) *forecast {
	return &forecast{Forecaster: evict.NewGrowingForecaster(leastRemembered, min(max(slots, leastRemembered), mostRemembered))}
}

// teacher gathers what models are trained on, by the uses themselves, a few samples each, for one level at a time. Training is the owner's:
// it takes a lesson when Lesson has one and gives the model back by Trained.
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

// gather goes on with the lesson of a level, or begins one when it is due and no other is under way.
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

// Lesson returns a lesson that is complete and the level that it is of, once; nil: there is none. Until Trained nothing else touches it.
func (c *Core[V]) Lesson() (*evict.Lesson, int) {
	if c.teach == nil || c.teach.ready == nil {
		return nil, 0
	}
	level := c.teach.ready.index
	c.teach.ready = nil
	return c.teach.lesson, level
}

// Trained puts the model of a lesson into use; nil: there was too little to learn from.
func (c *Core[V]) Trained(level int, m *evict.Model) {
	c.teach.busy = false
	if m != nil {
		f := c.levels[level].forecast
		f.Use(m)
		f.models++
	}
}

// Floor says where the policy of the level where the device computes stands against LRU; false when the policy has no floor.
func (c *Core[V]) Floor() (evict.FloorStats, bool) {
	f, ok := c.top().policy.(*evict.Floor)
	if !ok {
		return evict.FloorStats{}, false
	}
	return f.Stats(), true
}

// Forecasts returns what knows how predictions did, of the level where the device computes, and how many models were
// trained; nil without predictions.
func (c *Core[V]) Forecasts() (t *evict.Tracker, models int64) {
	if f := c.top().forecast; f != nil {
		return f.Tracker, f.models
	}
	return nil, 0
}

// predict returns when an entry that is used now will be used next, as far as it is known.
func (l *level[V]) predict(h *Held[V]) int64 {
	f := l.forecast
	if f == nil {
		return 0
	}
	ret := f.Access(Hash(h.Key), l.now, h.context())
	l.teach.gather(l)
	return ret
}

// context describes an entry to the predictor.
func (h *Held[V]) context() evict.Context {
	tokens, bytes := float32(h.Tokens), float32(h.Bytes) // tokens are what it takes to compute it again, about
	if r := &h.request; r.prompt.Tokens() > 0 {
		return r.prompt.Context(int(r.before), h.Tokens, bytes, tokens)
	}
	return evict.Single(int(h.Kind), tokens, bytes, tokens)
}

// refresh predicts again for entries that were not used when predicted.
func (l *level[V]) refresh(slots []evict.Slot, returns []int64) {
	keys := l.forecast.keys[:len(slots)]
	for i, s := range slots {
		keys[i] = Hash(l.bySlot[s].Key)
	}
	l.forecast.Refresh(keys, l.now, returns)
}

// Hash names a key, which is a digest, in short.
func Hash(k plan.Key) uint64 { return binary.LittleEndian.Uint64(k[:]) }

package cache

import (
	"time"

	"grebe/evict"
	"grebe/plan"
	"grebe/residency"
)

// source predicts returns while a trace is replayed; nil: nothing does. Its clock counts requests.
type source interface {
	residency.Oracle
	// begin tells which trace is replayed. cached tells what the cache holds.
	begin(t *trace, cached func(key uint64) bool)
	// at tells which request is served.
	at(i int)
}

// clock is the request that is served.
type clock int64

func (c *clock) Now() int64 { return int64(*c) }
func (c *clock) at(i int)   { *c = clock(i) }

// known predicts from an array, request by request, and never again.
type known struct {
	clock
	next []int64
}

func (k *known) begin(*trace, func(uint64) bool) {}
func (k *known) Next(plan.Key) int64             { return k.next[k.clock] }

func perfect(t *trace) *known { return &known{next: evict.NextUses(t.keys)} }

// learnt predicts with a model trained on the way.
type learnt struct {
	clock
	f      *evict.Forecaster
	d      *describer
	late   []uint64
	took   time.Duration
	models int
}

func newLearnt(k int) *learnt { return &learnt{f: evict.NewForecaster(k)} }

func (l *learnt) begin(t *trace, cached func(uint64) bool) { l.d = newDescriber(t, cached) }

func (l *learnt) Next(key plan.Key) int64 {
	ret := l.f.Access(residency.Hash(key), l.Now(), l.d.context(int(l.clock)))
	if l.f.Due() {
		start := time.Now()
		l.f.Learn(l.Now(), evict.TrainParams{})
		l.took += time.Since(start)
		l.models++
	}
	return ret
}

// Revise predicts again for entries that did not return when predicted.
func (l *learnt) Revise(keys []plan.Key, next []int64) {
	l.late = l.late[:0]
	for _, k := range keys {
		l.late = append(l.late, residency.Hash(k))
	}
	l.f.Refresh(l.late, l.Now(), next)
}

package embed

import (
	"math"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"grebe/evict"
)

// forecast is a table of predictions: by age and counts, log2 of the accesses until a row returns, in
// sixteenths. It never changes.
type forecast [cells]int16

const waitUnit = 16

// wait predicts for a stamp as it stands at a time.
func (f *forecast) wait(m stamp, now uint32) int16 {
	age := now - m.last()
	if int32(age) < 0 {
		age = 0
	}
	return f[cell(ageBin(age), countBin(m.short()), countBin(m.long()))]
}

// learner predicts from what it heard of some keys when a row of a given age and counts returns.
type learner struct {
	listener
	scale   scale
	table   atomic.Pointer[forecast]
	trained atomic.Int64

	// The rest is the goroutine's own.
	keys     map[uint64]watchedKey
	ring     []interval
	next     int // intervals so far
	due      int // train when there are so many
	horizon  int64
	patience float64
	rand     *rand.Rand
}

type watchedKey struct {
	m        stamp
	interval int // number of the one that its last use began
}

// interval begins with a use; wait is the time to the next one, −1 until it came.
type interval struct {
	m    stamp
	wait int64
}

const (
	ringLen      = 1 << 15
	maxWatched   = 1 << 15
	firstLesson  = 1 << 11
	patienceRows = 12      // what returns after much more accesses than this, per row of the cache, is not worth a place
	lessonLen    = 1 << 13 // intervals that a lesson is made of
	spanned      = 32      // accesses that the ring spans at least, per row of the cache
	restFactor   = 20      // training takes at most one part in so many of a core
)

func newLearner(rows int) *learner {
	l := &learner{
		listener: newListener(), scale: scaleFor(rows),
		keys: make(map[uint64]watchedKey), ring: make([]interval, ringLen), due: firstLesson, horizon: int64(rows) * 32,
		patience: float64(rows) * patienceRows,
		rand:     rand.New(rand.NewPCG(1, uint64(rows))),
	}
	shift := 0
	for rows>>shift > ringLen/spanned && shift < 20 { // so that the ring spans what is worth knowing
		shift++
	}
	l.mask.Store(share(shift))
	return l
}

func (l *learner) start() {
	l.closed.Go(func() {
		for {
			select {
			case <-l.done:
				return
			case <-l.wake:
			}
			begin := time.Now()
			if l.study() {
				l.rest(restFactor * time.Since(begin))
			}
		}
	})
}

// rest goes on watching, but does not train.
func (l *learner) rest(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return
		case <-l.done:
			return
		case <-l.wake:
			l.watchAll()
		}
	}
}

// study takes what was handed over and trains when enough has come. It reports whether it trained.
func (l *learner) study() bool {
	l.watchAll()
	if l.next < l.due {
		return false
	}
	l.due = l.next + max(firstLesson, min(l.next/2, ringLen/4))
	return l.train()
}

func (l *learner) watchAll() { l.each(l.watch) }

func (l *learner) watch(h, at uint64) {
	a := struct {
		h   uint64
		now uint32
	}{h, uint32(at)}
	if !l.hears(a.h) {
		return
	}
	w, known := l.keys[a.h]
	if !known {
		if len(l.keys) >= maxWatched {
			l.forget(a.now)
		}
		w = watchedKey{m: newStamp(a.now, 0, 0)}
	} else if i := &l.ring[w.interval%ringLen]; w.interval > l.next-ringLen {
		i.wait = int64(max(1, int32(a.now-w.m.last())))
	}
	w.m = l.scale.use(w.m, a.now)
	l.ring[l.next%ringLen] = interval{w.m, -1}
	w.interval = l.next
	l.keys[a.h] = w
	l.next++
}

// forget drops keys that have not come back for a horizon, and when that is not enough watches half as many.
func (l *learner) forget(now uint32) {
	for h, w := range l.keys {
		if int64(now-w.m.last()) > l.horizon {
			delete(l.keys, h)
		}
	}
	if len(l.keys) < maxWatched/2 {
		return
	}
	mask := l.mask.Load()
	l.mask.Store(mask | mask<<1 | 1<<40)
	for h := range l.keys {
		if !l.hears(h) {
			delete(l.keys, h)
		}
	}
}

// train makes samples of intervals that began long enough ago, returned or not, and replaces the table.
func (l *learner) train() bool {
	xs, ys := l.lesson()
	if len(xs) < firstLesson/2 {
		return false
	}
	model := evict.Train(xs, ys, evict.TrainParams{Depth: 6, Trees: 24, Seed: uint64(l.next)})
	l.table.Store(tabulate(model, l.patience))
	l.trained.Add(1)
	return true
}

func (l *learner) lesson() (xs []evict.Sample, ys []float32) {
	first := max(0, l.next-ringLen)
	last := l.ring[(l.next-1)%ringLen].m.last()
	horizon := min(l.horizon, int64(last-l.ring[first%ringLen].m.last())/2)
	if horizon < l.horizon/8 { // too short to tell what is worth a place
		return nil, nil
	}
	step := 1 + (l.next-first)/lessonLen
	for n := first; n < l.next; n += step {
		i := &l.ring[n%ringLen]
		if int64(last-i.m.last()) <= horizon {
			break
		}
		wait := i.wait
		if wait < 0 || wait > horizon {
			wait = 2 * horizon
		}
		age := int64(0)
		for age < min(wait, horizon) { // right after the use, and at ages that it reached
			xs = append(xs, sample(float64(age), i.m))
			ys = append(ys, float32(math.Exp(-float64(wait-age)/l.patience)))
			age = int64(float64(max(age, 1<<6)) * (1 + 6*l.rand.Float64()))
		}
	}
	return xs, ys
}

// sample describes a stamp by the middles of its bins, as tabulate does.
func sample(age float64, m stamp) evict.Sample {
	return describe(ageBin(uint32(age)), countBin(m.short()), countBin(m.long()))
}

func describe(age, short, long int) (x evict.Sample) {
	x[0], x[1], x[2] = float32(age), float32(short), float32(long)
	return x
}

// tabulate asks the model for every cell.
func tabulate(m *evict.Model, patience float64) *forecast {
	var f forecast
	var xs [countBins]evict.Sample
	var ys [countBins]float32
	for a := range ageBins {
		for s := range countBins {
			for l := range countBins {
				xs[l] = describe(a, s, l)
			}
			m.Predict(xs[:], ys[:])
			for l, y := range ys {
				y := min(max(float64(y), 1e-4), 1-1e-4)
				f[cell(a, s, l)] = int16(math.Log2(patience*(1-y)/y) * waitUnit)
			}
		}
	}
	return &f
}

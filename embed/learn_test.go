package embed

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"grebe/evict"
)

// A learner watches some keys and notes after how long each returns.
func TestALearnerWatches(t *testing.T) {
	l := newLearner(100)
	if l.mask.Load() != 0 || l.horizon != 3200 || l.patience != 1200 || l.due != firstLesson {
		t.Errorf("of a small cache: mask %x, horizon %d, patience %v", l.mask.Load(), l.horizon, l.patience)
	}
	if big := newLearner(ringLen / spanned * 4); bits.OnesCount64(big.mask.Load()) != 2 ||
		bits.TrailingZeros64(big.mask.Load()) != 40 {
		t.Errorf("of a cache four times as large: mask %x", big.mask.Load())
	}
	for i, at := range []uint64{10, 15, 40, 41} {
		l.watch([]uint64{1, 2, 1, 3}[i], at)
	}
	if l.next != 4 || l.ring[0].wait != 30 || l.ring[1].wait != -1 || l.ring[2].wait != -1 || len(l.keys) != 3 {
		t.Errorf("%d intervals: %+v", l.next, l.ring[:4])
	}
	if m := l.ring[2].m; m.last() != 40 || m.short() <= oneUse || m.short() > 2*oneUse {
		t.Errorf("the second use is at %d, with a count of %d", m.last(), m.short())
	}
	l.watch(1, 40) // at the same moment
	if l.ring[2].wait != 1 {
		t.Errorf("a return at once is after %d", l.ring[2].wait)
	}
	l.mask.Store(1)
	if l.watch(5, 50); l.next != 5 {
		t.Error("a key that is not listened to is watched")
	}
	l.mask.Store(0)
	// An interval whose place another has taken is not touched.
	for i := range uint64(ringLen) {
		l.watch(1000+i, 100)
	}
	place := l.keys[3].interval % ringLen
	before := l.ring[place]
	l.watch(3, 200)
	if l.ring[place] != before {
		t.Errorf("the interval of another key became %+v", l.ring[place])
	}
}

// A learner of too many keys forgets those that have not come back, and listens to fewer where that is not enough.
func TestALearnerForgets(t *testing.T) {
	l := newLearner(100)
	for i := range uint64(maxWatched) {
		l.watch(mix(i), 10)
	}
	if len(l.keys) != maxWatched {
		t.Fatalf("%d keys", len(l.keys))
	}
	l.watch(mix(1<<40), uint64(11+l.horizon))
	if len(l.keys) != 1 || l.mask.Load() != 0 {
		t.Errorf("%d keys are left after a horizon, mask %x", len(l.keys), l.mask.Load())
	}
	l = newLearner(100)
	for i := range uint64(maxWatched) {
		l.watch(mix(i), 10)
	}
	l.watch(mix(1<<40), 10+uint64(l.horizon)) // all may still come back
	if n := len(l.keys); n < maxWatched/2-1000 || n > maxWatched/2+1000 || l.mask.Load() != 1<<40 {
		t.Errorf("%d keys are left, mask %x; want half of them", n, l.mask.Load())
	}
	for h := range l.keys {
		if !l.hears(h) && h != mix(1<<40) {
			t.Fatal("a key is kept that is not listened to")
		}
	}
	for h := range l.keys {
		if len(l.keys) < maxWatched/2 {
			break
		}
		delete(l.keys, h)
	}
	l.forget(10)
	if l.mask.Load() != 1<<40 {
		t.Errorf("fewer are listened to though there is room: mask %x", l.mask.Load())
	}
}

// Predictions of a learner: what returned soon is predicted to return sooner than what did not.
func TestALearnerPredicts(t *testing.T) {
	const rows = 100
	l := newLearner(rows)
	if l.study() || l.table.Load() != nil {
		t.Error("it learned from nothing")
	}
	r := rand.New(rand.NewPCG(3, 4))
	now, once := uint64(1), uint64(1<<32)
	for range 20_000 {
		now++
		if r.IntN(2) == 0 {
			l.record([]access{{r.Uint64N(50), now}}) // hot
		} else {
			once++
			l.record([]access{{once, now}})
		}
		if len(l.inbox) > inboxLen/2 {
			l.study()
		}
	}
	if !l.study() && l.trained.Load() == 0 {
		t.Fatal("it learned nothing")
	}
	if l.due <= l.next && l.due > l.next+ringLen {
		t.Errorf("the next lesson is at %d of %d", l.due, l.next)
	}
	f := l.table.Load()
	at := uint32(now)
	hot, cold := newStamp(at, 40*oneUse, 100*oneUse), newStamp(at, oneUse, oneUse)
	if h, c := f.wait(hot, at), f.wait(cold, at); h >= c {
		t.Errorf("a hot row is predicted to return after 2^(%d/16), one that was used once after 2^(%d/16)", h, c)
	}
	if f.wait(hot, at) != f.wait(hot, at-5) {
		t.Error("a use that overtook changes the prediction")
	}
}

// Lessons are made of intervals that are old enough: those that did not return count as long.
func TestLessons(t *testing.T) {
	l := newLearner(100)
	fill := func(n int, each uint64) {
		for i := range n {
			l.watch(uint64(i%40), uint64(i)*each)
		}
	}
	fill(100, 1)
	if xs, _ := l.lesson(); xs != nil {
		t.Errorf("%d samples of a time too short", len(xs))
	}
	if l.train() {
		t.Error("it trained on nothing")
	}
	l = newLearner(100)
	fill(8000, 1) // each key returns after 40
	xs, ys := l.lesson()
	if len(xs) == 0 || len(xs) != len(ys) {
		t.Fatalf("%d samples with %d values", len(xs), len(ys))
	}
	soon := float32(math.Exp(-40 / l.patience))
	for i, y := range ys {
		if xs[i][0] == 0 && math.Abs(float64(y-soon)) > 1e-3 {
			t.Fatalf("a row that returns after 40 is worth %v, want %v", y, soon)
		}
	}
	// Keys that never return are worth next to nothing.
	l = newLearner(100)
	for i := range uint64(8000) {
		l.watch(i, i)
	}
	_, ys = l.lesson()
	if len(ys) == 0 || slices.Max(ys) > .2 {
		t.Errorf("rows that do not return are worth up to %v", slices.Max(append(ys, 0)))
	}
}

// The wait of a listener's goroutine is bounded, and so is what it holds.
func TestListeners(t *testing.T) {
	l := newListener()
	as := make([]access, inboxLen/4-1)
	if l.record(as); len(l.wake) != 0 || len(l.inbox) != len(as) {
		t.Errorf("woken by %d", len(l.inbox))
	}
	if l.record(as[:1]); len(l.wake) != 1 {
		t.Errorf("not woken by %d", len(l.inbox))
	}
	for range 5 {
		l.record(as)
	}
	if len(l.inbox) != inboxLen {
		t.Errorf("%d accesses are held", len(l.inbox))
	}
	l.mask.Store(1)
	l.spare = nil
	n := 0
	l.inbox = []access{{1, 1}, {2, 2}, {3, 3}, {4, 4}}
	l.each(func(h, now uint64) {
		if n++; h != now || h%2 != 0 {
			t.Errorf("heard of %d at %d", h, now)
		}
	})
	if n != 2 || len(l.inbox) != 0 {
		t.Errorf("heard of %d, %d are left", n, len(l.inbox))
	}
	l.mu.Lock()
	l.record(as) // nobody waits
	l.mu.Unlock()
	if len(l.inbox) != 0 {
		t.Errorf("%d accesses were taken while the goroutine had the lock", len(l.inbox))
	}
	for shift, want := range map[int]uint64{0: 0, 1: 1 << 40, 3: 7 << 40} {
		if got := share(shift); got != want {
			t.Errorf("one in 2^%d: mask %x", shift, got)
		}
	}
	for rows, ones := range map[int]int{setSlots: 0, 255: 0, 256: 1, 1 << 12: 5, 1 << 30: mostShift} {
		tu := newTuner(evict.NewSlab(rows), rows)
		if got := bits.OnesCount64(tu.mask.Load()); got != ones {
			t.Errorf("of %d rows one key in 2^%d is heard of, want 2^%d", rows, got, ones)
		}
	}
}

// A cache of the default policy that is used tunes itself, and one that learns learns.
func TestCachesLearnByThemselves(t *testing.T) {
	for _, policy := range []string{"default", "laru"} {
		c := cacheOf(t, setSlots, policy)
		var row [testRow]byte
		r := rand.New(rand.NewPCG(1, 1))
		for c.Stats().Learned == 0 {
			k := r.Uint64N(40) * r.Uint64N(40)
			if !c.Get(k, row[:]) {
				c.Put(k, row[:], c.Epoch(k))
			}
		}
	}
}

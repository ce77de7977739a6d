package embed

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"grebe/evict"
)

// chooser finds the slot for a missed row in its set, whose lock the caller holds. It stamps the slot; false when the
// row is not worth the place of any.
type chooser interface {
	place(home int, s *set, h uint64, now uint32) (int, bool)
	removed(home int, s *set, slot int)
	opened(home int) // the set comes into use, empty
	setBytes() int   // memory per set
}

// oldest is LRU within the set.
type oldest struct{}

func (oldest) place(_ int, s *set, _ uint64, now uint32) (int, bool) {
	slot := s.empty()
	if slot < 0 {
		slot = s.oldest(now)
	}
	s.slots[slot].meta.Store(uint64(newStamp(now, oneUse, oneUse)))
	return slot, true
}

func (oldest) removed(int, *set, int) {}
func (oldest) opened(int)             {}
func (oldest) setBytes() int          { return 0 }

// oldest returns the slot whose last use is longest ago.
func (s *set) oldest(now uint32) int {
	slot, most := 0, int32(-1<<31)
	for i := range s.slots {
		if age := int32(now - s.stamp(i).last()); age > most {
			slot, most = i, age
		}
	}
	return slot
}

// forecasts evicts what is predicted to return last, the missed row itself included. What is predicted depends on a
// row's age and counts now, so it never grows stale by a row's own use; the table of predictions does, and is renewed
// off the path.
//
// The floor: one set in 16 also keeps the keys that LRU would hold there, and misses of those sets are counted
// against LRU's. When predictions lose by more than a margin, every set evicts as LRU does, and after a
// while those sets alone try predictions again; the while doubles each time that they lose again. So bad predictions
// cost some misses per trial, likely and not proven: keys that matter may all lie in other sets.
type forecasts struct {
	learner *learner
	history history
	shadows []shadow    // of sets 0, 16, 32, …
	lost    atomic.Bool // predictions lost: LRU chooses in the sets without a shadow
	resting atomic.Bool // and in those with one

	mu     sync.Mutex // a leaf
	credit int64
	limit  int64
	rest   int64 // misses of shadowed sets until the next trial
	pause  int64 // how many the next rest lasts
}

const shadowEvery = 16

// newForecasts is for a cache of so many sets at most, of which some are in use at first.
func newForecasts(most, sets int, l *learner) *forecasts {
	n := int64(sets+shadowEvery-1) / shadowEvery
	f := &forecasts{
		learner: l, history: newHistory(most), shadows: make([]shadow, (most+shadowEvery-1)/shadowEvery),
		limit: n * setSlots * creditUnit / 4,
	}
	f.pause = f.firstPause()
	return f
}

func (f *forecasts) setBytes() int {
	return remembered*8 + shadowBytes/shadowEvery
}

func (f *forecasts) removed(int, *set, int) {}

func (f *forecasts) opened(home int) {
	if home%shadowEvery == 0 {
		f.shadows[home/shadowEvery] = shadow{}
	}
}

// trusts reports whether predictions choose in a set.
func (f *forecasts) trusts(shadowed bool) bool {
	return !f.lost.Load() || shadowed && !f.resting.Load()
}

func (f *forecasts) place(home int, s *set, h uint64, now uint32) (int, bool) {
	m := f.learner.scale.use(f.history.get(home, h, now), now)
	table := f.learner.table.Load()
	shadowed := home%shadowEvery == 0
	if shadowed {
		f.account(f.shadows[home/shadowEvery].request(s, h, now))
	}
	slot := s.empty()
	if slot < 0 {
		switch {
		case table == nil || !f.trusts(shadowed):
			slot = s.oldest(now)
		default:
			slot = table.farthest(s, now, table.wait(m, now))
		}
		if slot < 0 {
			f.history.put(home, h, m)
			return 0, false
		}
		f.history.put(home, s.slots[slot].key.Load(), s.stamp(slot))
	}
	s.slots[slot].meta.Store(uint64(m))
	return slot, true
}

// account moves the credit: predictions gain a unit for a miss that only LRU has, lose one for a miss of their own,
// and may lose one per 256 of LRU's hits for good. It is cut at both ends, so that neither old gains nor
// old losses decide for long.
func (f *forecasts) account(ours, lru, lruHits int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rest > 0 {
		if f.rest--; f.rest == 0 {
			f.credit = -f.limit / 2
			f.resting.Store(false)
		}
		return
	}
	f.credit = min(f.credit+int64(lru-ours)*creditUnit+int64(lruHits), f.limit)
	switch {
	case f.credit <= -f.limit || f.credit < 0 && !f.lost.Load():
		f.rest, f.pause = f.pause, min(2*f.pause, 64*f.firstPause())
		f.lost.Store(true)
		f.resting.Store(true)
	case f.credit > f.limit/2 && f.lost.Load():
		f.lost.Store(false)
		f.pause = f.firstPause()
	}
}

func (f *forecasts) firstPause() int64 { return 16 * f.limit / creditUnit }

const creditUnit = 256

// shadow is the keys that LRU would hold in a set, the most recent first.
type shadow struct {
	keys [setSlots]uint64
	n    int
	seen uint32 // uses up to then are counted
}

const shadowBytes = setSlots*8 + 16

// request replays uses of cached rows since the last miss in the set, in their order, then the miss. A row that was
// used several times counts once, for both sides.
func (w *shadow) request(s *set, missed uint64, now uint32) (ours, lru, lruHits int) {
	var used [setSlots]int
	n := 0
	for i := range s.slots {
		if s.tag(i) != 0 && int32(s.stamp(i).last()-w.seen) > 0 {
			used[n] = i
			n++
		}
	}
	slices.SortFunc(used[:n], func(a, b int) int {
		return cmp.Compare(int32(s.stamp(a).last()-w.seen), int32(s.stamp(b).last()-w.seen))
	})
	for _, slot := range used[:n] {
		if w.use(s.slots[slot].key.Load()) {
			lruHits++
		} else {
			lru++
		}
	}
	if w.use(missed) {
		lruHits++
	} else {
		lru++
	}
	w.seen = now
	return 1, lru, lruHits
}

// use reports whether LRU has the key, and makes it the most recent.
func (w *shadow) use(h uint64) bool {
	at := slices.Index(w.keys[:w.n], h)
	hit := at >= 0
	if !hit {
		w.n = min(w.n+1, setSlots)
		at = w.n - 1
	}
	copy(w.keys[1:at+1], w.keys[:at])
	w.keys[0] = h
	return hit
}

// adapted runs a policy of package evict in each set. Hits take no lock: the policy hears of them, the last use of
// each row in order, when its set next misses.
type adapted struct {
	name    string
	learner *learner
	history history
	sets    []adaptedSet
}

type adaptedSet struct {
	policy evict.Policy
	now    int64 // the clock does not wrap around here
}

func newAdapted(name string, most int, l *learner) *adapted {
	return &adapted{name: name, learner: l, history: newHistory(most), sets: make([]adaptedSet, most)}
}

func (a *adapted) opened(home int) {
	p, err := evict.New(a.name, evict.Config{Slots: setSlots, Bytes: setSlots})
	if err != nil {
		panic(err) // Config.Validate made one
	}
	a.sets[home] = adaptedSet{policy: p}
}

// setBytes is an estimate: a policy keeps about 130 bytes per slot.
func (a *adapted) setBytes() int { return remembered*8 + setSlots*130 }

func (a *adapted) removed(home int, s *set, slot int) { a.sets[home].policy.Remove(int32(slot)) }

func (a *adapted) place(home int, s *set, h uint64, now uint32) (int, bool) {
	t := &a.sets[home]
	begin := t.now
	a.replay(t, s)
	m := a.learner.scale.use(a.history.get(home, h, now), now)
	t.now = max(t.now, begin+int64(int32(now-uint32(begin))))
	acc := a.access(h, m, t.now)
	t.policy.Miss(acc)
	slot := s.empty()
	if slot < 0 {
		victim, _ := t.policy.Victim(nil)
		slot = int(victim)
		a.history.put(home, s.slots[slot].key.Load(), s.stamp(slot))
	}
	t.policy.Insert(int32(slot), acc)
	s.slots[slot].meta.Store(uint64(m))
	return slot, true
}

func (a *adapted) access(h uint64, m stamp, now int64) evict.Access {
	acc := evict.Access{Key: h, Bytes: 1, Now: now, Return: now}
	if table := a.learner.table.Load(); table != nil {
		acc.Return = evict.Return(now, float32(table.wait(m, m.last()))/waitUnit)
	}
	return acc
}

func (a *adapted) replay(t *adaptedSet, s *set) {
	var used [setSlots]int32
	n, begin := 0, t.now
	since := func(i int32) int32 { return int32(s.stamp(int(i)).last() - uint32(begin)) }
	for i := range int32(setSlots) {
		if s.tag(int(i)) != 0 && since(i) > 0 {
			used[n] = i
			n++
		}
	}
	slices.SortFunc(used[:n], func(x, y int32) int { return cmp.Compare(since(x), since(y)) })
	for _, i := range used[:n] {
		t.now = max(t.now, begin+int64(since(i)))
		t.policy.Hit(i, a.access(s.slots[i].key.Load(), s.stamp(int(i)), t.now))
	}
}

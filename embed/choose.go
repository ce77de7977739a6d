package embed

import (
	"cmp"
	"math"
	"slices"
	"unsafe"

	"grebe/evict"
	"grebe/internal/offheap"
)

// chooser finds the slot for a missed row in its set, whose lock the caller holds. It stamps the slot; false when the
// row is not worth the place of any.
type chooser interface {
	place(home int, s *set, h, now uint64) (int, bool)
	use(word, now uint64) uint64             // the stamp after another use; takes no lock
	steady(now uint64, share float32) uint64 // the stamp of a row that is used so often
	ask(home int, s *set, h uint64)          // for the memory that place looks at
	hint(home int, s *set)                   // asks for more of it, when that which was asked for is there; takes no lock
	// asks for the rest, some time after hint; the slot that place would choose, −1: not known
	next(home int, s *set) int
	removed(home int, s *set, slot int)
	opened(home int)                      // the set comes into use, empty
	expect(home int, h, word, now uint64) // a row with that stamp is coming from another set
	setBytes() int                        // memory per set
}

// oldest is LRU within the set: a stamp is the time of the last use.
type oldest struct{}

func (oldest) place(_ int, s *set, _, now uint64) (int, bool) {
	slot := s.empty()
	if slot < 0 {
		least := uint64(math.MaxUint64)
		for i := range s.slots {
			if at := s.slots[i].meta.Load(); at < least {
				slot, least = i, at
			}
		}
	}
	s.slots[slot].meta.Store(now)
	return slot, true
}

func (oldest) use(_, now uint64) uint64            { return now }
func (oldest) steady(now uint64, _ float32) uint64 { return now }
func (oldest) ask(_ int, s *set, _ uint64)         { prefetch(unsafe.Pointer(&s.slots), setBytes-setHead) }
func (oldest) hint(int, *set)                      {}
func (oldest) next(int, *set) int                  { return -1 }
func (oldest) removed(int, *set, int)              {}
func (oldest) opened(int)                          {}
func (oldest) expect(int, uint64, uint64, uint64)  {}
func (oldest) setBytes() int                       { return 0 }

// valued does what an evict.SlabSet decides for each set: the row that is worth least makes room, or the missed row is
// declined. Its tuner listens to some keys and says off the path how rows are valued; that may be stale.
type valued struct {
	slab  evict.Slab
	tuner *tuner
	sets  []evict.SlabSet
}

func newValued(most, rows int) (*valued, *offheap.Block, error) {
	slab := evict.NewSlab(rows)
	sets, block, err := makeBooks[evict.SlabSet](most)
	return &valued{slab: slab, tuner: newTuner(slab, rows), sets: sets}, block, err
}

func (v *valued) setBytes() int { return int(unsafe.Sizeof(evict.SlabSet{})) }

// ask leaves out stamps: most places are chosen without a look at all.
func (v *valued) ask(home int, _ *set, h uint64) {
	t := &v.sets[home]
	prefetch(unsafe.Pointer(t), 1)
	prefetch(unsafe.Pointer(t.Ask(h)), 1)
}

// hint asks for the stamps of those that go next. What it reads may be changing.
func (v *valued) hint(home int, s *set) {
	if raceBuild {
		return
	}
	for _, slot := range v.sets[home].Waiting() {
		prefetch(unsafe.Pointer(&s.slots[slot%setSlots]), 16)
	}
}

// next asks for what is remembered of the row that goes, or for all stamps where one is looked for.
func (v *valued) next(home int, s *set) int {
	if raceBuild {
		return -1
	}
	t := &v.sets[home]
	slot, ok := t.Next(v.slab, s)
	if !ok {
		prefetch(unsafe.Pointer(&s.slots), setBytes-setHead)
		return -1
	}
	prefetch(unsafe.Pointer(t.Ask(s.slots[slot].key.Load())), 1)
	return slot
}

func (v *valued) removed(int, *set, int) {}

func (v *valued) opened(home int) { v.sets[home] = evict.SlabSet{} }

func (v *valued) expect(home int, h, word, now uint64) {
	v.sets[home].Expect(v.slab, h, evict.Stamp(word), now, evict.Mode(v.tuner.mode.Load()))
}

func (v *valued) use(word, now uint64) uint64 { return uint64(v.slab.Use(evict.Stamp(word), now)) }

func (v *valued) steady(now uint64, share float32) uint64 {
	return uint64(v.slab.Steady(now, float64(share)))
}

func (v *valued) place(home int, s *set, h, now uint64) (int, bool) {
	slot, m, ok := v.sets[home].Place(v.slab, h, now, evict.Mode(v.tuner.mode.Load()), s)
	if ok {
		s.slots[slot].meta.Store(uint64(m))
	}
	return slot, ok
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

func (a *adapted) ask(home int, s *set, h uint64) {
	prefetch(unsafe.Pointer(&s.slots), setBytes-setHead)
	prefetch(unsafe.Pointer(a.history.at(home, h)), 1)
}

func (a *adapted) hint(int, *set)     {}
func (a *adapted) next(int, *set) int { return -1 }

func (a *adapted) opened(home int) {
	p, err := evict.New(a.name, evict.Config{Slots: setSlots, Bytes: setSlots})
	if err != nil {
		panic(err) // Config.Validate made one
	}
	a.sets[home] = adaptedSet{policy: p}
}

func (a *adapted) expect(home int, h, word, _ uint64) { a.history.put(home, h, stamp(word)) }

func (a *adapted) use(word, now uint64) uint64 {
	return uint64(a.learner.scale.use(stamp(word), uint32(now)))
}

func (a *adapted) steady(now uint64, share float32) uint64 {
	count := func(halfLife int) uint16 {
		return uint16(min(max(float64(share)*math.Exp2(float64(halfLife))/math.Ln2, 1)*oneUse, math.MaxUint16))
	}
	return uint64(newStamp(uint32(now), count(a.learner.scale.short), count(a.learner.scale.long)))
}

// setBytes is an estimate: a policy keeps about 130 bytes per slot.
func (a *adapted) setBytes() int { return remembered*8 + setSlots*130 }

func (a *adapted) removed(home int, s *set, slot int) { a.sets[home].policy.Remove(int32(slot)) }

func (a *adapted) place(home int, s *set, h, at uint64) (int, bool) {
	now := uint32(at)
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

package embed

import (
	"hash/fnv"
	"math/rand/v2"
	"testing"

	"grebe/evict"
)

// The places that rows get, and the rows that get none, are those that were chosen when the digest was taken, with each
// way to value rows, while sets come and rows move between them.
func TestChosenPlaces(t *testing.T) {
	const sets = 4
	v, block, err := newValued(sets, sets*setSlots)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if block != nil {
			block.Free()
		}
	}()
	all := make([]set, sets)
	r := rand.New(rand.NewPCG(11, 12))
	d := fnv.New64a()
	now, declined := uint64(1000), 0
	for step := range 30000 {
		now += r.Uint64N(5)
		if step%6000 == 0 {
			v.tuner.mode.Store(int32(evict.Mode(step / 6000)))
		}
		home := r.IntN(sets)
		s := &all[home]
		h := mix(uint64(r.IntN(100))*r.Uint64N(8) + 1)
		switch at := s.find(h); {
		case step%997 == 0:
			v.opened(home)
			s.clearAll()
		case step%31 == 0:
			v.expect(home, h, uint64(v.slab.First(now)), now)
		case at >= 0:
			s.slots[at].meta.Store(v.use(s.slots[at].meta.Load(), now))
		default:
			slot, ok := v.place(home, s, h, now)
			if ok {
				s.set(slot, h)
			} else {
				declined++
			}
			meta := uint64(0)
			if ok {
				meta = s.slots[slot].meta.Load()
			}
			d.Write([]byte{byte(slot), byte(meta), byte(meta >> 8), byte(meta >> 20), byte(meta >> 40)})
		}
	}
	const want = 0x27f6fc70ca738c39
	if got := d.Sum64(); got != want || declined < 100 {
		t.Errorf("the places have digest %#x, want %#x; %d rows have none", got, uint64(want), declined)
	}
}

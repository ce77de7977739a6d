package schedule

// slots maps request ids to slots. It uses linear probing in a table at most half full, and deletion by shifting back.
// Unlike a map it never allocates, however many requests come and go.
type slots struct {
	ids  []uint64
	slot []int32 // -1: free
	mask uint64
}

func newSlots(capacity int) slots {
	size := 2
	for size < 2*capacity {
		size *= 2
	}
	s := slots{ids: make([]uint64, size), slot: make([]int32, size), mask: uint64(size - 1)}
	for i := range s.slot {
		s.slot[i] = -1
	}
	return s
}

func (s *slots) home(id uint64) uint64 { return (id * 0x9e3779b97f4a7c15 >> 32) & s.mask }

// find returns the index of an id, or the free index where it belongs.
func (s *slots) find(id uint64) (uint64, bool) {
	for i := s.home(id); ; i = (i + 1) & s.mask {
		if s.slot[i] < 0 {
			return i, false
		}
		if s.ids[i] == id {
			return i, true
		}
	}
}

func (s *slots) remove(id uint64) {
	hole, ok := s.find(id)
	if !ok {
		return
	}
	for i := (hole + 1) & s.mask; s.slot[i] >= 0; i = (i + 1) & s.mask {
		// An entry may fill the hole unless its home is between the two.
		if home := s.home(s.ids[i]); (i-home)&s.mask >= (i-hole)&s.mask {
			s.ids[hole], s.slot[hole] = s.ids[i], s.slot[i]
			hole = i
		}
	}
	s.slot[hole] = -1
}

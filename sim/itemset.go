package sim

// itemSet is a set of items that takes no time to empty. It is a hash table with linear probing.
type itemSet struct {
	slots []uint64 // round and item; a slot of another round is empty
	shift int      // from a 32-bit hash to a slot
	round uint64   // 1 to 2³²-1
	count int
}

func newItemSet() itemSet { return itemSet{slots: make([]uint64, 256), shift: 24, round: 1} }

// reset empties the set.
func (s *itemSet) reset() {
	s.count = 0
	if s.round++; s.round>>32 != 0 {
		s.round = 1
		clear(s.slots)
	}
}

// find returns the slot of an item, or the empty one where it belongs.
func (s *itemSet) find(item int32) int {
	mask := len(s.slots) - 1
	i := int(uint32(item) * 0x9e3779b1 >> s.shift)
	for s.slots[i]>>32 == s.round && uint32(s.slots[i]) != uint32(item) {
		i = (i + 1) & mask
	}
	return i
}

func (s *itemSet) has(item int32) bool { return s.slots[s.find(item)]>>32 == s.round }

// add adds an item. It returns false if the item was there.
func (s *itemSet) add(item int32) bool {
	i := s.find(item)
	if s.slots[i]>>32 == s.round {
		return false
	}
	s.slots[i] = s.round<<32 | uint64(uint32(item))
	if s.count++; 2*s.count > len(s.slots) {
		s.grow()
	}
	return true
}

func (s *itemSet) grow() {
	old := s.slots
	s.slots, s.shift = make([]uint64, 2*len(old)), s.shift-1
	for _, slot := range old {
		if slot>>32 == s.round {
			s.slots[s.find(int32(slot))] = slot
		}
	}
}

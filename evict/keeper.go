package evict

// keeper is a cache of keys alone that keeps what it has: an entry that comes is the next to leave, unless it is used before
// that (LIP, Qureshi et al., ISCA '07). On a loop that is larger than the cache LRU hits nothing, and a keeper nearly what the optimum
// does. Every 1,024th entry is kept as LRU would keep it, so that the keeper moves on when the keys do.
type keeper struct {
	capacity int64
	used     int64
	hits     int64 // bytes
	order    list
	keys     []uint64
	bytes    []int64
	free     []Slot
	slotOf   table
	came     uint64
}

// keptOne of so many new entries stays at once.
const keptOne = 1024

func newKeeper(slots int, capacity int64) *keeper {
	k := &keeper{capacity: capacity, order: newList(slots), keys: make([]uint64, slots), bytes: make([]int64, slots), slotOf: newTable(slots)}
	for s := range Slot(slots) {
		k.free = append(k.free, s)
	}
	return k
}

// request serves a request on paper. An entry that does not fit is a miss and nothing else.
func (k *keeper) request(key uint64, bytes int64) {
	if s, ok := k.slotOf.get(key); ok {
		if k.bytes[s] == bytes {
			k.hits += bytes
			k.order.remove(s)
			k.order.pushNewest(s)
			return
		}
		k.evict(s) // of another size: another entry
	}
	if bytes > k.capacity {
		return
	}
	full := k.trim(k.capacity-bytes, 1)
	s := k.free[len(k.free)-1]
	k.free = k.free[:len(k.free)-1]
	k.keys[s], k.bytes[s] = key, bytes
	k.used += bytes
	k.slotOf.put(key, s)
	if k.came++; full && k.came%keptOne != 0 {
		k.order.pushOldest(s)
		return
	}
	k.order.pushNewest(s)
}

// trim evicts until at most so many bytes are used and so many slots are free, and reports whether it evicted any.
func (k *keeper) trim(bytes int64, slots int) (evicted bool) {
	for k.used > bytes || len(k.free) < slots {
		k.evict(k.order.oldest())
		evicted = true
	}
	return evicted
}

func (k *keeper) evict(s Slot) {
	k.order.remove(s)
	k.slotOf.remove(k.keys[s])
	k.used -= k.bytes[s]
	k.free = append(k.free, s)
}

func (k *keeper) remove(key uint64) {
	if s, ok := k.slotOf.get(key); ok {
		k.evict(s)
	}
}

func (k *keeper) resize(bytes int64) {
	k.capacity = bytes
	k.trim(bytes, 0)
}

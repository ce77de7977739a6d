package evict

// keeper simulates a cache that keeps the entries it has: a new entry is the next victim unless it is used first (LIP,
// Qureshi et al., ISCA '07). On a loop larger than the cache LRU hits nothing, and a keeper hits nearly as much as the
// optimum. One in 1,024 new entries is inserted as LRU would, so that the keeper follows when the keys change.
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

// keptOne is the number of new entries per one that is inserted as LRU would.
const keptOne = 1024

func newKeeper(slots int, capacity int64) *keeper {
	k := &keeper{capacity: capacity, order: newList(slots), keys: make([]uint64, slots), bytes: make([]int64, slots),
		slotOf: newTable(slots)}
	for s := range Slot(slots) {
		k.free = append(k.free, s)
	}
	return k
}

// request simulates a request. An entry larger than the cache only counts as a miss.
func (k *keeper) request(key uint64, bytes int64) {
	if s, ok := k.slotOf.get(key); ok {
		if k.bytes[s] == bytes {
			k.hits += bytes
			k.order.remove(s)
			k.order.pushNewest(s)
			return
		}
		k.evict(s) // the size changed, so this is another entry
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

// trim evicts until at most that many bytes are used and at least that many slots are free. It reports whether it
// evicted any entry.
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

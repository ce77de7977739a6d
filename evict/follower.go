package evict

import "math"

// follower tells on paper what predictions are worth: a cache of keys alone that evicts the farthest predicted return whatever
// it costs, beside LRU on the same keys. It sees a hashed sample of the keys and has as large a share of the capacity.
type follower struct {
	cache  *Floor // with credit without end
	share  int64  // one key of so many is seen, a power of two
	slotOf table
	free   []Slot
	used   int64
	lent   int64   // bytes, some times what it is ahead of LRU
	most   int64   // that was ever lent
	lead   int64   // over LRU, bytes of the sample
	ahead  int64   // of the lead, what was gained since it was lowest
	recent float64 // of the lead, all keys' bytes: decays within some turnovers of the cache
}

const (
	lendTimes     = 4     // what it is ahead is lent
	recentTimes   = 1.5   // as many requests as entries: how long what is recent lasts
	mostBehind    = 0.125 // of the capacity: predictions that lost more of late are not followed
	leastFollowed = 2048  // slots of a sample
	mostShare     = 8
)

func newFollower(c Config) *follower {
	share := 1
	for share < mostShare && c.Slots/(2*share) >= leastFollowed {
		share *= 2
	}
	c.Slots, c.Bytes, c.Refresh = max(c.Slots/share, 1), max(c.Bytes/int64(share), 1), nil
	f := &follower{
		cache: NewFloor(c, FloorConfig{Credit: math.Inf(1), Cap: math.Inf(1), Lend: -1}), share: int64(share), slotOf: newTable(c.Slots),
	}
	for s := range Slot(c.Slots) {
		f.free = append(f.free, s)
	}
	return f
}

// sees reports whether a key is in the sample.
func (f *follower) sees(key uint64) bool {
	return (key*0x9E3779B97F4A7C15)>>40&uint64(f.share-1) == 0
}

// request serves a request on paper.
func (f *follower) request(a Access) {
	if !f.sees(a.Key) || a.Bytes > f.cache.capacity {
		return
	}
	if s, ok := f.slotOf.get(a.Key); ok {
		if f.cache.entries[s].bytes == a.Bytes {
			f.cache.Hit(s, a)
			return
		}
		f.remove(a.Key) // what has another size is another entry
	}
	f.cache.Miss(a)
	f.trim(f.cache.capacity-a.Bytes, 1)
	s := f.free[len(f.free)-1]
	f.free = f.free[:len(f.free)-1]
	f.slotOf.put(a.Key, s)
	f.used += a.Bytes
	f.cache.Insert(s, a)
}

// trim evicts until so many bytes at most are used and so many slots are free.
func (f *follower) trim(bytes int64, slots int) {
	for f.used > bytes || len(f.free) < slots {
		s, ok := f.cache.Victim(nil)
		if !ok {
			return
		}
		f.forget(s)
	}
}

func (f *follower) forget(s Slot) {
	e := &f.cache.entries[s]
	f.slotOf.remove(e.key)
	f.used -= e.bytes
	f.free = append(f.free, s)
}

func (f *follower) remove(key uint64) {
	if s, ok := f.slotOf.get(key); ok {
		f.cache.Remove(s)
		f.forget(s)
	}
}

// predict passes on what is predicted after the request.
func (f *follower) predict(key uint64, now, ret int64) {
	if !f.sees(key) {
		return
	}
	if s, ok := f.slotOf.get(key); ok {
		f.cache.now = now
		f.cache.Predict(s, ret)
	}
}

func (f *follower) resize(bytes int64) {
	bytes = max(bytes/f.share, 1)
	f.cache.Resize(bytes)
	f.trim(bytes, 0)
}

// lend returns by how many bytes what is lent changes: it is some times what the follower is ahead of LRU, up to a limit. What it lost
// before it began to gain does not count: first models are bad ones.
func (f *follower) lend(limit int64) int64 {
	lead := f.cache.stats.Hits - f.cache.stats.LRUHits
	f.ahead = max(f.ahead+lead-f.lead, 0)
	f.recent += float64((lead - f.lead) * f.share)
	f.recent -= f.recent / (recentTimes * float64(max(f.cache.shadowCount, 1)) * float64(f.share))
	f.lead = lead
	change := min(lendTimes*f.ahead*f.share, limit) - f.lent
	f.lent += change
	f.most = max(f.most, f.lent)
	return change
}

// behind reports whether predictions lost to LRU of late.
func (f *follower) behind() bool {
	return f.recent < -mostBehind*float64(f.cache.capacity*f.share)
}

package evict

import "math"

// follower measures on paper what two other ways to evict are worth beside LRU. It keeps keys and sizes, no data: a cache that
// evicts the farthest predicted return whatever it costs, a [keeper], and LRU's shadow. They see a hashed sample of the keys and have as large a
// share of the capacity. What they gain on LRU decides how much credit is lent, and whether the real cache keeps what it has.
type follower struct {
	cache  *Floor // with unlimited credit: it follows predictions
	keeper *keeper
	share  int64 // one key of so many is in the sample, a power of two
	slotOf table
	free   []Slot
	used   int64
	was    tally
	own    int64 // bytes of the sample that the real cache hit

	ahead   int64 // bytes that predictions gained on LRU
	keeps   int64 // bytes that the keeper gained on LRU
	over    int64 // bytes that the keeper gained on the real cache
	under   int64 // bytes that predictions gained on the keeper since the real cache keeps
	keeping bool

	lent   int64   // bytes of all keys
	most   int64   // that was ever lent
	recent float64 // what predictions gained on LRU, bytes of all keys: decays within some turnovers of the cache
}

// tally is what each cache has hit, in bytes of the sample.
type tally struct{ predicted, kept, lru, own int64 }

const (
	lendTimes     = 4     // a gain is lent so many times
	recentTimes   = 1.5   // as many requests as entries: how long what is recent lasts
	mostBehind    = 0.125 // of the capacity: predictions that lost more of late are not followed
	leastFollowed = 2048  // slots of a sample
	mostShare     = 8

	// A sweep up and down costs the keeper up to a cache's bytes at one end before it gains them at the other. So a loss counts up
	// to some caches: nothing is lent before it is made up for. Older losses do not count.
	predictedDebt = 1 // caches
	keptDebt      = 2
	timesLRU      = 2 // a keeper that hit more than so many times what LRU did has a whole cache lent to it
	gainTimes     = 2 // of what the real cache gained, so many times is lent on predictions
)

func newFollower(c Config) *follower {
	share := 1
	for share < mostShare && c.Slots/(2*share) >= leastFollowed {
		share *= 2
	}
	c.Slots, c.Bytes, c.Refresh = max(c.Slots/share, 1), max(c.Bytes/int64(share), 1), nil
	f := &follower{
		cache:  NewFloor(c, FloorConfig{Credit: math.Inf(1), Cap: math.Inf(1), Lend: -1}),
		keeper: newKeeper(c.Slots, c.Bytes), share: int64(share), slotOf: newTable(c.Slots),
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

// request serves a request of the sample on paper. own says whether the real cache hits.
func (f *follower) request(a Access, own bool) {
	if a.Bytes > f.cache.capacity {
		return
	}
	if own {
		f.own += a.Bytes
	}
	f.keeper.request(a.Key, a.Bytes)
	if s, ok := f.slotOf.get(a.Key); ok {
		if f.cache.entries[s].bytes == a.Bytes {
			f.cache.Hit(s, a)
			return
		}
		f.drop(s) // what has another size is another entry
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

func (f *follower) drop(s Slot) {
	f.cache.Remove(s)
	f.forget(s)
}

func (f *follower) remove(key uint64) {
	f.keeper.remove(key)
	if s, ok := f.slotOf.get(key); ok {
		f.drop(s)
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
	f.keeper.resize(bytes)
}

// limits are the most bytes that may be lent: to predictions, to the keeper, and to the keeper where it hit more than twice what LRU did.
type limits struct{ predictions, keeper, loops int64 }

// judge compares the caches on paper after a request of the sample, and returns by how many bytes what is lent changes.
func (f *follower) judge(most limits) int64 {
	now := tally{f.cache.stats.Hits, f.keeper.hits, f.cache.stats.LRUHits, f.own}
	gained := tally{now.predicted - f.was.predicted, now.kept - f.was.kept, now.lru - f.was.lru, now.own - f.was.own}
	f.was = now
	room := f.cache.capacity
	f.recent += float64((gained.predicted - gained.lru) * f.share)
	f.recent -= f.recent / (recentTimes * float64(max(f.cache.shadowCount, 1)))
	f.ahead = max(f.ahead+gained.predicted-gained.lru, -predictedDebt*room)
	f.keeps = max(f.keeps+gained.kept-gained.lru, -keptDebt*room)
	f.choose(gained)
	lend := func(gain, most int64) int64 { return min(lendTimes*max(gain, 0)*f.share, most) }
	lent := lend(f.ahead, most.predictions)
	if f.keeping {
		lent = max(lent, lend(f.keeps, most.keeper), lend(now.kept-timesLRU*now.lru, most.loops))
	}
	change := lent - f.lent
	f.lent = lent
	f.most = max(f.most, lent)
	return change
}

// choose decides whether the real cache keeps what it has. It begins when the keeper gained on it and on LRU, and ends when the
// keeper lost what it had gained on LRU, or predictions gained on the keeper. On a loop each of them hits at another time, so a difference of
// less than a cache says nothing about predictions; and every change costs what the cache holds.
func (f *follower) choose(gained tally) {
	room := f.cache.capacity
	bounded := func(bytes int64) int64 { return min(max(bytes, -keptDebt*room), keptDebt*room) }
	f.over = bounded(f.over + gained.kept - gained.own)
	f.under = bounded(f.under + gained.predicted - gained.kept)
	switch {
	case !f.keeping && f.over > room/2 && f.keeps > 0:
		f.keeping, f.under = true, 0
	case f.keeping && (f.keeps <= 0 || f.under > room):
		f.keeping, f.over = false, 0
	}
}

// behind reports whether predictions lost to LRU of late.
func (f *follower) behind() bool {
	return f.recent < -mostBehind*float64(f.cache.capacity*f.share)
}

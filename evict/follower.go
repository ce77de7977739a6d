package evict

import "math"

// follower measures what two other ways to evict would gain on LRU. It simulates, with keys and sizes but no data, a
// cache that always evicts the farthest predicted return, a [keeper], and LRU (the shadow of the first). They see a
// hashed sample of the keys and have the same share of the capacity. Their gain decides how much credit is lent, and
// whether the real cache keeps the entries it has.
type follower struct {
	cache  *Floor // with unlimited credit: it always follows predictions
	keeper *keeper
	share  int64 // one in share keys is in the sample, a power of two
	slotOf table
	free   []Slot
	used   int64
	was    tally
	own    int64 // bytes of the sample that the real cache hit

	ahead   int64 // bytes that predictions gained on LRU
	keeps   int64 // bytes that the keeper gained on LRU
	over    int64 // bytes that the keeper gained on the real cache
	under   int64 // bytes that predictions gained on the keeper since the real cache began to keep
	keeping bool

	lent   int64   // bytes, scaled from the sample to all keys
	most   int64   // the largest value of lent so far
	recent float64 // bytes that predictions gained on LRU, scaled to all keys; decays over a few turnovers of the cache
}

// tally counts the bytes of the sample that each cache has hit.
type tally struct{ predicted, kept, lru, own int64 }

const (
	lendTimes     = 4     // bytes lent per byte gained
	recentTimes   = 1.5   // decay time of recent, as a multiple of the number of entries, in requests
	mostBehind    = 0.125 // share of the capacity: predictions that recently lost more are not followed
	leastFollowed = 2048  // the least number of slots in a sample
	mostShare     = 8

	// A scan up and down the keys costs the keeper up to one cache of bytes at one end before it gains them at the
	// other. So losses count, up to a few caches: nothing is lent before they are made up for. Losses beyond that limit
	// are forgotten.
	predictedDebt = 1 // caches
	keptDebt      = 2
	timesLRU      = 2 // a keeper with more than timesLRU times LRU's hits is lent up to a whole cache
	gainTimes     = 2 // bytes that may be lent to predictions per byte that the real cache gained
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

// request simulates a request for a key of the sample. own says whether the real cache hits.
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
		f.drop(s) // the size changed, so this is another entry
	}
	f.cache.Miss(a)
	f.trim(f.cache.capacity-a.Bytes, 1)
	s := f.free[len(f.free)-1]
	f.free = f.free[:len(f.free)-1]
	f.slotOf.put(a.Key, s)
	f.used += a.Bytes
	f.cache.Insert(s, a)
}

// trim evicts until at most that many bytes are used and at least that many slots are free.
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

// predict passes on a prediction made after the request.
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

// limits are the most bytes that may be lent: to predictions, to the keeper, and to a keeper that hit more than twice
// as much as LRU.
type limits struct{ predictions, keeper, loops int64 }

// judge compares the simulated caches after a request of the sample. It returns the change of the bytes lent.
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

// choose decides whether the real cache keeps the entries it has. Keeping begins when the keeper has gained on both the
// real cache and LRU. It ends when the keeper has lost its gain on LRU, or predictions have gained on the keeper. On a
// loop the caches hit at different times, so a difference of less than one cache says nothing. And every switch costs
// up to the cache's content.
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

// behind reports whether predictions recently lost to LRU.
func (f *follower) behind() bool {
	return f.recent < -mostBehind*float64(f.cache.capacity*f.share)
}

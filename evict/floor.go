package evict

import "math"

// Floor is the default policy. It evicts what is predicted to return last, or keeps what it has where keys return in a loop. It never
// falls behind LRU by more than a stated margin, whatever the predictions and the requests.
//
// # How
//
// It keeps a shadow of LRU: the keys that an LRU cache of the same capacity would hold now, in order, without
// their data. Let M be the bytes this cache missed, L and H the bytes that the shadow missed and hit, and Φ the
// bytes that the shadow holds and this cache does not. An eviction is safe when the victim is not in
// the shadow; LRU has given it up already. Then M + Φ − L does not grow with any request:
//
//	miss here, hit in the shadow   M grows by the entry's bytes, and Φ shrinks by them as it is loaded
//	miss in both                   M and L grow alike; what the shadow evicts can only shrink Φ
//	hit here, miss in the shadow   L grows
//	hit in both                    nothing
//
// Safe evictions always make enough room: what is cached and in the shadow, with the missed entry, is
// part of the shadow and fits. A risky eviction, of an entry in the shadow, adds the victim's bytes to Φ. So
// the credit C = L + ε·H + b − M − Φ is known at all times, and a risky victim may be chosen only
// while C covers it. C is also cut to a cap, so that old gains do not pay for a later collapse.
//
// # What holds
//
//   - Always, for entries of any sizes: missed bytes ≤ LRU's + ε·(LRU's hit bytes) + b + what was lent, and b and what is lent are
//     together at most Lend·capacity. With the defaults: hits ≥ 99.5 % of LRU's less one cache. Over any
//     stretch of requests the same holds with the cap plus what Φ was at its beginning in place of b.
//   - Until the cache has gained more on LRU than chance would, and while the keeper below has not hit more than twice what LRU did,
//     less is lent: hits ≥ 99 % of LRU's, or b less than 99.5 % of them if that is lower. b is 0.1 % of the bytes of
//     the first 5,000 requests: five entries.
//   - For entries of one size, with b and cap ≥ 2·capacity: under perfect predictions the misses are
//     the optimum's. (LRU's run up to now, then a change to the optimum's content, is a way to serve the
//     trace, so M ≤ L + Φ at every moment; so M + Φ ≤ L + 2Φ ≤ L + 2k, and the credit never binds.)
//   - With a smaller b the credit binds only until predictions have earned it: each that comes true
//     (LRU gives the entry up unseen, or misses what stayed here instead) pays its bytes back or more.
//
// # What is lent
//
// A small b makes useless predictions harmless and good ones slow: to differ from LRU by a whole cache, credit has to
// double many times. So credit is also lent on evidence. A [follower] measures on paper what predictions gain on LRU, and what a cache gains that
// keeps what it has ([keeper]). Four times the gain is lent, and taken back as it is lost again:
//
//   - at most ε·H − b, so a share of LRU's own hits; on predictions also twice what this cache has gained on LRU. A gain counts only
//     where it is more than chance: the square root of the number of LRU's hits (of the sum of their squared bytes). A few more hits
//     out of a hundred say nothing about predictions,
//   - at most Lend·capacity − b where the keeper hit more than twice what LRU did. There LRU's hits say nothing: on a loop larger than
//     the cache it has none, and to keep half a cache means to differ from LRU by that half before the first gain.
//
// While predictions have of late lost more than an eighth of the capacity to LRU, they choose no risky victim, whatever credit
// there is: what was earned is not spent on predictions that have become wrong.
//
// While the cache keeps what it has, an entry that comes is the next victim unless it is used before; see follower.choose.
//
// The shadow is exact and not sampled: it costs about 150 bytes per slot with everything else here (the follower, which is sampled,
// a fifth as much again in large caches), small beside a KV page, and the bound is then a proof and not a likelihood. Evictions forced by evictable
// refusing every safe victim, or asked for while there is room, are counted (Stats.Forced) and weaken the
// bound by their bytes.
//
// An entry that did not return when predicted is overdue; it is expected to stay away as long again
// as it has been away, so overdue entries leave in LRU's order. Without any prediction (Return ≤ Now, no Refresh) the whole policy is LRU.
type Floor struct {
	capacity int64
	slots    int32
	cfg      FloorConfig
	now      int64
	credit   float64
	pending  int64 // bytes of the missed entry until it is inserted: in Φ, but about to leave it
	stats    FloorStats
	chance   float64 // sum of the squares of the bytes that LRU hit
	started  int     // requests that added to b, up to startRequests
	given    float64 // b so far
	most     float64 // of b

	entries   []floorEntry // per slot
	heaps     [4]heap      // see class
	expiry    heap         // entries not yet overdue, the soonest due first, or sooner than it is due
	refresh   func([]Slot, []int64)
	late      [maxRefresh]Slot
	returnsAt [maxRefresh]int64
	random    uint64
	kept      uint64    // entries that came while it keeps
	predicted bool      // predictions come, or may be asked for
	follower  *follower // nil: nothing is lent
	hidden    []Slot    // taken out of heaps while one victim is sought

	shadow      list    // nodes: slots, then ghosts
	shadowBytes int64   // held by the shadow
	shadowCount int     // entries in the shadow
	ghosts      []ghost // entries of the shadow that are not cached
	free        []int32 // unused ghosts
	byKey       table   // ghost by key
}

type floorEntry struct {
	key   uint64
	bytes int64
	last  int64
	ret   int64
	due   int64 // while it is ahead: when it is looked at again
	class class
	asked bool // a new prediction is under way
	trial bool // it came while the cache keeps what it has, and was not used since
}

type ghost struct {
	key   uint64
	bytes int64
}

// class tells which heap an entry is in: those ahead of their predicted return by that return, those overdue
// by age; of each, those that the shadow holds apart from those it does not.
type class int8

const (
	ahead    class = 0
	overdue  class = 1
	shadowed class = 2 // added for what the shadow holds
	none     class = -1
)

// FloorConfig bounds what predictions may cost. Zero values mean the defaults.
type FloorConfig struct {
	Loss   float64 // ε, share of LRU's hit bytes that may be lost for good; 0.005
	Credit float64 // most of b, as a share of the capacity; 1/16
	Start  float64 // share of the bytes of the first 5,000 requests that is b; 0.001, or all of Credit at once where that is set
	Cap    float64 // most credit that can be saved up, as a share of the capacity; 2
	Lend   float64 // most of b and what is lent together, as a share of the capacity; 1; below 0: nothing is lent
}

// startRequests is how many requests add to b.
const startRequests = 5000

// FloorStats says where a Floor stands against LRU, in bytes.
type FloorStats struct {
	Hits, Misses       int64
	LRUHits, LRUMisses int64
	Away               int64   // Φ, held by the shadow and not cached
	Forced             int64   // evicted without credit because nothing safe could go
	Lent               int64   // at most at any time, on what was gained on paper
	Keeping            bool    // it keeps what it has, as it should on loops
	Credit             float64 // C
}

// NewFloor makes the default policy with other bounds than its own. The Config MUST be valid.
func NewFloor(c Config, f FloorConfig) *Floor {
	f = f.orDefaults()
	n := c.Slots
	p := &Floor{
		capacity: c.Bytes, slots: int32(n), cfg: f, refresh: c.Refresh, predicted: c.Refresh != nil, most: f.Credit * float64(c.Bytes),
		entries: make([]floorEntry, n),
		shadow:  newList(2*n + 1), ghosts: make([]ghost, n+1), byKey: newTable(n + 1),
	}
	pos := make([]int32, n)
	for i := range p.heaps {
		p.heaps[i] = newHeap(n, pos)
	}
	p.expiry = newHeap(n, make([]int32, n))
	for i := range pos {
		pos[i], p.expiry.pos[i], p.entries[i].class = unlinked, unlinked, none
	}
	for i := range p.ghosts {
		p.free = append(p.free, int32(n+len(p.ghosts)-1-i))
	}
	if math.IsInf(f.Start, 1) {
		p.start(p.most)
		p.started = startRequests
	}
	if f.Lend > 0 {
		p.follower = newFollower(c)
	}
	return p
}

func (f FloorConfig) orDefaults() FloorConfig {
	if f.Loss == 0 {
		f.Loss = 0.005
	}
	if f.Start == 0 {
		f.Start = 0.001
		if f.Credit != 0 {
			f.Start = math.Inf(1)
		}
	}
	if f.Credit == 0 {
		f.Credit = 1.0 / 16
	}
	if f.Cap == 0 {
		f.Cap = 2
	}
	if f.Lend == 0 {
		f.Lend = 1
	}
	return f
}

// Stats returns where the policy stands.
func (p *Floor) Stats() FloorStats {
	s := p.stats
	s.Credit = p.credit
	if p.follower != nil {
		s.Lent, s.Keeping = p.follower.most, p.follower.keeping
	}
	return s
}

func (p *Floor) earn(bytes float64) { p.credit = min(p.credit+bytes, p.cfg.Cap*float64(p.capacity)) }

// away moves Φ.
func (p *Floor) away(bytes int64) {
	p.stats.Away += bytes
	p.earn(-float64(bytes))
}

func (p *Floor) Hit(s Slot, a Access) {
	p.begin(a, true)
	e := &p.entries[s]
	p.stats.Hits += e.bytes
	if p.shadow.has(s) {
		p.shadowHit(e.bytes)
		p.shadow.remove(s)
		p.shadow.pushNewest(s)
	} else {
		p.stats.LRUMisses += e.bytes
		p.earn(float64(e.bytes))
		p.admit(s, e.bytes)
	}
	e.last, e.ret, e.trial = a.Now, a.Return, false
	p.place(s)
}

func (p *Floor) begin(a Access, hit bool) {
	p.now, p.pending = a.Now, 0
	if p.started < startRequests {
		p.started++
		p.start(p.cfg.Start * float64(a.Bytes))
	}
	p.predicted = p.predicted || a.Return > a.Now
	if f := p.follower; f != nil && f.sees(a.Key) {
		f.request(a, hit)
		p.earn(float64(f.judge(p.limits())))
	}
}

// limits are what may be lent now.
func (p *Floor) limits() (l limits) {
	bytes := func(most float64) int64 { return max(int64(min(most, p.cfg.Lend*float64(p.capacity))-p.given), 0) }
	share := p.cfg.Loss * float64(p.stats.LRUHits)
	gained := float64(p.stats.Hits - p.stats.LRUHits)
	if !p.predicted {
		return limits{}
	}
	if gained < 0 || gained*gained < p.chance {
		gained = 0
	}
	return limits{predictions: bytes(share + gainTimes*gained), keeper: bytes(share), loops: bytes(math.Inf(1))}
}

// start adds to b.
func (p *Floor) start(bytes float64) {
	bytes = min(bytes, p.most-p.given)
	p.given += bytes
	p.earn(bytes)
}

func (p *Floor) shadowHit(bytes int64) {
	p.stats.LRUHits += bytes
	p.chance += float64(bytes) * float64(bytes)
	p.earn(p.cfg.Loss * float64(bytes))
}

func (p *Floor) Miss(a Access) {
	p.begin(a, false)
	p.stats.Misses += a.Bytes
	if g, ok := p.byKey.get(a.Key); ok {
		p.shadowHit(a.Bytes)
		p.earn(-float64(a.Bytes))
		p.shadow.remove(g)
		p.shadow.pushNewest(g)
		p.pending = a.Bytes
		return
	}
	p.stats.LRUMisses += a.Bytes
	if a.Bytes > p.capacity {
		return
	}
	p.pending = a.Bytes
	g := p.haunt(a.Key, a.Bytes)
	p.admit(g, a.Bytes)
}

// haunt makes a ghost; the caller links it.
func (p *Floor) haunt(key uint64, bytes int64) int32 {
	g := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	p.ghosts[g-p.slots] = ghost{key, bytes}
	p.byKey.put(key, g)
	p.away(bytes)
	return g
}

// lay frees a ghost that the caller has unlinked.
func (p *Floor) lay(g int32) {
	p.byKey.remove(p.ghosts[g-p.slots].key)
	p.away(-p.ghosts[g-p.slots].bytes)
	p.free = append(p.free, g)
}

// admit puts a node into the shadow as the most recent and lets LRU make room for it.
func (p *Floor) admit(node int32, bytes int64) {
	p.shadow.pushNewest(node)
	p.shadowBytes += bytes
	p.shadowCount++
	p.trim()
}

// trim has LRU evict until what it holds fits.
func (p *Floor) trim() {
	for p.shadowBytes > p.capacity || p.shadowCount > int(p.slots) {
		v := p.shadow.oldest()
		p.shadow.remove(v)
		p.shadowCount--
		if v >= p.slots {
			p.shadowBytes -= p.ghosts[v-p.slots].bytes
			p.lay(v)
			continue
		}
		p.shadowBytes -= p.entries[v].bytes
		p.place(v)
	}
}

func (p *Floor) Insert(s Slot, a Access) {
	p.pending = 0
	p.entries[s] = floorEntry{key: a.Key, bytes: a.Bytes, last: a.Now, ret: a.Return, class: none}
	if p.keeping() {
		p.try(s)
	}
	if g, ok := p.byKey.get(a.Key); ok {
		p.shadow.replace(g, s)
		p.shadowBytes += a.Bytes - p.ghosts[g-p.slots].bytes
		p.lay(g)
	}
	p.place(s)
}

func (p *Floor) keeping() bool { return p.predicted && p.follower != nil && p.follower.keeping }

// try makes a new entry the next victim, unless it is one of those that stay.
func (p *Floor) try(s Slot) {
	if p.kept++; p.kept%keptOne != 0 {
		p.entries[s].trial, p.entries[s].ret = true, Never
	}
}

// Resize changes the capacity of this cache and of the shadow: the bound is then against an LRU cache whose capacity changes
// with this one's. What the shadow gives up can only shrink Φ, so nothing is lost by it; b stays what it was.
func (p *Floor) Resize(bytes int64) {
	p.capacity = bytes
	p.trim()
	p.earn(0)
	if p.follower != nil {
		p.follower.resize(bytes)
	}
}

// Predict takes the prediction as one made now. An entry on trial stays the next victim.
func (p *Floor) Predict(s Slot, ret int64) {
	e := &p.entries[s]
	if e.trial = e.trial && p.keeping(); !e.trial {
		e.ret = ret
	}
	p.placeOn(e.class&shadowed, s)
	if p.follower != nil {
		p.follower.predict(e.key, p.now, ret)
	}
}

func (p *Floor) Remove(s Slot) {
	p.unplace(s)
	if p.follower != nil {
		p.follower.remove(p.entries[s].key)
	}
	if p.shadow.has(s) {
		p.shadow.remove(s)
		p.shadowBytes -= p.entries[s].bytes
		p.shadowCount--
	}
}

// place puts an entry into the heaps where it belongs. What is due later than before stays where it was in expiry until it comes up
// there: most uses cost nothing there.
func (p *Floor) place(s Slot) {
	side := ahead
	if p.shadow.has(s) {
		side = shadowed
	}
	p.placeOn(side, s)
}

// placeOn is place for an entry of which is known whether the shadow holds it.
func (p *Floor) placeOn(side class, s Slot) {
	e, c := &p.entries[s], overdue
	if e.ret > p.now {
		c, e.due = ahead, p.due(e)
	}
	at := p.expiry.pos[s]
	switch {
	case at == unlinked && c == ahead:
		p.expiry.push(s, -e.due)
	case at != unlinked && c == overdue:
		p.expiry.remove(s)
	case at != unlinked && -p.expiry.keys[at] > e.due:
		p.expiry.move(s, -e.due)
	}
	c |= side
	if c == e.class {
		p.heaps[c].move(s, e.rank())
		return
	}
	p.unlink(s)
	e.class = c
	p.heaps[c].push(s, e.rank())
}

// due is when a prediction is looked at again: with a Refresh each time the entry's age has doubled, at
// the latest when it is overdue.
func (p *Floor) due(e *floorEntry) int64 {
	wait := e.ret - p.now
	if p.refresh == nil || e.ret == Never {
		return e.ret
	}
	return p.now + min(wait, max(p.now-e.last, wait/8, 1))
}

// rank is an entry's key in its heap.
func (e *floorEntry) rank() int64 {
	if e.class&overdue != 0 {
		return -e.last
	}
	return e.ret
}

// unlink takes an entry out of its heap, but not out of expiry.
func (p *Floor) unlink(s Slot) {
	if e := &p.entries[s]; e.class != none {
		p.heaps[e.class].remove(s)
		e.class = none
	}
}

func (p *Floor) unplace(s Slot) {
	p.unlink(s)
	if p.expiry.pos[s] != unlinked {
		p.expiry.remove(s)
	}
}

// Victim evicts the farthest return; a risky one only within the credit.
func (p *Floor) Victim(evictable func(Slot) bool) (Slot, bool) {
	p.expire()
	safe, isSafe := p.farthest(0, evictable)
	risky, isRisky := p.farthest(shadowed, evictable)
	p.unhide()
	if isSafe && (!isRisky || p.returns(risky) <= p.returns(safe) || !p.covers(risky)) {
		p.unplace(safe)
		return safe, true
	}
	if !isRisky {
		return 0, false
	}
	if !p.covers(risky) {
		risky = p.forced(risky, evictable)
		p.stats.Forced += p.entries[risky].bytes
	}
	e := &p.entries[risky]
	p.unplace(risky)
	p.shadow.replace(risky, p.haunt(e.key, e.bytes))
	return risky, true
}

func (p *Floor) covers(s Slot) bool {
	return !p.wrong() && p.credit+float64(p.pending) >= float64(p.entries[s].bytes)
}

// wrong reports whether predictions have become so, and are followed.
func (p *Floor) wrong() bool { return p.follower != nil && !p.follower.keeping && p.follower.behind() }

// forced finds LRU's own victim among entries of which one, last, may go.
func (p *Floor) forced(last Slot, evictable func(Slot) bool) Slot {
	s := p.shadow.oldest()
	for s != last && (s >= p.slots || evictable != nil && !evictable(s)) {
		s = p.shadow.newer(s)
	}
	return s
}

// expire looks again at entries whose time has come: the first 64 get a new prediction where there is one; the
// rest is overdue, or waits for its turn.
func (p *Floor) expire() {
	n := 0
	for later := 0; n < maxRefresh && later < maxLater; {
		s, ok := p.expiry.top()
		if !ok || -p.expiry.keys[0] > p.now {
			break
		}
		e := &p.entries[s]
		if e.due > p.now {
			p.expiry.move(s, -e.due)
			later++
			continue
		}
		p.expiry.remove(s)
		if p.refresh == nil {
			p.place(s)
			continue
		}
		e.asked = true
		p.late[n], p.returnsAt[n] = s, e.ret
		n++
	}
	if p.refresh == nil {
		return
	}
	due := n
	if n = p.anyone(n); n == 0 {
		return
	}
	p.refresh(p.late[:n], p.returnsAt[:n])
	for i, s := range p.late[:n] {
		e := &p.entries[s]
		e.asked = false
		if ret := p.returnsAt[i]; ret != e.ret || ret <= p.now || i < due {
			p.Predict(s, ret)
		}
	}
}

// anyone adds entries by chance to the n that are looked at again: predictions are never much older than it takes to replace the
// cache, and whoever learns from what it is asked sees all of the cache.
func (p *Floor) anyone(n int) int {
	held := 0
	for i := range p.heaps {
		held += len(p.heaps[i].slots)
	}
	for range min(drawn, held) {
		if n == maxRefresh {
			break
		}
		p.random = p.random*6364136223846793005 + 1442695040888963407
		s := p.nth(int(p.random >> 32 * uint64(held) >> 32))
		e := &p.entries[s]
		if e.asked {
			continue
		}
		e.asked = true
		p.late[n], p.returnsAt[n] = s, e.ret
		n++
	}
	return n
}

// nth is one of the entries, all of which are in one of the heaps.
func (p *Floor) nth(i int) Slot {
	for h := range p.heaps {
		slots := p.heaps[h].slots
		if i < len(slots) {
			return slots[i]
		}
		i -= len(slots)
	}
	panic("evict: an entry beyond the last")
}

// maxLater is how many entries that were used meanwhile, and are due later than when they came up, one eviction passes by.
const maxLater = 256

// drawn is how many entries are drawn per eviction. With twice as many an eviction takes half as long again, and closes no more of
// scarab-recs' gap.
const drawn = 24

// returns is when an entry is expected back.
func (p *Floor) returns(s Slot) int64 {
	e := &p.entries[s]
	if e.class&overdue != 0 {
		return 2*p.now - e.last
	}
	return e.ret
}

// farthest finds the entry expected last among those in the shadow, or those not. What evictable
// refuses is taken out of the heaps until unhide.
func (p *Floor) farthest(side class, evictable func(Slot) bool) (Slot, bool) {
	a, isAhead := p.allowed(ahead|side, evictable)
	o, isOverdue := p.allowed(overdue|side, evictable)
	if isAhead && (!isOverdue || p.returns(a) >= p.returns(o)) {
		return a, true
	}
	return o, isOverdue
}

func (p *Floor) allowed(c class, evictable func(Slot) bool) (Slot, bool) {
	h := &p.heaps[c]
	s, ok := h.top()
	for ok && evictable != nil && !evictable(s) {
		h.remove(s)
		p.hidden = append(p.hidden, s)
		s, ok = h.top()
	}
	return s, ok
}

func (p *Floor) unhide() {
	for _, s := range p.hidden {
		p.heaps[p.entries[s].class].push(s, p.entries[s].rank())
	}
	p.hidden = p.hidden[:0]
}

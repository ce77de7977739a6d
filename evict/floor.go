package evict

import "math"

// Floor is the default policy. It evicts the entry that is predicted to return last. Where keys return in a loop, it
// keeps the entries it has and evicts new ones first. Whatever the predictions and the requests, it never falls behind
// LRU by more than a stated margin.
//
// # How it works
//
// Floor keeps a shadow of LRU: the keys that an LRU cache of the same capacity would hold now, in order, without their
// data. Let M be the bytes this cache missed, L and H the bytes that the shadow missed and hit, and Φ the bytes that
// the shadow holds and this cache does not. An eviction is safe if the victim is not in the shadow, because LRU has
// evicted it already. As long as all evictions are safe, no request makes M + Φ − L grow:
//
//	miss here, hit in the shadow   M grows by the entry's bytes, and loading it shrinks Φ by as much
//	miss in both                   M and L grow by the same bytes; evictions of the shadow can only shrink Φ
//	hit here, miss in the shadow   L grows
//	hit in both                    nothing changes
//
// Safe evictions always make enough room: the cached entries that are also in the shadow, plus the missed entry, are
// part of the shadow and therefore fit. A risky eviction takes an entry that is in the shadow, so it adds the victim's
// bytes to Φ. Floor therefore tracks a credit C = L + ε·H + b − M − Φ and chooses a risky victim only while C
// covers its bytes. C is also limited by a cap, so that old gains do not pay for a later collapse.
//
// # Guarantees
//
//   - Always, for entries of any sizes: missed bytes ≤ LRU's + ε·(LRU's hit bytes) + b + the bytes lent. b and the
//     bytes lent are together at most Lend·capacity. With the defaults: hits ≥ 99.5 % of LRU's less one cache. For any
//     stretch of requests the same holds with b replaced by the cap plus Φ at the beginning of the stretch.
//   - Less is lent until the cache has gained more on LRU than chance explains, and while the keeper (below) has hit at
//     most twice as much as LRU. Then hits are ≥ 99 % of LRU's, or ≥ 99.5 % of LRU's less b if that is lower. b is
//     0.1 % of the bytes of the first 5,000 requests: five entries.
//   - For entries of one size, with b and cap ≥ 2·capacity: under perfect predictions the misses are the optimum's.
//     (One way to serve the trace is to run LRU up to now and then switch to the optimum's content. So M ≤ L + Φ at
//     every moment. It follows that M + Φ ≤ L + 2Φ ≤ L + 2k, and the credit never binds.)
//   - With a smaller b the credit binds only until predictions have earned more. A prediction comes true when LRU
//     evicts the entry unused, or misses an entry that stayed here instead. Each one pays its bytes back or more.
//
// # Lending
//
// With a small b, useless predictions do no harm, but good ones take effect slowly: to differ from LRU by a whole
// cache, the credit has to double many times. So credit is also lent on evidence. A [follower] simulates two caches:
// one that follows predictions, and one that keeps the entries it has ([keeper]). It measures their gain on LRU. Floor
// lends four times that gain and takes it back as the gain is lost again. The limits are:
//
//   - ε·H − b, a share of LRU's own hits. Predictions get in addition twice what this cache has gained on LRU. A
//     gain counts only if it is larger than chance: the square root of the number of LRU's hits (of the sum of their
//     squared bytes). A few more hits out of a hundred say nothing about predictions.
//   - Lend·capacity − b, if the keeper hit more than twice as much as LRU. LRU's hits are no measure then: on a loop
//     larger than the cache LRU has none, and keeping half a cache means to differ from LRU by that half before the
//     first gain.
//
// If predictions have recently lost more than an eighth of the capacity to LRU, they choose no risky victim, however
// much credit there is. This protects earned credit from predictions that have become wrong.
//
// While the cache keeps the entries it has, a new entry is the next victim unless it is used first; see
// follower.choose.
//
// # Cost
//
// The shadow is exact, not sampled, so the bound is proven and not merely likely. With everything else here it costs
// about 150 bytes per slot, which is small beside a KV page. The follower is sampled and adds a fifth of that in large
// caches. Two kinds of evictions weaken the bound by their bytes and are counted in Stats.Forced: those where evictable
// refuses every safe victim, and those that are asked for while there is room.
//
// # Overdue entries
//
// An entry that did not return when predicted is overdue. It is expected to stay away for as long again as it has been
// away, so overdue entries leave in LRU's order. Without any prediction (Return ≤ Now, no Refresh) the whole policy
// is LRU.
type Floor struct {
	capacity int64
	slots    int32
	cfg      FloorConfig
	now      int64
	credit   float64
	pending  int64 // bytes of the missed entry until it is inserted: counted in Φ, but about to leave it
	stats    FloorStats
	chance   float64 // sum of the squares of the bytes that LRU hit
	started  int     // requests counted towards b, up to startRequests
	given    float64 // b so far
	most     float64 // upper limit of b

	entries   []floorEntry // per slot
	heaps     [4]heap      // see class
	expiry    heap         // entries that are not overdue, by due time; the key may be earlier than the entry's due
	refresh   func([]Slot, []int64)
	late      [maxRefresh]Slot
	returnsAt [maxRefresh]int64
	random    uint64
	kept      uint64    // new entries while keeping
	predicted bool      // requests bring predictions, or Refresh provides them
	follower  *follower // nil: nothing is lent
	hidden    []Slot    // taken out of the heaps during one search for a victim
	read      int64     // see Warm

	shadow      list    // nodes: slots, then ghosts
	shadowBytes int64   // held by the shadow
	shadowCount int     // entries in the shadow
	ghosts      []ghost // entries of the shadow that are not cached
	free        []int32 // unused ghosts
	byKey       table   // ghost of each key
}

type floorEntry struct {
	key   uint64
	bytes int64
	last  int64
	ret   int64
	due   int64 // when the prediction is checked again; only while the entry is ahead; 0: it never was
	class class
	asked bool // a new prediction has been requested
	trial bool // inserted while the cache was keeping, and not used since
}

type ghost struct {
	key   uint64
	bytes int64
}

// class says which heap an entry is in. Entries ahead of their predicted return are ordered by that return, overdue
// ones by age. Each kind has two heaps: one for entries in the shadow and one for the others.
type class int8

const (
	ahead    class = 0
	overdue  class = 1
	shadowed class = 2 // added for entries in the shadow
	none     class = -1
)

// FloorConfig limits the cost of wrong predictions. Zero values mean the defaults.
type FloorConfig struct {
	Loss   float64 // ε, share of LRU's hit bytes that may be lost for good; 0.005
	Credit float64 // upper limit of b, as a share of the capacity; 1/16
	Start  float64 // b as a share of the bytes of the first 5,000 requests; 0.001. If Credit is set: all of Credit at once
	Cap    float64 // upper limit of the credit, as a share of the capacity; 2
	Lend   float64 // upper limit of b and the bytes lent together, as a share of the capacity; 1; below 0: nothing is lent
}

// startRequests is the number of requests that contribute to b.
const startRequests = 5000

// FloorStats compares a Floor with LRU, in bytes.
type FloorStats struct {
	Hits, Misses       int64
	LRUHits, LRUMisses int64
	Away               int64   // Φ: held by the shadow and not cached
	Forced             int64   // evicted without credit because there was no safe victim
	Lent               int64   // the most that was ever lent at once
	Keeping            bool    // the cache keeps the entries it has, as is best for loops
	Credit             float64 // C
}

// NewFloor makes the default policy with bounds of the caller's choice. The Config MUST be valid.
func NewFloor(c Config, f FloorConfig) *Floor {
	f = f.orDefaults()
	n := c.Slots
	p := &Floor{
		capacity: c.Bytes, slots: int32(n), cfg: f, refresh: c.Refresh, predicted: c.Refresh != nil,
		most:    f.Credit * float64(c.Bytes),
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

// Stats returns the policy's statistics.
func (p *Floor) Stats() FloorStats {
	s := p.stats
	s.Credit = p.credit
	if p.follower != nil {
		s.Lent, s.Keeping = p.follower.most, p.follower.keeping
	}
	return s
}

func (p *Floor) earn(bytes float64) { p.credit = min(p.credit+bytes, p.cfg.Cap*float64(p.capacity)) }

// away adds bytes to Φ and takes them off the credit.
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

// Warm is as in [Warmer].
func (p *Floor) Warm(s Slot) {
	e, at := &p.entries[s], p.shadow.links[s]
	read := e.bytes ^ int64(e.class) ^ int64(p.heaps[0].pos[s])
	if at.next != unlinked {
		read ^= int64(p.shadow.links[at.next].prev) ^ int64(p.shadow.links[at.prev].next)
	}
	p.read = read // so that the reads are not left out
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

// limits returns how much may be lent now.
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

// start adds bytes to b, up to its limit.
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

// haunt makes a ghost. The caller links it into the shadow.
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

// admit adds a node to the shadow as its most recent, and evicts from the shadow until it fits.
func (p *Floor) admit(node int32, bytes int64) {
	p.shadow.pushNewest(node)
	p.shadowBytes += bytes
	p.shadowCount++
	p.trim()
}

// trim evicts from the shadow, in LRU's order, until it fits the capacity.
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

// try makes a new entry the next victim, except for one in keptOne.
func (p *Floor) try(s Slot) {
	if p.kept++; p.kept%keptOne != 0 {
		p.entries[s].trial, p.entries[s].ret = true, Never
	}
}

// Resize changes the capacity of this cache and of the shadow. The bound then compares with an LRU cache that is
// resized at the same times. Evictions from the shadow can only shrink Φ, so the credit does not fall. b does not
// change.
func (p *Floor) Resize(bytes int64) {
	p.capacity = bytes
	p.trim()
	p.earn(0)
	if p.follower != nil {
		p.follower.resize(bytes)
	}
}

// Predict sets the prediction of an entry, as of now. An entry on trial stays the next victim.
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

// place puts an entry into its heaps. An entry whose due time moved later keeps its old key in expiry until that comes
// up, so most uses leave expiry untouched.
func (p *Floor) place(s Slot) {
	side := ahead
	if p.shadow.has(s) {
		side = shadowed
	}
	p.placeOn(side, s)
}

// placeOn does the work of place for a caller that knows whether the entry is in the shadow.
func (p *Floor) placeOn(side class, s Slot) {
	e, c := &p.entries[s], overdue
	if e.ret > p.now {
		c, e.due = ahead, p.due(e)
	}
	at := int32(unlinked)
	if e.due != 0 { // it was ahead since it was inserted
		at = p.expiry.pos[s]
	}
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

// due returns when to check a prediction again. With Refresh that is each time the entry's age has doubled, but no
// later than its predicted return.
func (p *Floor) due(e *floorEntry) int64 {
	wait := e.ret - p.now
	if p.refresh == nil || e.ret == Never {
		return e.ret
	}
	return p.now + min(wait, max(p.now-e.last, wait/8, 1))
}

// rank returns an entry's key in its heap.
func (e *floorEntry) rank() int64 {
	if e.class&overdue != 0 {
		return -e.last
	}
	return e.ret
}

// unlink takes an entry out of its heap. It stays in expiry.
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

// Victim evicts the entry with the farthest return. A risky one needs credit.
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

// wrong reports whether the cache follows predictions that have become wrong.
func (p *Floor) wrong() bool { return p.follower != nil && !p.follower.keeping && p.follower.behind() }

// forced returns LRU's own victim: the least recent entry of the shadow that may be evicted. The caller knows that last
// may be.
func (p *Floor) forced(last Slot, evictable func(Slot) bool) Slot {
	s := p.shadow.oldest()
	for s != last && (s >= p.slots || evictable != nil && !evictable(s)) {
		s = p.shadow.newer(s)
	}
	return s
}

// expire checks the entries that are due. Without Refresh they become overdue. With it, up to 64 get a new prediction
// and the others wait for the next eviction.
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

// anyone adds random entries to the n that get new predictions. So no prediction is much older than the time it takes
// to replace the cache, and a forecaster that learns from these requests sees the whole cache.
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

// nth returns the i-th entry, counting through the heaps. Every entry is in exactly one.
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

// maxLater limits how many entries one eviction moves back in expiry because their due time is later than their key.
const maxLater = 256

// drawn is the number of random entries per eviction. Twice as many make an eviction take half as long again, and close
// no more of the gap to the optimum on scarab-recs.
const drawn = 24

// returns gives the time at which an entry is expected back.
func (p *Floor) returns(s Slot) int64 {
	e := &p.entries[s]
	if e.class&overdue != 0 {
		return 2*p.now - e.last
	}
	return e.ret
}

// farthest returns the entry with the latest expected return among those in the shadow (shadowed) or those outside it
// (0). Entries that evictable refuses leave the heaps until unhide.
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

package alloc

import (
	"math"
	"math/bits"
)

// Refill chooses rows of a table to fetch into a cache before requests ask for them (HLM-4 in docs/explain/papers.md).
// It remembers how often rows were used and when last, for a bounded number of rows. It has two reasons to fetch:
//
//   - Room: the cache is new or has grown. Rows that are worth most are fetched, until as many were as there is room
//     for.
//   - Return: hits fell, and rows that had been out of use for a while are missed again. Rows that went out of use in
//     the same minute are expected to come back with them. The uses of that minute's rows are shared out among its
//     rows in proportion to their earlier uses. A row is fetched if it is expected more often than a cached row is
//     replaced. The hottest are fetched first, so misses and thus the bar fall as the cache fills.
//
// Rows that nobody used before cannot be refilled. Keys are hashes. Refill is not safe for concurrent use.
type Refill struct {
	known []bucket
	now   float64
	era   uint32
	eras  [refillEras]refillEra // by era: those that the rows of known were used in last
	rows  float64               // that the cache holds

	hits, misses float64 // per second, decayed over refillWindow
	usual        float64 // share of hits, decayed over usualWindow
	uses         float64 // of all known rows
	seen         float64 // seconds with traffic

	room   int  // rows to fetch because there is room
	back   bool // rows are coming back
	budget int  // rows to fetch because others are coming back
	until  float64
	rest   float64 // rows are not looked for before this time

	pass refillPass
	draw uint64
}

// bucket has the rows whose hashes lead to it.
type bucket [4]knownRow

type knownRow struct {
	key  uint64 // 0: free
	era  uint32 // of the last use or fetch
	uses uint32
}

// refillEra describes the rows that were used last in an era.
type refillEra struct {
	era          uint32
	uses         float64
	back, missed float64 // uses of them per second and how many of these were missed, decayed
	at           float64
}

func (e *refillEra) left(now float64) float64 { return max(0, 1-(now-e.at)/refillWindow) }

// refillPass looks through known for rows of a level, from the highest down.
type refillPass struct {
	on    bool
	room  bool
	next  int // bucket
	level int
	below int // the highest level below it that was seen; −1: none
}

// Wanted is a row to fetch.
type Wanted struct {
	Key   uint64
	Uses  uint32  // that are remembered
	Share float32 // of all look-ups that it is expected to have
}

const (
	refillEras   = 2048 // older ones share places with younger ones, which forget them
	eraSeconds   = 60
	refillWindow = 2.0
	usualWindow  = 120.0
	leastTraffic = 10.0 // seconds of traffic after which the usual share of hits is known
	fallenTo     = 0.95 // of the usual share of hits: below it, rows that come back are fetched,
	risenTo      = 0.99 // and until this
	backLeast    = 4.0  // misses of an era's rows per second that are not chance
	returnMost   = 300  // seconds for which rows that come back are fetched
	backoff      = 0.25 // seconds between looking for rows that come back
	sampleHits   = 16   // one hit in so many is noted
	levels       = 32
	eraFade      = 16      // eras in which the worth of a row halves
	bucketsAtOne = 1 << 10 // that a call of Next looks at
)

// NewRefill remembers at least so many rows, rounded up to a power of two.
func NewRefill(rows int) *Refill {
	return &Refill{known: make([]bucket, 1<<bits.Len(uint(max(rows, 4)-1)/4))}
}

// Len returns how many rows are remembered at most.
func (r *Refill) Len() int { return 4 * len(r.known) }

// Cached sets how many rows the cache holds.
func (r *Refill) Cached(rows int) { r.rows = float64(rows) }

// Gathered notes a batch: the hashes of all keys, and of those that were missed. Each missed row is noted, and one in
// sampleHits of all, with that weight.
func (r *Refill) Gathered(now float64, keys, missed []uint64) {
	r.advance(now)
	r.draw = r.draw*6364136223846793005 + 1442695040888963407
	for i := int(r.draw >> 60); i < len(keys); i += sampleHits {
		r.use(keys[i], sampleHits, false)
	}
	for _, k := range missed {
		r.use(k, 1, true)
	}
	r.hits += float64(len(keys)-min(len(missed), len(keys))) / refillWindow
	r.misses += float64(len(missed)) / refillWindow
}

// advance lets time pass.
func (r *Refill) advance(now float64) {
	dt := now - r.now
	if dt <= 0 {
		return
	}
	r.now = now
	r.era = uint32(now / eraSeconds)
	keep := max(0, 1-dt/refillWindow)
	r.hits, r.misses = r.hits*keep, r.misses*keep
	if sum := r.hits + r.misses; sum > 0 {
		dt = min(dt, refillWindow)
		r.seen += dt
		share := r.hits / sum
		r.usual += (share - r.usual) * min(1, max(dt/usualWindow, dt/r.seen))
	}
}

func (r *Refill) place(key uint64) *bucket {
	hi, lo := bits.Mul64(key, 0x9E3779B97F4A7C15)
	return &r.known[(hi^lo)&uint64(len(r.known)-1)]
}

// at returns what is known of an era.
func (r *Refill) at(era uint32) *refillEra {
	e := &r.eras[era%refillEras]
	if e.era != era {
		*e = refillEra{era: era, at: r.now}
	}
	return e
}

// leave takes a row out of its era, and its part of the uses that come back. A row that was cached had no part in the
// misses.
func (r *Refill) leave(k *knownRow, lacking bool) {
	e := r.at(k.era)
	if e.uses > 0 {
		left := max(0, 1-float64(k.uses)/e.uses)
		e.back *= left
		if lacking {
			e.missed *= left
		}
	}
	e.uses -= float64(k.uses)
	r.uses -= float64(k.uses)
}

// enter puts a row into this era.
func (r *Refill) enter(k *knownRow) {
	k.era = r.era
	r.at(r.era).uses += float64(k.uses)
	r.uses += float64(k.uses)
}

// use notes uses of a row.
func (r *Refill) use(key uint64, weight uint32, missed bool) {
	if key == 0 {
		return
	}
	b, least := r.place(key), 0
	for i := range b {
		if b[i].key == key {
			r.again(&b[i], weight, missed)
			return
		}
		if r.worth(&b[i]) < r.worth(&b[least]) {
			least = i
		}
	}
	old := &b[least]
	if old.key != 0 {
		r.leave(old, false)
	}
	*old = knownRow{key: key, uses: weight}
	r.enter(old)
}

// again notes another use of a known row. Uses of earlier eras count half.
func (r *Refill) again(k *knownRow, weight uint32, missed bool) {
	r.leave(k, missed)
	if e := r.at(k.era); r.returned(k) {
		left := e.left(r.now)
		e.back, e.missed, e.at = e.back*left+float64(weight)/refillWindow, e.missed*left, r.now
		if missed {
			e.missed += 1 / refillWindow
		}
	}
	if k.era != r.era {
		k.uses /= 2
	}
	k.uses = min(k.uses, 1<<30) + weight
	r.enter(k)
}

// returned reports whether a row that is used now went out of use before the last eras.
func (r *Refill) returned(k *knownRow) bool { return k.era+1 < r.era }

// worth orders rows: the uses, which fade.
func (r *Refill) worth(k *knownRow) uint32 { return k.uses >> min((r.era-k.era)/eraFade, 31) }

// Known reports whether a row is remembered. It is for tests.
func (r *Refill) Known(key uint64) bool {
	for _, k := range r.place(key) {
		if k.key == key {
			return true
		}
	}
	return false
}

// Forget forgets a row: the store has it no more.
func (r *Refill) Forget(key uint64) {
	b := r.place(key)
	for i := range b {
		if b[i].key == key {
			r.leave(&b[i], false)
			b[i] = knownRow{}
		}
	}
}

// Grown says that there is room for so many rows.
func (r *Refill) Grown(rows int) {
	r.room += max(rows, 0)
	r.pass = refillPass{}
}

// Wants reports whether there is a reason to fetch. It finds out whether rows are coming back.
func (r *Refill) Wants(now float64) bool {
	r.advance(now)
	if r.room > 0 {
		return true
	}
	all := r.hits + r.misses
	usual := r.usual * all
	chance := 2 * math.Sqrt(all/refillWindow) // of hits per second: four standard deviations or more
	switch {
	case !r.back && r.hits < fallenTo*usual-chance && r.seen > leastTraffic:
		r.back, r.until, r.budget = true, now+returnMost, int(r.rows)
	case r.back && (r.hits >= risenTo*usual || now > r.until || r.budget <= 0):
		r.back = false
	}
	return r.back && now >= r.rest
}

// Returning reports whether rows are coming back, as Wants found.
func (r *Refill) Returning() bool { return r.back }

// Next appends up to n rows to fetch, the hottest first. It looks at a bounded number of rows. When there are no more
// it returns fewer, and Wants says when to ask again. cached reports whether a row is cached. The caller fetches all
// that are returned, and offers them to the cache.
func (r *Refill) Next(dst []Wanted, n int, cached func(key uint64) bool) []Wanted {
	if !r.pass.on || r.pass.room != (r.room > 0) {
		r.pass = refillPass{on: true, room: r.room > 0, level: levels - 1, below: -1}
	}
	p := &r.pass
	bar := r.misses / max(r.rows, 1)
	for looked := 0; looked < bucketsAtOne && len(dst) < n && p.on && r.left() > 0; looked++ {
		dst = r.choose(dst, n, &r.known[p.next], bar, cached)
		if len(dst) == n {
			break // the bucket may have more
		}
		if p.next++; p.next == len(r.known) {
			p.next = 0
			if p.level, p.below = p.below, -1; p.level < 0 {
				r.ended()
			}
		}
	}
	return dst
}

// left returns how many rows may still be fetched for the reason that there is.
func (r *Refill) left() int {
	if r.pass.room {
		return r.room
	}
	return r.budget
}

// Failed gives back so many rows of the last Next that could not be fetched. Rows that were fetched because there is
// room are looked for again.
func (r *Refill) Failed(rows int) {
	if r.room > 0 || r.pass.room {
		r.room += rows
		r.pass = refillPass{}
	}
}

// ended notes that all rows were looked at.
func (r *Refill) ended() {
	if r.pass.room {
		r.room = 0
	}
	r.rest = r.now + backoff
	r.pass = refillPass{}
}

// choose appends the rows of a bucket that belong to the pass and are not cached.
func (r *Refill) choose(dst []Wanted, n int, b *bucket, bar float64, cached func(uint64) bool) []Wanted {
	for i := range b {
		k := &b[i]
		if k.key == 0 || len(dst) == n || r.left() <= 0 {
			continue
		}
		level := r.level(k, bar)
		if level < r.pass.level {
			r.pass.below = max(r.pass.below, level)
			continue
		}
		if r.pass.room && level > r.pass.level || cached(k.key) {
			continue
		}
		share := float64(k.uses) / max(r.uses, 1)
		if !r.pass.room {
			share = r.expected(k) / max(r.hits+r.misses, 1)
		}
		dst = append(dst, Wanted{k.key, k.uses, float32(min(share, 1))})
		r.leave(k, true)
		r.enter(k)
		if r.pass.room {
			r.room--
		} else {
			r.budget--
		}
	}
	return dst
}

// level returns the level of a row in the pass: the logarithm of its worth, or of how much more often it is expected
// than the bar; −1 if it is not to be fetched.
func (r *Refill) level(k *knownRow, bar float64) int {
	if r.pass.room {
		return min(bits.Len32(r.worth(k)), levels) - 2 // rows that were missed once are not worth it
	}
	ratio := r.expected(k) / max(bar, 1e-9)
	if ratio < 1 {
		return -1
	}
	return min(bits.Len64(uint64(min(ratio, 1<<62)))-1, levels-1)
}

// expected returns how often per second a row that went out of use is expected to be used; 0 if its era is not coming
// back.
func (r *Refill) expected(k *knownRow) float64 {
	e := r.at(k.era)
	left := e.left(r.now)
	if !r.returned(k) || e.missed*left < backLeast || e.uses <= 0 {
		return 0
	}
	return e.back * left * float64(k.uses) / e.uses
}

// Hottest appends up to n rows, those of the highest worth: what a restart fetches. They are in no order. It calls rest
// every bucketsAtOne buckets, in which r may be used: rows whose worth changes meanwhile may be missing.
func (r *Refill) Hottest(dst []Wanted, n int, rest func()) []Wanted {
	var rows [33]int // by level
	for i := range r.known {
		if i%bucketsAtOne == bucketsAtOne-1 {
			rest()
		}
		for j := range r.known[i] {
			rows[bits.Len32(r.worth(&r.known[i][j]))]++
		}
	}
	least, sum := len(rows), 0
	for least > 2 && sum+rows[least-1] <= n { // as in Next
		least--
		sum += rows[least]
	}
	more, before := n-sum, len(dst) // of the next level
	for i := range r.known {
		if i%bucketsAtOne == bucketsAtOne-1 {
			rest()
		}
		for j := range r.known[i] {
			k := &r.known[i][j]
			switch l := bits.Len32(r.worth(k)); {
			case len(dst)-before == n:
				return dst
			case l >= least:
			case l == least-1 && l >= 2 && more > 0:
				more--
			default:
				continue
			}
			dst = append(dst, Wanted{Key: k.key, Uses: r.worth(k)})
		}
	}
	return dst
}

// Load remembers rows of before a restart and fetches them as there is room.
func (r *Refill) Load(now float64, rows []Wanted) {
	r.advance(now)
	for _, w := range rows {
		r.use(w.Key, max(w.Uses, 1), false)
	}
	r.Grown(len(rows))
}

// Pace is the speed of a link, measured from fetches: the highest rate lately. A fetch that waits for others is slower
// than the link, so an average would be too low.
type Pace struct {
	best float64 // bytes per second
	at   float64
}

const paceFade = 60.0 // seconds in which a rate that is not seen again halves

// Note notes a fetch.
func (p *Pace) Note(now float64, bytes int64, seconds float64) {
	if bytes <= 0 || seconds <= 0 {
		return
	}
	if now > p.at {
		p.best *= max(0, 1-(now-p.at)/(2*paceFade))
		p.at = now
	}
	p.best = max(p.best, float64(bytes)/seconds)
}

// Rate returns the bytes per second, 0 before the first fetch.
func (p *Pace) Rate() float64 { return p.best }

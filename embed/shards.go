package embed

import (
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

const (
	MostShards = 1024 // largest number of shards of a table
	Profile    = 20   // shards that stand for a request's rows (HLM-5's K)
)

// Shards counts the look-ups of a table by range of keys, so that routers send requests to nodes that have their rows.
// A shard is a range of keys, by items' numbers: a power of two, so that it stays the same while a catalog grows a
// little. A shard is held if at most half of its recent look-ups missed the cache: rows that many ask for count more
// than others. Recent are a shard's last look-ups, and the last ones of all shards. Counting takes no lock and no
// memory, and looks at some of a batch's keys. Tables in memory are not counted: none of their rows is fetched.
type Shards struct {
	shift  int
	recent int64        // look-ups after which all counts are halved
	seen   atomic.Int64 // look-ups that were counted since then
	counts [MostShards]struct{ looked, missed atomic.Int64 }

	mu      sync.Mutex
	tripped bool // there was a round trip to the store
	trips   trips
}

const (
	shardSample = 256  // about so many keys of a batch are counted
	shardRecent = 256  // look-ups of a shard after which its counts are halved
	shardLeast  = 4    // look-ups of a shard that say whether it is held
	rowsRecent  = 4096 // rows after which the measured time of a row counts half
	rowsTrip    = 256  // a round trip counts as if it brought so many rows at least, where all bring about as many
	rowsVary    = 16   // standard deviation of the rows of a round trip from which on it says more than rowsTrip
)

// NewShards returns counts for keys below a number, before a cache of so many rows.
func NewShards(items, cached int) *Shards {
	return &Shards{shift: max(0, bits.Len(uint(max(items, 1)-1))-bits.Len(MostShards-1)),
		recent: max(1<<14, 2*int64(cached))}
}

// CountShards has look-ups of keys below a number counted by shard, from now on. The table may be in use.
func (t *Table) CountShards(items int) {
	cached := 0
	if t.cache != nil {
		cached = t.cache.Rows()
	}
	fresh := NewShards(items, cached)
	if old := t.shards.Load(); t.memory == nil && (old == nil || old.shift != fresh.shift) {
		t.shards.Store(fresh)
	}
}

// Shards returns the counts by shard; nil: they are not counted.
func (t *Table) Shards() *Shards { return t.shards.Load() }

// Of returns the shard of a key.
func (s *Shards) Of(key uint64) uint32 { return uint32(min(key>>s.shift, MostShards-1)) }

// Count takes a batch of keys, of which those at misses missed the cache.
func (s *Shards) Count(keys []uint64, misses []int32) {
	step := 1 + len(keys)/shardSample
	seen := s.seen.Add(int64((len(keys) + step - 1) / step))
	first := int(uint64(seen) * 0x9e3779b97f4a7c15 >> 32 % uint64(step)) // no position is always left out
	for i := first; i < len(keys); i += step {
		c := &s.counts[s.Of(keys[i])]
		if c.looked.Add(1) >= shardRecent {
			halve(&c.looked)
			halve(&c.missed)
		}
	}
	for _, i := range misses {
		if int(i)%step == first {
			s.counts[s.Of(keys[i])].missed.Add(1)
		}
	}
	if seen >= s.recent && s.seen.CompareAndSwap(seen, 0) {
		for i := range s.counts {
			halve(&s.counts[i].looked)
			halve(&s.counts[i].missed)
		}
	}
}

// halve loses nothing that others add meanwhile, and others may halve meanwhile.
func halve(n *atomic.Int64) {
	for v := n.Load(); !n.CompareAndSwap(v, v/2); v = n.Load() {
	}
}

// Fetched takes a round trip to the store that brought rows. The first one connects to the store and does not count.
func (s *Shards) Fetched(rows int, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.tripped {
		s.tripped = true
		return
	}
	s.trips.add(float64(rows), float64(took)/float64(time.Millisecond))
}

// RowMs returns the measured milliseconds to fetch a row from the store; 0: none was measured. The way to the store and
// back is not counted: the rows of a request go it together.
func (s *Shards) RowMs() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trips.row()
}

// trips are decayed sums over round trips to a store.
type trips struct {
	count, rows, ms, squares, products float64 // squares of rows, and products of rows and milliseconds
	least                              float64 // rows, at least rowsTrip of each trip
}

func (t *trips) add(rows, ms float64) {
	keep := math.Exp2(-max(rows, rowsTrip) / rowsRecent)
	t.count = t.count*keep + 1
	t.rows = t.rows*keep + rows
	t.ms = t.ms*keep + ms
	t.squares = t.squares*keep + rows*rows
	t.products = t.products*keep + rows*ms
	t.least = t.least*keep + max(rows, rowsTrip)
}

// row returns the milliseconds of a row: the slope of the line through the trips' rows and times. Trips with equally
// many rows have no such line, because nothing tells the rows from the way. There most of a trip of few rows is taken
// for the way.
func (t *trips) row() float64 {
	if t.rows == 0 {
		return 0
	}
	guess := t.ms / t.least
	covariance := t.products/t.count - t.rows/t.count*t.ms/t.count
	variance := max(0, t.squares/t.count-t.rows/t.count*t.rows/t.count)
	slope := (covariance + rowsVary*rowsVary*guess) / (variance + rowsVary*rowsVary)
	return min(max(slope, guess/rowsTrip), t.ms/t.rows) // noise must not make rows free, or dearer than trips
}

// AppendHeld appends a bit for each shard, the lowest first: 1 if most of its recent look-ups were hits.
func (s *Shards) AppendHeld(dst []byte) []byte {
	for i := 0; i < MostShards; i += 8 {
		b := byte(0)
		for k := range 8 {
			c := &s.counts[i+k]
			looked, missed := c.looked.Load(), c.missed.Load()
			if looked >= shardLeast && 2*missed <= looked {
				b |= 1 << k
			}
		}
		dst = append(dst, b)
	}
	return dst
}

// Hottest appends the shards that most of the keys are in, at most Profile of them, the hottest first. Of equals, the
// lowest is first.
func (s *Shards) Hottest(dst []uint32, keys func(yield func(key uint64) bool)) []uint32 {
	var counts [MostShards]int32
	for k := range keys {
		counts[s.Of(k)]++
	}
	from := len(dst)
	for shard, n := range counts {
		if n == 0 || len(dst)-from == Profile && n <= counts[dst[len(dst)-1]] {
			continue
		}
		if len(dst)-from < Profile {
			dst = append(dst, uint32(shard))
		}
		i := len(dst) - 1
		for ; i > from && counts[dst[i-1]] < n; i-- {
			dst[i] = dst[i-1]
		}
		dst[i] = uint32(shard)
	}
	return dst
}

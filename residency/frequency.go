package residency

import (
	"errors"
	"fmt"
	"math/bits"
	"time"
	"unsafe"
)

// ring is the number of sub-windows per key. A window is ring-1 sub-windows long and so touches ring of them: its end
// cuts through the oldest.
const ring = 8

// ways is the number of keys in a bucket, which is one cache line. A key has two buckets and is in one of them.
const ways = 8

// FrequencyConfig sizes a Frequency.
type FrequencyConfig struct {
	Users  int           // users to count with almost no loss; the table has a quarter more slots
	Window time.Duration // length of the sliding window; about as long as an unused user entry survives in the cache
	// HitDecay is the share of a user's estimate that a hit on the user's cached entry takes away,
	// in [0, 1). 0 turns decay off.
	HitDecay float32
}

// DefaultFrequency is a window of five minutes, as in the paper, with a decay of 1/32 per hit.
func DefaultFrequency(users int) FrequencyConfig {
	return FrequencyConfig{Users: users, Window: 5 * time.Minute, HitDecay: 1. / 32}
}

// Validate returns an error for the first invalid field.
func (c FrequencyConfig) Validate() error {
	switch {
	case c.Users < 1:
		return fmt.Errorf("residency: frequency table for %d users", c.Users)
	case c.Window < ring-1:
		return fmt.Errorf("residency: frequency window %v is too short", c.Window)
	case !(c.HitDecay >= 0 && c.HitDecay < 1):
		return fmt.Errorf("residency: hit decay %v is not in [0, 1)", c.HitDecay)
	}
	return nil
}

// Access is one request of a user, for ObserveBatch.
type Access struct {
	Key uint64 // hash of the user's id
	At  time.Duration
	Hit bool // the user's cached entry served it
}

// Frequency estimates how many requests each user made within the last window (f_u of BAT-5), in
// fixed memory and constant time. Updates are meant to be applied in batches off the request's path;
// until then a request reads an estimate that does not count itself, which is what Decide expects.
//
// The window slides in sub-windows: the estimate is the sum of whole sub-windows plus the oldest one
// in proportion to the part still inside. As long as no user was displaced and no entry was hit, the
// error is at most the requests of that oldest sub-window.
//
// A hit decays the estimate. The paper says: "whenever an existing user cache is accessed, the cache
// meta service decays its sliding-window frequency estimate", and leaves the amount open. Here Hit
// multiplies the counts so far by 1-HitDecay, and the request that hit is then counted in full. So a
// user has to return to keep its place: after n hits in a row the estimate is (1-(1-d)^n)/d. The order
// among users does not change.
//
// The table has a fixed number of slots. If both buckets of a new user are full, the user replaces the
// one of their 16 users with the lowest estimate (0 if expired). A displaced user starts over at zero.
// So displacement only makes estimates too low, and users who come once rarely displace hot ones.
type Frequency struct {
	keys   []uint64 // 0 is an empty slot; a key of 0 is counted as 1
	cells  []cell
	sub    time.Duration
	keep   float32 // 1 - HitDecay
	length int
}

// cell counts one key: slot e%ring holds sub-window e, for the last of them and the ring-1 before it.
type cell struct {
	last   uint32
	counts [ring]float32
}

// NewFrequency allocates the whole table.
func NewFrequency(c FrequencyConfig) (*Frequency, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	slots := c.Users + (c.Users+3)/4
	buckets := max(2, (slots+ways-1)/ways)
	if uint64(buckets) > 1<<32 {
		return nil, errors.New("residency: frequency table is too large")
	}
	return &Frequency{
		keys:  make([]uint64, buckets*ways),
		cells: make([]cell, buckets*ways),
		sub:   c.Window / (ring - 1),
		keep:  1 - c.HitDecay,
	}, nil
}

// Len is the number of users in the table, expired ones included.
func (f *Frequency) Len() int { return f.length }

// Bytes is the table's size in memory.
func (f *Frequency) Bytes() int {
	return len(f.keys) * int(unsafe.Sizeof(f.keys[0])+unsafe.Sizeof(f.cells[0]))
}

// Observe counts one request. Times may be out of order by less than a window; a request that is older
// than the window of the user's latest request is ignored.
func (f *Frequency) Observe(key uint64, now time.Duration) {
	key = named(key)
	epoch, _ := f.epoch(now)
	at := f.find(key)
	if at < 0 {
		at = f.place(key, now)
		f.keys[at] = key
		f.cells[at] = cell{last: epoch}
	}
	f.cells[at].add(epoch)
}

// ObserveBatch counts requests in order. A hit decays the estimate before the request is counted.
func (f *Frequency) ObserveBatch(batch []Access) {
	for _, a := range batch {
		if a.Hit {
			f.Hit(a.Key)
		}
		f.Observe(a.Key, a.At)
	}
}

// Estimate returns the number of requests of a user within the window that ends now, 0 for an unknown
// user. If now is before the user's latest request, the window ends with the sub-window of that request.
func (f *Frequency) Estimate(key uint64, now time.Duration) float64 {
	at := f.find(named(key))
	if at < 0 {
		return 0
	}
	epoch, inside := f.epoch(now)
	return float64(f.cells[at].sum(epoch, inside))
}

// Hit decays a user's estimate because its cached entry was used.
func (f *Frequency) Hit(key uint64) {
	at := f.find(named(key))
	if at < 0 {
		return
	}
	for i := range f.cells[at].counts {
		f.cells[at].counts[i] *= f.keep
	}
}

// epoch returns the number of the sub-window at a time, and the share of it that has passed. Numbers
// wrap around at 2^32, after a longer time than any server runs.
func (f *Frequency) epoch(now time.Duration) (uint32, float32) {
	now = max(now, 0)
	n := now / f.sub
	return uint32(n), float32(now-n*f.sub) / float32(f.sub)
}

// named maps key 0 to 1, because 0 marks an empty slot.
func named(key uint64) uint64 { return max(key, 1) }

// buckets returns the first slots of the two buckets of a key. Keys may come from a weak hash, so both
// halves of a product choose.
func (f *Frequency) buckets(key uint64) (int, int) {
	high, low := bits.Mul64(key, 0x9e3779b97f4a7c15)
	h := high ^ low
	n := uint64(len(f.keys) / ways)
	a := (h >> 32) * n >> 32
	b := (h & 0xffffffff) * n >> 32
	if a == b {
		b = (b + 1) % n
	}
	return int(a) * ways, int(b) * ways
}

// peek reads both buckets of a key. Its result says nothing.
func (f *Frequency) peek(key uint64) uint64 {
	a, b := f.buckets(named(key))
	return f.keys[a] ^ f.keys[b]
}

// find returns the slot of a key, or -1.
func (f *Frequency) find(key uint64) int {
	a, b := f.buckets(key)
	for _, first := range [2]int{a, b} {
		for i, k := range f.keys[first : first+ways] {
			if k == key {
				return first + i
			}
		}
	}
	return -1
}

// place returns the slot for a new key: a free one in the emptier bucket, else that of the user with the
// lowest estimate in both.
func (f *Frequency) place(key uint64, now time.Duration) int {
	a, b := f.buckets(key)
	freeA, slotA := f.free(a)
	freeB, slotB := f.free(b)
	if freeA+freeB > 0 {
		f.length++
		if freeA >= freeB {
			return slotA
		}
		return slotB
	}
	epoch, inside := f.epoch(now)
	coldest, lowest := -1, float32(0)
	for _, first := range [2]int{a, b} {
		for i := first; i < first+ways; i++ {
			if sum := f.cells[i].sum(epoch, inside); coldest < 0 || sum < lowest {
				coldest, lowest = i, sum
			}
		}
	}
	return coldest
}

// free returns the number of free slots of a bucket, and one of them.
func (f *Frequency) free(first int) (n, slot int) {
	for i, k := range f.keys[first : first+ways] {
		if k == 0 {
			n, slot = n+1, first+i
		}
	}
	return n, slot
}

// add counts a request in a sub-window.
func (c *cell) add(epoch uint32) {
	ahead := int32(epoch - c.last)
	if ahead <= -ring {
		return
	}
	for i := range uint32(min(max(ahead, 0), ring)) {
		c.counts[(epoch-i)%ring] = 0
	}
	if ahead > 0 {
		c.last = epoch
	}
	c.counts[epoch%ring]++
}

// sum returns the number of requests in the window that ends when the share inside of sub-window epoch has passed.
func (c *cell) sum(epoch uint32, inside float32) float32 {
	ahead := int32(epoch - c.last)
	if ahead < 0 {
		epoch, ahead, inside = c.last, 0, 1
	}
	if ahead >= ring {
		return 0
	}
	total := float32(0)
	for age := ahead; age < ring-1; age++ {
		total += c.counts[(epoch-uint32(age))%ring]
	}
	return total + (1-inside)*c.counts[(epoch-(ring-1))%ring]
}

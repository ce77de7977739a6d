package residency

import (
	"errors"
	"fmt"
	"math/bits"
	"time"
	"unsafe"
)

// A window is ring-1 sub-windows long; the one more is the sub-window that its tail cuts through.
const ring = 8

// ways is the number of keys in a bucket: one cache line. A key lives in one of two buckets.
const ways = 8

// FrequencyConfig sizes a Frequency.
type FrequencyConfig struct {
	Users  int           // users to hold next to without loss; the table has a quarter more slots
	Window time.Duration // length of the sliding window; about as long as an unused user entry survives in the cache
	// HitDecay is the share of a user's estimate that a hit on the user's cached entry takes away,
	// in [0, 1). 0 turns decay off.
	HitDecay float32
}

// DefaultFrequency is a window of five minutes, as in the paper, with a decay of 1/32 per hit.
func DefaultFrequency(users int) FrequencyConfig {
	return FrequencyConfig{Users: users, Window: 5 * time.Minute, HitDecay: 1. / 32}
}

// Validate reports the first field that makes no sense.
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
// in proportion to the part still inside. While no user was displaced and nothing hit, it is off by
// at most the requests of that oldest sub-window. A hit decays: "whenever an existing user cache is
// accessed, the cache meta service decays its sliding-window frequency estimate" leaves the amount
// open; here Hit multiplies what was counted so far by 1-HitDecay, and the request that hit is then
// counted in full. So an entry must keep being asked for to keep its place, a user served n times from
// the cache stands at (1-(1-d)^n)/d, and the order among users is kept.
//
// The table has a fixed number of slots. A new user in two full buckets replaces the one of their 16
// with the lowest estimate (the expired have 0). A displaced user starts over: estimates only ever
// err low, and the hot are safe from passers-by.
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

// Observe counts one request. Times may be out of order by less than a window; what is older than
// the window at the user's latest request is not counted.
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

// ObserveBatch applies requests in order, hits first decaying what was there.
func (f *Frequency) ObserveBatch(batch []Access) {
	for _, a := range batch {
		if a.Hit {
			f.Hit(a.Key)
		}
		f.Observe(a.Key, a.At)
	}
}

// Estimate is the number of requests of a user within the window that ends now; 0 for the unknown.
// A now before the user's latest request counts as that request's sub-window.
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

// epoch is the sub-window of a time and the share of it that has passed. Sub-windows are counted
// modulo 2^32: longer than any server runs.
func (f *Frequency) epoch(now time.Duration) (uint32, float32) {
	now = max(now, 0)
	n := now / f.sub
	return uint32(n), float32(now-n*f.sub) / float32(f.sub)
}

// named keeps 0 for empty slots.
func named(key uint64) uint64 { return max(key, 1) }

// buckets are the first slots of the two buckets of a key. Keys are hashes but may come from a weak
// one, so both halves of a product choose.
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

// find is the slot of a key, or -1.
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

// place is the slot for a new key: a free one in the emptier bucket, else the coldest of both.
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

// free is the number of free slots of a bucket and one of them.
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

// sum is the number of requests in the window that ends at a share of a sub-window.
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

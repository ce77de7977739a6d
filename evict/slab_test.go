package evict

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// exact holds a row's counts as floats.
type exact struct {
	last        uint64
	short, long float64
}

func (e *exact) use(now uint64, c Slab) {
	age := float64(now - e.last)
	e.short = e.short*math.Exp2(-age/math.Exp2(float64(c.short))) + 1
	e.long = e.long*math.Exp2(-age/math.Exp2(float64(c.long))) + 1
	e.last = now
}

// value returns log2(long + 2^(2(mode−1))·short) as of now.
func (e *exact) value(now uint64, c Slab, mode Mode) float64 {
	age := float64(now - e.last)
	short := e.short * math.Exp2(-age/math.Exp2(float64(c.short)))
	return math.Log2(e.long*math.Exp2(-age/math.Exp2(float64(c.long))) + short*math.Exp2(float64(modeStep*(mode-1))))
}

// Stamps follow counts in floating point, even when their fields wrap around.
func TestStampsAreDecayedCounts(t *testing.T) {
	c, r := NewSlab(1000), rand.New(rand.NewPCG(1, 1))
	for range 200 {
		now := r.Uint64N(1 << 45)
		m, e := c.First(now), exact{last: now, short: 1, long: 1}
		for range r.IntN(40) {
			now += r.Uint64N(4000)
			m = c.Use(m, now)
			e.use(now, c)
			at := now + r.Uint64N(4000)
			for mode := Mode(1); mode < modes; mode++ {
				got, want := float64(c.Value(m, at, mode))/(1<<fraction), e.value(at, c, mode)
				if math.Abs(got-want) > 0.6 {
					t.Fatalf("mode %d: the stamp is worth %.2f, the counts %.2f", mode, got, want)
				}
			}
			if age, want := c.Age(m, at), int32(at>>c.last)-int32(now>>c.last); age != want {
				t.Fatalf("age %d, want %d", age, want)
			}
		}
	}
}

// Place takes one of the seven slots that had the least value at the last scan and were not used since. A row of less
// value is declined.
func TestPlace(t *testing.T) {
	c, r := NewSlab(64), rand.New(rand.NewPCG(2, 2))
	var stamps [SlabSlots]Stamp
	now := uint64(1000)
	for i := range stamps {
		stamps[i] = c.First(now)
	}
	var q Queue
	placed, declined := 0, 0
	for range 20_000 {
		now += 1 + r.Uint64N(3)
		if i := r.IntN(SlabSlots); i < 48 {
			stamps[i] = c.Use(stamps[i], now)
			continue
		}
		m := c.First(now)
		slot, ok := c.Place(&q, m, now, 2, (*tinyStamps)(&stamps))
		if !ok {
			declined++
			continue
		}
		placed++
		if c.Value(stamps[slot], now, 2) > c.Value(m, now, 2) {
			t.Fatalf("slot %d is worth more than the row that replaces it", slot)
		}
		if slot < 48 && c.Age(stamps[slot], now) < 2 {
			t.Fatalf("slot %d was used just before", slot)
		}
		stamps[slot] = m
	}
	if placed == 0 {
		t.Errorf("nothing was placed, %d declined", declined)
	}
}

// look finds the same slots as a sort.
func TestLook(t *testing.T) {
	c, r := NewSlab(5000), rand.New(rand.NewPCG(4, 4))
	for turn := range 400 {
		var stamps tinyStamps
		now := r.Uint64N(1 << 40)
		for i := range stamps {
			stamps[i] = c.First(now - r.Uint64N(1+now%(1<<uint(1+turn%22))))
			for range r.IntN(3) {
				stamps[i] = c.Use(stamps[i], now-r.Uint64N(1<<10))
			}
		}
		for mode := range Mode(modes) {
			slots := make([]int, SlabSlots)
			for i := range slots {
				slots[i] = i
			}
			slices.SortFunc(slots, func(a, b int) int { // among equals the last comes first
				return cmp.Or(cmp.Compare(c.Value(stamps[a], now, mode), c.Value(stamps[b], now, mode)), b-a)
			})
			var q Queue
			c.look(&q, now, mode, &stamps)
			for i, slot := range slots[:queueLen] {
				if got := int(q.slots[queueLen-1-i]); got != slot {
					t.Fatalf("mode %d: slot %d goes as number %d, want %d", mode, got, i, slot)
				}
			}
			if next, ok := c.Next(&q, &stamps); !ok || next != slots[0] {
				t.Fatalf("mode %d: the next is %d, %v; want %d", mode, next, ok, slots[0])
			}
		}
	}
}

// If all rows are looked up equally often, most missed rows may be skipped. If some are popular for a while, they may
// not.
func TestSpare(t *testing.T) {
	r, slab := rand.New(rand.NewPCG(5, 5)), NewSlab(1024)
	alike, popular := NewTuner(slab, 16), NewTuner(slab, 16)
	mix := func(k uint64) uint64 { return (k + 1) * 0xBF58476D1CE4E5B9 }
	spares := 0
	for now := range uint64(300_000) {
		alike.Access(mix(r.Uint64N(1150)), now)
		popular.Access(mix(now/4000*300+uint64(math.Exp(r.Float64()*math.Log(5000)))), now)
		if now > 100_000 && alike.Spare() {
			spares++
		}
	}
	if spares < 190_000 {
		t.Errorf("rows that are looked up alike are spared at %d of 200,000 look-ups", spares)
	}
	if popular.Spare() {
		t.Error("rows are spared where those that are popular change")
	}
	n := 0
	for h := range uint64(128_000) {
		if !Spared(mix(h), 7*h) {
			n++
		}
	}
	if n < 800 || n > 1200 {
		t.Errorf("%d of 128,000 rows are offered, want one in 128", n)
	}
}

// A miss that is reported late, after all rows were used again, still gets an answer.
func TestPlaceLate(t *testing.T) {
	c := NewSlab(64)
	var q Queue
	for mode := range Mode(modes) {
		var stamps tinyStamps
		for i := range stamps {
			stamps[i] = c.First(5000)
		}
		c.Place(&q, c.First(1000), 1000, mode, &stamps)
	}
}

func TestGhostKeepsWhatIsWorthMost(t *testing.T) {
	c := NewSlab(1000)
	var g Ghost
	now := uint64(1 << 20)
	often := c.First(now)
	for range 10 {
		often = c.Use(often, now)
	}
	g.Put(c, 1<<16, often, now, 3) // all these keys share one group of places
	for i := range uint64(100) {
		g.Put(c, (i+2)<<16, c.First(now), now, 3)
	}
	if got, want := g.Take(c, 1<<16, now), c.Use(often, now); got&(1<<40-1) != want&(1<<40-1) {
		t.Errorf("the stamp of the row that was used often is %x, want %x", got, want)
	}
	if got := g.Take(c, 1<<16, now); got != c.First(now) {
		t.Errorf("a row that was taken is still there: %x", got)
	}
}

// The tuner chooses LRU if a row's next use depends only on its last one, and counts if rows are popular.
func TestTuner(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	slab := NewSlab(1024)
	popular, recent := NewTuner(slab, 16), NewTuner(slab, 16)
	stack := make([]uint64, 4096)
	for i := range stack {
		stack[i] = r.Uint64()
	}
	mix := func(k uint64) uint64 { return (k + 1) * 0xBF58476D1CE4E5B9 }
	for now := range uint64(300_000) {
		popular.Access(mix(uint64(math.Exp(r.Float64()*math.Log(50_000)))), now)
		at := int(math.Exp(r.Float64() * math.Log(6000)))
		key := r.Uint64()
		if at < len(stack) {
			key = stack[at]
		}
		at = min(at, len(stack)-1)
		copy(stack[1:at+1], stack[:at])
		stack[0] = key
		recent.Access(key, now)
	}
	if got := popular.Best(); got == LRU {
		t.Errorf("mode %d on Zipf's law", got)
	}
	if got := recent.Best(); got != LRU && got < modes-1 {
		t.Errorf("mode %d where recency is all", got)
	}
}

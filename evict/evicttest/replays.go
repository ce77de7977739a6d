// Package evicttest checks eviction policies: those of package evict, and others that are registered with it.
package evicttest

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"grebe/evict"
)

// Replays serves drawn traces with several kinds of predictions through each policy, and returns a line about each.
func Replays(t *testing.T, names []string) string {
	t.Helper()
	var out strings.Builder
	for _, kind := range []string{"skewed", "loop", "scans", "phases", "sessions"} {
		steps := drawTrace(kind, 12000)
		for _, mode := range []string{"none", "near", "wrong", "later", "learnt"} {
			for _, name := range names {
				learns := (kind == "skewed" || kind == "sessions") && (name == "default" || name == "laru")
				if mode == "learnt" && !learns || mode != "none" && !evict.Predicts(name) {
					continue
				}
				c := newReplayed(t, name, mode, steps)
				for i := range steps {
					c.serve(t, i)
				}
				fmt.Fprintf(&out, "%s %s %s: %d hits, %d bytes, %d removed", kind, mode, name, c.hits, c.served, c.removed)
				if f, ok := c.Policy.(*evict.Floor); ok {
					s := f.Stats()
					fmt.Fprintf(&out, "; LRU %d of %d, away %d, forced %d, lent %d, keeping %v, credit %.3f",
						s.LRUHits, s.LRUHits+s.LRUMisses, s.Away, s.Forced, s.Lent, s.Keeping, s.Credit)
				}
				if c.forecast != nil {
					rms, n := c.forecast.Tracker.Error()
					fmt.Fprintf(&out, "; error %.4f of %d, wrong %d", rms, n, c.forecast.Tracker.Wrong())
				}
				out.WriteByte('\n')
			}
		}
	}
	return out.String()
}

// step is a request of a drawn trace.
type step struct {
	key   uint64
	bytes int64
	next  int64 // when its key is requested next, or evict.Never
	ctx   evict.Context
}

// drawTrace draws n requests of a kind.
func drawTrace(kind string, n int) []step {
	r := rand.New(rand.NewPCG(11, 12))
	z := rand.NewZipf(r, 1.1, 8, 3000)
	var keys []uint64
	var contexts []evict.Context
	last := map[uint64]evict.Last{}
	for len(keys) < n {
		i := uint64(len(keys))
		switch kind {
		case "skewed": // the popular keys drift
			keys = append(keys, z.Uint64()+i/2000*37)
		case "loop": // with noise
			keys = append(keys, i%500)
			if r.IntN(20) == 0 {
				keys[i] = 1000 + r.Uint64N(2000)
			}
		case "scans": // between requests of popular keys
			if i/700%3 == 2 {
				keys = append(keys, 1<<20+i)
			} else {
				keys = append(keys, z.Uint64()%400)
			}
		case "phases": // a loop, then popular keys, then another loop
			switch i / 3000 % 3 {
			case 0:
				keys = append(keys, i%350)
			case 1:
				keys = append(keys, 2000+z.Uint64()%900)
			default:
				keys = append(keys, 5000+i%900)
			}
		case "sessions": // each request continues one of the users' prompts, block by block
			user := z.Uint64() % 150
			p := evict.NextPrompt(64*int(2+i%7), 64, 64, last[user], int64(i))
			last[user] = p.Last()
			for b := range 2 + i%7 {
				keys = append(keys, user<<10|b)
				contexts = append(contexts, p.Context(64*int(b), 64, 1, 1))
			}
		}
	}
	steps, next := make([]step, n), map[uint64]int64{}
	for i := n - 1; i >= 0; i-- {
		k := keys[i]
		s := step{key: k, bytes: 1 + int64(k*0x9e3779b97f4a7c15>>61), next: evict.Never}
		s.ctx = evict.Single(int(k%3), float32(s.bytes), float32(s.bytes), 1)
		if contexts != nil {
			s.ctx = contexts[i]
		}
		if at, ok := next[k]; ok {
			s.next = at
		}
		next[k] = int64(i)
		steps[i] = s
	}
	return steps
}

// replayed is a cache that serves a trace.
type replayed struct {
	evict.Policy
	steps    []step
	mode     string
	forecast *evict.Forecaster
	slotOf   map[uint64]evict.Slot
	at       []int // by slot: the request that used it last
	bytes    []int64
	free     []evict.Slot
	used     int64
	room     int64
	now      int64
	hits     int64
	served   int64 // bytes of them
	removed  int
	unpinned bool // no slot is ever pinned
}

func newReplayed(t *testing.T, policy, mode string, steps []step) *replayed {
	t.Helper()
	const slots, room = 200, 700
	c := &replayed{steps: steps, mode: mode, slotOf: map[uint64]evict.Slot{}, at: make([]int, slots),
		bytes: make([]int64, slots), room: room}
	for s := range evict.Slot(slots) {
		c.free = append(c.free, slots-1-s)
	}
	cfg := evict.Config{Slots: slots, Bytes: room}
	if mode != "none" && mode != "later" {
		cfg.Refresh = c.refresh
	}
	if mode == "learnt" {
		c.forecast = evict.NewForecaster(slots)
	}
	var err error
	if c.Policy, err = evict.New(policy, cfg); err != nil {
		t.Fatal(err)
	}
	return c
}

// guess returns the prediction for the next use of the key of request i.
func (c *replayed) guess(i int) int64 {
	s := &c.steps[i]
	switch c.mode {
	case "near": // off by up to a factor of two
		if s.next == evict.Never {
			return evict.Never
		}
		return int64(i) + (s.next-int64(i))*int64(50+s.key*2654435761%150)/100
	case "wrong": // reversed
		if s.next == evict.Never {
			return c.now + 1
		}
		return c.now + 1 + 1<<20/(s.next-int64(i))
	}
	return 0
}

func (c *replayed) refresh(slots []evict.Slot, returns []int64) {
	if c.forecast != nil {
		keys := make([]uint64, len(slots))
		for i, s := range slots {
			keys[i] = c.steps[c.at[s]].key
		}
		c.forecast.Refresh(keys, c.now, returns)
		return
	}
	for i, s := range slots {
		returns[i] = max(c.guess(c.at[s]), returns[i])
	}
}

func (c *replayed) release(s evict.Slot) {
	delete(c.slotOf, c.steps[c.at[s]].key)
	c.used -= c.bytes[s]
	c.free = append(c.free, s)
}

// serve serves request i. At times some slots are pinned, some entries are removed, and the capacity changes.
func (c *replayed) serve(t *testing.T, i int) {
	s, now := &c.steps[i], int64(i)
	c.now = now
	a := evict.Access{Key: s.key, Bytes: s.bytes, Now: now, Cost: float64(s.bytes * int64(1+s.key%5))}
	switch c.mode {
	case "learnt":
		a.Return = c.forecast.Access(s.key, now, s.ctx)
		if c.forecast.Due() {
			c.forecast.Learn(now, evict.TrainParams{Trees: 16})
		}
	case "later": // predictions of a request come a few requests after it
		if j := i - 5; j >= 0 && c.steps[j].next > now {
			if slot, ok := c.slotOf[c.steps[j].key]; ok {
				c.Predict(slot, c.steps[j].next)
			}
		}
	default:
		a.Return = c.guess(i)
	}
	switch i {
	case len(c.steps) / 2:
		c.resize(t, c.room*3/5)
	case len(c.steps) * 3 / 4:
		c.resize(t, c.room*5/3)
	}
	if slot, ok := c.slotOf[s.key]; ok {
		c.hits++
		c.served += s.bytes
		c.at[slot] = i
		c.Hit(slot, a)
		return
	}
	if i%211 == 0 {
		for slot := range evict.Slot(len(c.bytes)) {
			held, ok := c.slotOf[c.steps[c.at[slot]].key]
			if ok && held == slot && slot%5 == evict.Slot(i%5) && len(c.slotOf) > 9 {
				c.Remove(slot)
				c.release(slot)
				c.removed++
				break
			}
		}
	}
	c.Miss(a)
	c.makeRoom(t, s.bytes)
	slot := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	c.slotOf[s.key], c.at[slot], c.bytes[slot] = slot, i, s.bytes
	c.used += s.bytes
	c.Insert(slot, a)
}

func (c *replayed) resize(t *testing.T, room int64) {
	c.room = room
	c.Resize(room)
	c.makeRoom(t, 0)
}

func (c *replayed) makeRoom(t *testing.T, bytes int64) {
	for c.used+bytes > c.room || len(c.free) == 0 {
		var evictable func(evict.Slot) bool
		if c.now%3 == 0 && !c.unpinned {
			evictable = func(s evict.Slot) bool { return (int64(s)+c.now)%4 != 0 }
		}
		s, ok := c.Victim(evictable)
		if !ok {
			t.Fatalf("request %d: no victim among %d", c.now, len(c.slotOf))
		}
		c.release(s)
	}
}

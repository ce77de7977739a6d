package residency

import (
	"fmt"
	"slices"
	"time"

	"grebe/plan"
)

// HotnessConfig sizes a Hotness. Zero means the default.
type HotnessConfig struct {
	Users  int           // users to count; 1 << 20
	Items  int           // items to count; 1 << 18
	Window time.Duration // of frequencies; that of DefaultFrequency
	Buffer int           // most accesses that wait to be counted; 65536
}

// Hotness estimates how often users and items are requested, and finds the coldest cached user (BAT-3). Requests only
// note their accesses in a bounded buffer; Apply counts them later, off the request's path. Times are durations since a
// common start.
type Hotness struct {
	config  HotnessConfig
	users   *Frequency
	items   *Frequency
	coldest coldest // users on the top level
	noted   []access
	from    int           // accesses before this one are counted
	now     time.Duration // latest time passed to a method
	read    uint64        // see warm
}

type access struct {
	key  uint64
	at   time.Duration
	hit  bool
	item bool
}

// NewHotness allocates the whole tables.
func NewHotness(c HotnessConfig) (*Hotness, error) {
	if c.Users == 0 {
		c.Users = 1 << 20
	}
	if c.Items == 0 {
		c.Items = 1 << 18
	}
	if c.Buffer == 0 {
		c.Buffer = 1 << 16
	}
	h := &Hotness{config: c, coldest: newColdest(), noted: make([]access, 0, c.Buffer)}
	var err error
	if h.users, err = frequency(c.Users, c.Window); err != nil {
		return nil, err
	}
	if h.items, err = frequency(c.Items, c.Window); err != nil {
		return nil, err
	}
	return h, nil
}

func frequency(n int, window time.Duration) (*Frequency, error) {
	cfg := DefaultFrequency(n)
	if window > 0 {
		cfg.Window = window
	}
	f, err := NewFrequency(cfg)
	if err != nil {
		return nil, fmt.Errorf("residency: %w", err)
	}
	return f, nil
}

// Config returns the sizes.
func (h *Hotness) Config() HotnessConfig { return h.config }

// Hold notes that a user is cached. Its frequency is estimated at the latest known time.
func (h *Hotness) Hold(user plan.Key) { h.coldest.set(user, h.users.Estimate(Hash(user), h.now)) }

// Leave notes that a user is no longer cached.
func (h *Hotness) Leave(user plan.Key) { h.coldest.remove(user) }

// User returns a user's frequency, and the lowest frequency among cached users.
func (h *Hotness) User(user plan.Key, now time.Duration) (frequency, coldest float64) {
	h.now = now
	// Frequencies fall as the window slides, so the stored one may be too high: update the coldest, a few times.
	for range 4 {
		k, stored, ok := h.coldest.first()
		if !ok {
			break
		}
		coldest = h.users.Estimate(Hash(k), now)
		if coldest >= stored {
			break
		}
		h.coldest.set(k, coldest)
	}
	return h.users.Estimate(Hash(user), now), coldest
}

// Items sets out[i] to the expected uses of keys[i] where tiers[i] is Missing.
func (h *Hotness) Items(keys []plan.Key, tiers []plan.Tier, now time.Duration, out []float32) {
	h.now = now
	read := uint64(0)
	for i := range keys { // see warm
		if tiers[i] == plan.Missing {
			read ^= h.items.peek(Hash(keys[i]))
		}
	}
	h.read = read
	for i := range keys {
		out[i] = 0
		if tiers[i] == plan.Missing {
			out[i] = float32(h.items.Estimate(Hash(keys[i]), now))
		}
	}
}

// NoteUser notes a request of a user, to be counted later. Hit says that the user's cached entry was used.
func (h *Hotness) NoteUser(user plan.Key, now time.Duration, hit bool) {
	h.now = now
	h.note(access{key: Hash(user), at: now, hit: hit})
}

// NoteItems notes a request with these candidates, to be counted later. It is called in both prefix orders, because it
// counts how often the items' KV could have been used.
func (h *Hotness) NoteItems(items []plan.Key, now time.Duration) {
	h.now = now
	for i := range items {
		h.note(access{key: Hash(items[i]), at: now, item: true})
	}
}

func (h *Hotness) note(a access) {
	if len(h.noted) == cap(h.noted) {
		for h.Apply(a.at) {
		}
	}
	h.noted = append(h.noted, a)
}

const (
	// countedAtOnce is the number of accesses that one call of Apply counts.
	countedAtOnce = 4096
	// refreshed is the number of cached users that Apply updates when all accesses are counted.
	refreshed = 256
)

// warmed is the number of accesses that are read ahead.
const warmed = 32

// warm reads what is known about the keys of accesses before they are counted. The reads do not depend on each other,
// so they wait for memory together.
func (h *Hotness) warm(some []access) {
	read := uint64(0)
	for i := range some {
		read ^= h.of(&some[i]).peek(some[i].key)
	}
	for i := range some {
		f := h.of(&some[i])
		if at := f.find(named(some[i].key)); at >= 0 {
			read ^= uint64(f.cells[at].last)
		}
	}
	h.read = read // so that the reads are not left out
}

// of returns the table that counts an access.
func (h *Hotness) of(a *access) *Frequency {
	if a.item {
		return h.items
	}
	return h.users
}

// Apply counts some of the noted accesses and reports whether there are more. When there are none, it updates the
// frequencies of some cached users, which fall as time passes.
func (h *Hotness) Apply(now time.Duration) (more bool) {
	h.now = now
	to := min(len(h.noted), h.from+countedAtOnce)
	for some := range slices.Chunk(h.noted[h.from:to], warmed) {
		h.warm(some)
		for i := range some {
			a := &some[i]
			f := h.of(a)
			if a.hit {
				f.Hit(a.key)
			}
			f.Observe(a.key, a.at)
		}
	}
	if h.from = to; to < len(h.noted) {
		return true
	}
	h.noted, h.from = h.noted[:0], 0
	h.coldest.refresh(refreshed, func(k plan.Key) float64 { return h.users.Estimate(Hash(k), now) })
	return false
}

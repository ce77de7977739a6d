// Package meta knows which entries are cached where and how hot they are, and holds no data (BAT-3).
//
// A request asks for the status of its keys and the hotness of its user before it is scheduled
// (Status, Users); stores report what they publish and drop (Put, Drop). Accesses are noted in a
// bounded buffer and counted later, off the request's path: by Apply, which the owner calls from the
// background, or by whoever finds the buffer full.
//
// An Index is safe for concurrent use; its lock is a leaf. Times are durations since one epoch.
package meta

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"grebe/internal/record"
	"grebe/plan"
	"grebe/schedule"
)

// Entry is what the index knows of a cached entry.
type Entry struct {
	Kind   plan.Kind
	Tokens int32
	Tier   plan.Tier
}

// Options bound an Index. Zero means the default.
type Options struct {
	Users  int           // users whose frequency is followed; 1 << 20
	Items  int           // items likewise; 1 << 18
	Window time.Duration // of frequencies; schedule's default
	Buffer int           // accesses noted before they must be counted; 65536
	Record *record.Room  // nil: nothing is recorded
}

// Index holds the state of all entries of one model.
type Index struct {
	mu      sync.Mutex
	entries map[plan.Key]Entry
	users   *schedule.Frequency
	items   *schedule.Frequency
	coldest coldest // cached users by frequency
	noted   []access
	counted []schedule.Access
	rec     *record.Room
}

type access struct {
	key  uint64
	at   time.Duration
	hit  bool
	item bool
}

// New returns an empty index.
func New(opt Options) (*Index, error) {
	if opt.Users == 0 {
		opt.Users = 1 << 20
	}
	if opt.Items == 0 {
		opt.Items = 1 << 18
	}
	if opt.Buffer == 0 {
		opt.Buffer = 1 << 16
	}
	x := &Index{
		entries: map[plan.Key]Entry{}, coldest: newColdest(),
		noted: make([]access, 0, opt.Buffer), counted: make([]schedule.Access, 0, opt.Buffer), rec: opt.Record,
	}
	x.rec.In("open", opt.Users, opt.Items, opt.Window, opt.Buffer)
	var err error
	if x.users, err = frequency(opt.Users, opt.Window); err != nil {
		return nil, err
	}
	if x.items, err = frequency(opt.Items, opt.Window); err != nil {
		return nil, err
	}
	return x, nil
}

func frequency(n int, window time.Duration) (*schedule.Frequency, error) {
	cfg := schedule.DefaultFrequency(n)
	if window > 0 {
		cfg.Window = window
	}
	f, err := schedule.NewFrequency(cfg)
	if err != nil {
		return nil, fmt.Errorf("meta: %w", err)
	}
	return f, nil
}

// Put records that an entry is held.
func (x *Index) Put(key plan.Key, e Entry, now time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.rec.On() {
		x.rec.In("put", [32]byte(key), e.Kind, e.Tokens, e.Tier, now)
	}
	x.entries[key] = e
	if e.Kind == plan.User && e.Tier != plan.Disk {
		x.coldest.set(key, x.users.Estimate(Hash(key), now))
	}
}

// Found records that an entry is held in a lower tier, unless it is known to be held higher.
func (x *Index) Found(key plan.Key, e Entry) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.rec.On() {
		x.rec.In("found", [32]byte(key), e.Kind, e.Tokens, e.Tier)
	}
	if _, ok := x.entries[key]; !ok {
		x.entries[key] = e
	}
}

// Lookup returns what is known of an entry.
func (x *Index) Lookup(key plan.Key) (Entry, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e, ok := x.entries[key]
	return e, ok
}

// Lower records that an entry is held in a lower tier only.
func (x *Index) Lower(key plan.Key, tier plan.Tier) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.rec.On() {
		x.rec.In("lower", [32]byte(key), tier)
	}
	e, ok := x.entries[key]
	if !ok {
		return
	}
	if e.Kind == plan.User {
		x.coldest.remove(key)
	}
	e.Tier = tier
	x.entries[key] = e
}

// Drop records that an entry is no longer held.
func (x *Index) Drop(key plan.Key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.rec.On() {
		x.rec.In("drop", [32]byte(key))
	}
	if x.entries[key].Kind == plan.User {
		x.coldest.remove(key)
	}
	delete(x.entries, key)
}

// Sample appends to dst the keys of those of about n entries, others each time, that are on disk only: for who looks whether they still
// are. A disk drops what has to make room there, and tells nobody.
func (x *Index) Sample(dst []plan.Key, n int) []plan.Key {
	x.mu.Lock()
	defer x.mu.Unlock()
	for key, e := range x.entries { // from a random place on
		if n--; n < 0 {
			break
		}
		if e.Tier == plan.Disk {
			dst = append(dst, key)
		}
	}
	return dst
}

// DropDisk records that an entry is no longer on disk, unless it is known to be held higher.
func (x *Index) DropDisk(key plan.Key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.rec.On() {
		x.rec.In("gone", [32]byte(key))
	}
	if e, ok := x.entries[key]; ok && e.Tier == plan.Disk {
		delete(x.entries, key)
	}
}

// Keys returns the keys of all entries.
func (x *Index) Keys() []plan.Key {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Collect(maps.Keys(x.entries))
}

// Status sets tiers[i] to where the entry of keys[i] is, Missing where it is nowhere.
func (x *Index) Status(keys []plan.Key, tiers []plan.Tier) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range keys {
		tiers[i] = plan.Missing
		if e, ok := x.entries[keys[i]]; ok {
			tiers[i] = e.Tier
		}
	}
	if x.rec.On() {
		x.rec.In("status", record.Keys(keys))
		x.rec.Did("tiers", record.Names(tiers))
	}
}

// User returns a user's frequency, and the lowest one among cached users.
func (x *Index) User(key plan.Key, now time.Duration) (frequency, coldest float64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	// Frequencies fall by themselves as the window slides: look at the coldest again, a few times.
	for range 4 {
		k, stored, ok := x.coldest.first()
		if !ok {
			break
		}
		coldest = x.users.Estimate(Hash(k), now)
		if coldest >= stored {
			break
		}
		x.coldest.set(k, coldest)
	}
	frequency = x.users.Estimate(Hash(key), now)
	if x.rec.On() {
		x.rec.In("user", [32]byte(key), now)
		x.rec.Did("frequency", frequency, coldest)
	}
	return frequency, coldest
}

// Items sets out[i] to the expected uses of keys[i] where tiers[i] is Missing.
func (x *Index) Items(keys []plan.Key, tiers []plan.Tier, now time.Duration, out []float32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range keys {
		out[i] = 0
		if tiers[i] == plan.Missing {
			out[i] = float32(x.items.Estimate(Hash(keys[i]), now))
		}
	}
	if x.rec.On() {
		x.rec.In("wanted", record.Keys(keys), record.Names(tiers), now)
		x.rec.Did("uses", out)
	}
}

// NoteUser notes a request of a user, to be counted later.
func (x *Index) NoteUser(key plan.Key, now time.Duration, hit bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.rec.On() {
		x.rec.In("use", [32]byte(key), now, hit)
	}
	x.note(access{key: Hash(key), at: now, hit: hit})
}

// NoteItems notes a request that had these items as candidates, to be counted later. It counts in either prefix order:
// the count is how often the items' KV could have been used.
func (x *Index) NoteItems(keys []plan.Key, now time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.rec.On() {
		x.rec.In("items", record.Keys(keys), now)
	}
	for i := range keys {
		x.note(access{key: Hash(keys[i]), at: now, item: true})
	}
}

func (x *Index) note(a access) {
	if len(x.noted) == cap(x.noted) {
		x.apply(a.at)
	}
	x.noted = append(x.noted, a)
}

// Apply counts what was noted, and looks again at some of the cached users, whose frequencies fall
// as time passes.
func (x *Index) Apply(now time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.rec.On() {
		x.rec.In("apply", now)
	}
	x.apply(now)
}

// refreshed is how many cached users one Apply looks at again.
const refreshed = 256

func (x *Index) apply(now time.Duration) {
	for _, item := range []bool{false, true} {
		x.counted = x.counted[:0]
		for i := range x.noted {
			if a := &x.noted[i]; a.item == item {
				x.counted = append(x.counted, schedule.Access{Key: a.key, At: a.at, Hit: a.hit})
			}
		}
		if item {
			x.items.ObserveBatch(x.counted)
		} else {
			x.users.ObserveBatch(x.counted)
		}
	}
	x.noted = x.noted[:0]
	x.coldest.refresh(refreshed, func(k plan.Key) float64 { return x.users.Estimate(Hash(k), now) })
}

// Len returns the number of entries.
func (x *Index) Len() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.entries)
}

// Hash shortens a key, which is a digest, for the frequency tables.
func Hash(k plan.Key) uint64 {
	h := uint64(0)
	for _, b := range k[:8] {
		h = h<<8 | uint64(b)
	}
	return h
}

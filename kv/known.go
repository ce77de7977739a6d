package kv

import (
	"runtime"
	"time"

	"grebe/internal/record"
	"grebe/plan"
	"grebe/residency"
)

// Lookup describes the entry under a key, in memory or on disk, by the nearest tier that has it. It does not count as a
// use.
func (s *Store) Lookup(key plan.Key) (residency.Entry, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.books.Lookup(key)
}

// Status sets tiers[i] to the nearest tier that has keys[i], or to Missing.
func (s *Store) Status(keys []plan.Key, tiers []plan.Tier) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.books.Status(keys, tiers)
	if s.rec.On() {
		s.rec.In("status", record.Keys(keys))
		s.rec.Did("tiers", record.Names(tiers))
	}
}

// Owner returns the number of a cache that shares the store, by the context that its keys are digests of. The first one
// has number 0 and owns the entries that are on disk when the store is made.
func (s *Store) Owner(space plan.Key) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, ok := s.owners[space]
	if !ok {
		n = uint32(len(s.owners))
		s.owners[space] = n
		s.spaces = append(s.spaces, space)
	}
	return n
}

// space returns the context of an owner's keys.
func (s *Store) space(owner uint32) plan.Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.spaces[owner]
}

// Owned returns the number of entries of an owner, in memory or on disk.
func (s *Store) Owned(owner uint32) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.books.Owned(owner)
}

// Keys returns the keys of the entries that Owned counts, in no order. The lock is held for a few entries at a time, so
// that others can use the store meanwhile. An entry that they move may be listed twice. The owner MUST NOT read its
// entries from disk or publish any meanwhile.
func (s *Store) Keys(owner uint32) (keys []plan.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.books.Snapshot(func(key plan.Key, e residency.Entry) {
		if e.Owner == owner {
			keys = append(keys, key)
		}
	}, s.pause)
	return keys
}

// pause releases the lock for a moment.
func (s *Store) pause() {
	s.mu.Unlock()
	runtime.Gosched() // lets a goroutine that waits for the lock run
	s.mu.Lock()
}

// Ever reports whether there has ever been an entry of a kind.
func (s *Store) Ever(kind plan.Kind) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.books.Ever(kind)
}

// SetHotness has the store estimate how often users and items are requested. It MUST be called before the store is
// used, and before the methods below it. All times are durations since a common start.
func (s *Store) SetHotness(c residency.HotnessConfig) error {
	h, err := residency.NewHotness(c)
	if err != nil {
		return err
	}
	s.hot = h
	s.books.SetHotness(h)
	return nil
}

// Frequency returns the number of requests of a user within the window, and the lowest such number among the users on
// the top level.
func (s *Store) Frequency(user plan.Key, now time.Duration) (frequency, coldest float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	frequency, coldest = s.hot.User(user, now)
	if s.rec.On() {
		s.rec.In("user", [32]byte(user), now)
		s.rec.Did("frequency", frequency, coldest)
	}
	return frequency, coldest
}

// Uses sets out[i] to the expected uses of the item of keys[i] where tiers[i] is Missing, 0 elsewhere.
func (s *Store) Uses(keys []plan.Key, tiers []plan.Tier, now time.Duration, out []float32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hot.Items(keys, tiers, now, out)
	if s.rec.On() {
		s.rec.In("wanted", record.Keys(keys), record.Names(tiers), now)
		s.rec.Did("uses", out)
	}
}

// NoteUser notes a request of a user, to be counted later. Hit says that the user's cached entry was used.
func (s *Store) NoteUser(user plan.Key, now time.Duration, hit bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rec.On() {
		s.rec.In("use", [32]byte(user), now, hit)
	}
	s.hot.NoteUser(user, now, hit)
}

// NoteItems notes a request with these candidates, to be counted later.
func (s *Store) NoteItems(items []plan.Key, now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rec.On() {
		s.rec.In("items", record.Keys(items), now)
	}
	s.hot.NoteItems(items, now)
}

// Count counts the noted requests. It releases the lock from time to time.
func (s *Store) Count(now time.Duration) {
	for more := true; more; {
		s.mu.Lock()
		if s.rec.On() {
			s.rec.In("apply", now)
		}
		more = s.hot.Apply(now)
		s.mu.Unlock()
	}
}

// Follow adds an event to a feed whenever an entry changes its tier, for routers to follow. The feed keeps the last
// size events. Boot identifies the start of the server. Without Follow there is no feed.
func (s *Store) Follow(boot uint64, size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.feed = residency.NewFeed(boot, size)
	s.books.SetFeed(s.feed)
}

// Since appends to dst the events after number seq, at most most of them: see residency.Feed. It returns false when
// they are no longer kept. Then the caller takes a Snapshot.
func (s *Store) Since(dst []residency.Event, boot, seq uint64, most int) ([]residency.Event, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.feed.Since(dst, boot, seq, most)
}

// Snapshot returns the tiers of all entries, and the boot and number of an event. A follower applies the entries in
// order, and then the events after that number. The lock is held for a few entries at a time, so that others can use
// the store meanwhile. If the feed keeps fewer events than come during a snapshot, the follower has to take another
// one.
func (s *Store) Snapshot() (all []residency.Event, boot, seq uint64) {
	boot, seq = s.Position()
	s.Scan(func(piece []residency.Event) bool {
		all = append(all, piece...)
		runtime.Gosched()
		return true
	})
	for i := range all {
		all[i].Seq = seq
	}
	return all, boot, seq
}

// Position returns the boot of the feed and the number of its last event.
func (s *Store) Position() (boot, seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.feed.Boot(), s.feed.Seq()
}

// Scan passes the tiers of all entries to visit, a few hundred at a time, and without the lock. It ends early when
// visit returns false. A follower reads the Position first, as with Snapshot.
func (s *Store) Scan(visit func(piece []residency.Event) bool) {
	var piece []residency.Event
	s.mu.Lock()
	defer s.mu.Unlock()
	more := true
	s.books.Scan(func(key plan.Key, e residency.Entry) {
		piece = append(piece, residency.Event{Key: key, Entry: e})
	}, func() bool {
		s.mu.Unlock()
		defer s.mu.Lock()
		more = visit(piece)
		piece = piece[:0]
		return more
	})
	if more && len(piece) > 0 {
		s.mu.Unlock()
		defer s.mu.Lock()
		visit(piece)
	}
}

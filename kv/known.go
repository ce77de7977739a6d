package kv

import (
	"runtime"
	"time"

	"grebe/internal/record"
	"grebe/plan"
	"grebe/residency"
)

// Lookup returns what is known of an entry: the best tier that has it, below memory included. It is no use of it.
func (s *Store) Lookup(key plan.Key) (residency.Entry, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.books.Lookup(key)
}

// Status sets tiers[i] to the best tier that has the entry of keys[i], Missing where none has it.
func (s *Store) Status(keys []plan.Key, tiers []plan.Tier) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.books.Status(keys, tiers)
	if s.rec.On() {
		s.rec.In("status", record.Keys(keys))
		s.rec.Did("tiers", record.Names(tiers))
	}
}

// Owner returns the number of one of those who share the store, by what its keys are digests of. The first has the
// number 0 and owns what lies below memory when the store is made.
func (s *Store) Owner(space plan.Key) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, ok := s.owners[space]
	if !ok {
		n = uint32(len(s.owners))
		s.owners[space] = n
	}
	return n
}

// Owned returns how many entries of an owner there are, in memory or below it.
func (s *Store) Owned(owner uint32) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.books.Owned(owner)
}

// Keys returns the keys of these entries, in no order.
func (s *Store) Keys(owner uint32) []plan.Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.books.Keys(owner)
}

// Ever reports whether there is or was an entry of a kind.
func (s *Store) Ever(kind plan.Kind) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.books.Ever(kind)
}

// SetHotness has the store estimate how often users and items are asked for. It MUST be called before the store is
// used, and before the methods below it. All times are durations since one epoch.
func (s *Store) SetHotness(c residency.HotnessConfig) error {
	h, err := residency.NewHotness(c)
	if err != nil {
		return err
	}
	s.hot = h
	s.books.SetHotness(h)
	return nil
}

// Frequency returns how often a user came within the window, and the lowest such number among the users that are
// cached where the device computes.
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

// NoteUser notes a request of a user, to be counted later. Hit says that the user's entry served it.
func (s *Store) NoteUser(user plan.Key, now time.Duration, hit bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rec.On() {
		s.rec.In("use", [32]byte(user), now, hit)
	}
	s.hot.NoteUser(user, now, hit)
}

// NoteItems notes a request that had these items as candidates, to be counted later.
func (s *Store) NoteItems(items []plan.Key, now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rec.On() {
		s.rec.In("items", record.Keys(items), now)
	}
	s.hot.NoteItems(items, now)
}

// Count counts what was noted. It gives up the lock now and then.
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

// Follow has changes of where entries are added to a feed that keeps the last size of them: what a router follows. Boot
// tells the feeds of a server's starts apart. Without Follow nothing is kept.
func (s *Store) Follow(boot uint64, size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.feed = residency.NewFeed(boot, size)
	s.books.SetFeed(s.feed)
}

// Since appends to dst the changes after the one of number seq, at most so many: see residency.Feed. It returns false
// when they are not kept: then the caller takes a Snapshot.
func (s *Store) Since(dst []residency.Event, boot, seq uint64, most int) ([]residency.Event, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.feed.Since(dst, boot, seq, most)
}

// Snapshot returns where all entries are, and the boot and number of a change: who applies them in order, and then the
// changes behind that number, knows where all entries are. Others use the store meanwhile: the lock is held for a few entries
// at a time. The feed should keep more changes than come during a snapshot, or the follower has to take another one.
func (s *Store) Snapshot() (all []residency.Event, boot, seq uint64) {
	var some []residency.Event
	s.mu.Lock()
	boot, seq = s.feed.Boot(), s.feed.Seq()
	s.books.Snapshot(func(key plan.Key, e residency.Entry) {
		some = append(some, residency.Event{Seq: seq, Key: key, Entry: e})
	}, func() {
		s.mu.Unlock()
		all, some = append(all, some...), some[:0]
		runtime.Gosched() // who waits is next
		s.mu.Lock()
	})
	s.mu.Unlock()
	return append(all, some...), boot, seq
}

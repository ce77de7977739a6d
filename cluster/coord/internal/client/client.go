// Package client has what every coordinator needs on its client's side: a queue of events that merges changes for slow
// readers, and the loop that renews a lease. It knows no protocol.
package client

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"grebe/cluster/coord"
)

// Queue holds the events that a watch's reader has not taken yet. It keeps the last value of each key only, so its size
// is bounded by the number of keys. It is not safe for concurrent use.
type Queue struct {
	listing map[string]coord.Entry // not nil: a whole listing is due
	puts    map[string]coord.Entry
	deleted map[string]struct{}
	lost    bool // after the others
}

// Reset queues a whole listing, which replaces everything else that is due.
func (q *Queue) Reset(entries []coord.Entry) {
	*q = Queue{listing: make(map[string]coord.Entry, len(entries))}
	for _, e := range entries {
		q.listing[e.Key] = e
	}
}

// Put queues a written entry.
func (q *Queue) Put(e coord.Entry) {
	if q.listing != nil {
		q.listing[e.Key] = e
		return
	}
	if q.puts == nil {
		q.puts = map[string]coord.Entry{}
	}
	q.puts[e.Key] = e
	delete(q.deleted, e.Key)
}

// Delete queues a deleted key.
func (q *Queue) Delete(key string) {
	if q.listing != nil {
		delete(q.listing, key)
		return
	}
	if q.deleted == nil {
		q.deleted = map[string]struct{}{}
	}
	q.deleted[key] = struct{}{}
	delete(q.puts, key)
}

// Lost queues the news that the coordinator does not answer. Only Reset may follow.
func (q *Queue) Lost() { q.lost = true }

// Head returns the first event that is due.
func (q *Queue) Head() (coord.Event, bool) {
	switch {
	case q.listing != nil:
		return coord.Event{Kind: coord.Listing, Entries: sorted(q.listing)}, true
	case len(q.puts) > 0 || len(q.deleted) > 0:
		return coord.Event{Kind: coord.Changes, Entries: sorted(q.puts), Deleted: slices.Sorted(maps.Keys(q.deleted))}, true
	case q.lost:
		return coord.Event{Kind: coord.Lost}, true
	}
	return coord.Event{}, false
}

// Pop removes the event that Head returned.
func (q *Queue) Pop() {
	switch {
	case q.listing != nil:
		q.listing = nil
	case len(q.puts) > 0 || len(q.deleted) > 0:
		q.puts, q.deleted = nil, nil
	default:
		q.lost = false
	}
}

func sorted(m map[string]coord.Entry) []coord.Entry {
	return slices.SortedFunc(maps.Values(m), func(a, b coord.Entry) int { return cmp.Compare(a.Key, b.Key) })
}

// Keep renews a lease three times per ttl until ctx ends or the lease is lost. Time counts from before a renewal was
// sent, so the owner stops before the coordinator lets the lease expire, also if the owner's process was paused.
func Keep(ctx context.Context, ttl time.Duration, granted time.Time, renew func(context.Context) error) {
	deadline, wait := granted.Add(ttl), ttl/3
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		sent := time.Now()
		if !sent.Before(deadline) {
			return
		}
		attempt, cancel := context.WithDeadline(ctx, deadline)
		err := renew(attempt)
		cancel()
		switch {
		case errors.Is(err, coord.ErrLeaseLost):
			return
		case err == nil:
			deadline, wait = sent.Add(ttl), ttl/3
		default:
			wait = min(ttl/10, time.Second)
		}
		timer.Reset(min(wait, time.Until(deadline)))
	}
}

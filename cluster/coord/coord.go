// Package coord defines the coordinator of a cluster: small values under string keys, with compare-and-swap on one key,
// leases, and watches that never miss a change silently.
//
// The interface has only what etcd and Kubernetes both offer. Package etcd implements it over etcd, package kube over
// Kubernetes. Package embedded runs an etcd server in this process. Package coordtest has the behaviour suite that
// every implementation passes.
//
// Rules that callers rely on:
//   - Every call ends when its context ends, and after a few seconds if the coordinator does not answer, even if its
//     process is stopped and its connections stay open. It then returns ErrUnavailable. Callers keep what they have and
//     try again.
//   - A Swap or Delete that returned ErrUnavailable may have been applied, or may be applied later. Callers read before
//     they write again.
//   - A watch begins with a whole listing. After every gap (compaction, reconnect, lost connection) it sends a whole
//     listing again.
//   - A lost lease stays lost. Its owner grants a new one and writes its keys again. Announce does that.
package coord

import (
	"context"
	"errors"
	"fmt"
	"time"
)

var (
	// ErrConflict reports that the key's version is not the expected one.
	ErrConflict = errors.New("coord: the version has changed")
	// ErrUnavailable reports that the coordinator did not answer in time. The outcome of a write is unknown.
	ErrUnavailable = errors.New("coord: the coordinator does not answer")
	// ErrLeaseLost reports that a lease has expired or was closed.
	ErrLeaseLost = errors.New("coord: lease lost")
)

// MaxData is the largest value in bytes. Kubernetes and etcd both refuse objects above about 1.5 MB; larger content
// belongs in blobs that nodes serve by digest.
const MaxData = 256 << 10

// Entry is a value under a key.
type Entry struct {
	Key  string
	Data []byte // must not be changed
	// Version identifies this value of the key. A later value has a different version, also after the key was deleted
	// and created again. 0: the key is absent.
	Version int64
}

// Coordinator stores small values. Implementations are safe for concurrent use.
type Coordinator interface {
	// Get returns the value under a key. An absent key is not an error: its version is 0.
	Get(ctx context.Context, key string) (Entry, error)
	// List returns all entries whose key begins with prefix, sorted by key.
	List(ctx context.Context, prefix string) ([]Entry, error)
	// Swap writes a value if the key still has the expected version, and returns the new version. Expected 0 creates
	// the key. The key vanishes when the lease is lost; nil: it stays, also if its previous value had a lease. It
	// returns ErrConflict, ErrUnavailable or ErrLeaseLost.
	Swap(ctx context.Context, key string, data []byte, expected int64, lease Lease) (int64, error)
	// Delete removes a key if it still has the expected version, which is not 0. It returns ErrConflict if not, also if
	// the key is absent.
	Delete(ctx context.Context, key string, expected int64) error
	// Watch reports the entries whose key begins with prefix. The channel is closed when ctx ends or the coordinator is
	// closed. A slow reader skips intermediate values of a key, never the last one.
	Watch(ctx context.Context, prefix string) <-chan Event
	// Grant creates a lease, which is renewed in the background until Close. The ttl is rounded up to what the
	// coordinator supports.
	Grant(ctx context.Context, ttl time.Duration) (Lease, error)
	// Close ends all watches and leases' renewals. Keys with a lease expire.
	Close() error
}

// Lease keeps keys alive while its owner runs and reaches the coordinator.
type Lease interface {
	// TTL returns how long keys outlive the last renewal.
	TTL() time.Duration
	// Lost is closed when the lease has expired or may have: by the coordinator's word, by the owner's clock, or by
	// Close.
	Lost() <-chan struct{}
	// Close ends the lease and removes its keys. If the coordinator does not answer, they expire.
	Close(ctx context.Context) error
}

// Kind says what an Event reports.
type Kind uint8

const (
	Listing Kind = iota + 1 // all entries: what is not among them is gone
	Changes                 // entries that were written, and keys that were deleted, since the event before
	Lost                    // the coordinator does not answer: the view may be stale until the next Listing
)

func (k Kind) String() string {
	switch k {
	case Listing:
		return "listing"
	case Changes:
		return "changes"
	case Lost:
		return "lost"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Event is one message of a watch.
type Event struct {
	Kind    Kind
	Entries []Entry  // sorted by key
	Deleted []string // sorted; of Changes only
}

// Apply brings a view, by key, up to date with an event.
func (e Event) Apply(view map[string]Entry) {
	if e.Kind == Listing {
		clear(view)
	}
	for _, n := range e.Entries {
		view[n.Key] = n
	}
	for _, key := range e.Deleted {
		delete(view, key)
	}
}

// Check reports whether a key and its value can be stored by every implementation.
func Check(key string, data []byte) error {
	if key == "" || len(key) > 512 {
		return fmt.Errorf("coord: a key of %d bytes: it needs 1 to 512", len(key))
	}
	for i := range len(key) {
		if c := key[i]; c <= ' ' || c > '~' {
			return fmt.Errorf("coord: key %q: only printable ASCII without spaces", key)
		}
	}
	if len(data) > MaxData {
		return fmt.Errorf("coord: value of %s has %d bytes, at most %d", key, len(data), MaxData)
	}
	return nil
}

// Backoff is the wait between attempts: 50 ms, doubled up to 1 s. The zero value is ready.
type Backoff struct {
	last time.Duration
	told time.Time
}

// Tell reports whether to log a failed attempt: the first one, and then one a minute.
func (b *Backoff) Tell() bool {
	if time.Since(b.told) < time.Minute {
		return false
	}
	b.told = time.Now()
	return true
}

// Wait sleeps before the next attempt. It returns false if ctx ended.
func (b *Backoff) Wait(ctx context.Context) bool {
	b.last = min(max(2*b.last, 50*time.Millisecond), time.Second)
	t := time.NewTimer(b.last)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Reset begins again with short waits, after a success.
func (b *Backoff) Reset() { *b = Backoff{} }

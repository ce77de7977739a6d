// Package guard checks the keys of clients, what each may do, and how often.
//
// A key has 256 random bits. Only its SHA-256 is stored, so a leaked configuration does not reveal it. A check
// compares the digest of the presented key with those of all keys in constant time. A Guard without keys allows
// everyone.
//
// A Guard is safe for concurrent use. Replace changes its keys while it is in use; a key that stays keeps the rest of
// its rate. A Guard starts no goroutine, and time is an argument. Members of a cluster exchange what each has let
// through: see Spent and Heard.
package guard

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Role is a group of operations.
type Role string

const (
	// Serve allows requests to models: rank, recommend, score, rerank, models.
	Serve Role = "serve"
	// Catalog allows reading and changing items, users, events and versions.
	Catalog Role = "catalog"
	// Admin allows everything, including metrics and the data of the dashboard.
	Admin Role = "admin"
)

// Roles lists all roles.
var Roles = []Role{Serve, Catalog, Admin}

// MaxKeys bounds the keys of a guard, because every check compares all of them.
const MaxKeys = 256

const prefix = "grebe_"

// Key is one client's key.
type Key struct {
	Name   string  // for logs; unique
	SHA256 string  // hexadecimal digest of the key
	Roles  []Role  // at least one
	Rate   float64 // requests per second; 0: no limit
	Burst  int     // requests at once; 0: one second's worth, at least one
}

// Errors of Check.
var (
	ErrMissing = errors.New("a key is needed: send the header Authorization: Bearer KEY")
	ErrUnknown = errors.New("the key is not known here")
)

// DeniedError means that a key lacks a role.
type DeniedError struct {
	Name string
	Role Role
}

func (e *DeniedError) Error() string {
	return fmt.Sprintf("key %q lacks the role %q", e.Name, e.Role)
}

// LimitError means that a key exceeded its rate.
type LimitError struct {
	Name  string
	After time.Duration // until the next request is allowed
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("key %q asks more often than its limit allows", e.Name)
}

// Guard checks keys. The zero value allows everyone.
type Guard struct {
	keys   atomic.Pointer[[]entry]
	shared shared
}

type entry struct {
	digest [sha256.Size]byte
	name   string
	roles  []Role
	bucket *bucket // nil: no limit
}

// New returns a guard with keys. Without keys it allows everyone.
func New(keys []Key) (*Guard, error) {
	g := &Guard{shared: shared{wake: make(chan struct{}, 1)}}
	return g, g.Replace(keys)
}

// Open reports whether everyone is allowed.
func (g *Guard) Open() bool { return len(g.list()) == 0 }

func (g *Guard) list() []entry {
	if p := g.keys.Load(); p != nil {
		return *p
	}
	return nil
}

// Replace changes the keys. On an error the old ones stay.
func (g *Guard) Replace(keys []Key) error {
	if len(keys) > MaxKeys {
		return fmt.Errorf("guard: %d keys, at most %d", len(keys), MaxKeys)
	}
	old := g.list()
	next := make([]entry, 0, len(keys))
	for i := range keys {
		e, err := parse(&keys[i])
		if err != nil {
			return fmt.Errorf("guard: key %d: %w", i, err)
		}
		for j := range next {
			if next[j].name == e.name || next[j].digest == e.digest {
				return fmt.Errorf("guard: keys %d and %d have the same name or digest: %q and %q", j, i, next[j].name, e.name)
			}
		}
		for j := range old {
			if o := &old[j]; o.digest == e.digest && o.bucket != nil && e.bucket != nil {
				e.bucket.take(o.bucket)
			}
		}
		next = append(next, e)
	}
	g.keys.Store(&next)
	return nil
}

func parse(k *Key) (entry, error) {
	e := entry{name: k.Name, roles: slices.Clone(k.Roles)}
	if k.Name == "" {
		return e, errors.New("has no name")
	}
	raw, err := hex.DecodeString(k.SHA256)
	if err != nil || len(raw) != sha256.Size {
		return e, fmt.Errorf("%q: sha256 is not %d hexadecimal digits: `grebe key` prints it", k.Name, 2*sha256.Size)
	}
	copy(e.digest[:], raw)
	if len(k.Roles) == 0 {
		return e, fmt.Errorf("%q has no role: give some of serve, catalog, admin", k.Name)
	}
	for _, r := range k.Roles {
		if !slices.Contains(Roles, r) {
			return e, fmt.Errorf("%q: no role %q: want serve, catalog or admin", k.Name, r)
		}
	}
	if !(k.Rate >= 0) || k.Burst < 0 || (k.Burst > 0 && k.Rate == 0) {
		return e, fmt.Errorf("%q: rate %v and burst %d: a rate is above 0, and a burst needs one", k.Name, k.Rate, k.Burst)
	}
	if k.Rate > 0 {
		burst := float64(k.Burst)
		if k.Burst == 0 {
			burst = max(k.Rate, 1)
		}
		e.bucket = &bucket{rate: k.Rate, burst: burst, left: burst}
	}
	return e, nil
}

// Check counts a request and returns the name of its key. It returns an error if the key is unknown, lacks the role
// or exceeds its rate. An open guard allows everyone and returns no name.
func (g *Guard) Check(presented string, role Role, now time.Time) (name string, err error) {
	keys := g.list()
	if len(keys) == 0 {
		return "", nil
	}
	if presented == "" {
		return "", ErrMissing
	}
	found := find(keys, presented)
	if found < 0 {
		return "", ErrUnknown
	}
	k := &keys[found]
	if !slices.Contains(k.roles, role) && !slices.Contains(k.roles, Admin) {
		return k.name, &DeniedError{Name: k.name, Role: role}
	}
	if k.bucket != nil {
		if wait := k.bucket.spend(now, g.LimitShare()); wait > 0 {
			return k.name, &LimitError{Name: k.name, After: wait}
		}
		select {
		case g.shared.wake <- struct{}{}:
		default: // somebody was woken already, or nobody listens
		}
	}
	return k.name, nil
}

// Knows returns an error if a key is unknown, without checking roles or counting. It is for decisions before a
// request is read. An open guard knows everyone.
func (g *Guard) Knows(presented string) error {
	keys := g.list()
	switch {
	case len(keys) == 0:
		return nil
	case presented == "":
		return ErrMissing
	case find(keys, presented) < 0:
		return ErrUnknown
	}
	return nil
}

// find returns the index of a key, or −1.
func find(keys []entry, presented string) int {
	digest := sha256.Sum256([]byte(presented))
	found := -1
	for i := range keys {
		// No early exit: the time must not reveal which key it was.
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(digest[:], keys[i].digest[:]), i, found)
	}
	return found
}

// Bearer returns the key in an Authorization header, or "".
func Bearer(header string) string {
	scheme, key, ok := strings.Cut(header, " ")
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	return strings.TrimSpace(key)
}

// NewKey returns a new random key and the digest to store.
func NewKey() (key, digest string) {
	var raw [32]byte
	rand.Read(raw[:]) // never returns an error: it ends the process instead
	key = prefix + base64.RawURLEncoding.EncodeToString(raw[:])
	return key, Digest(key)
}

// Digest returns the digest of a key, which is what is stored.
func Digest(key string) string {
	d := sha256.Sum256([]byte(key))
	return hex.EncodeToString(d[:])
}

// bucket lets rate requests per second through, and burst at once.
type bucket struct {
	mu          sync.Mutex
	rate, burst float64
	left        float64   // below 0: a debt
	spent       uint64    // requests that were let through here
	at          time.Time // time of left; zero before the first request
}

// longest bounds a wait, because that of a tiny rate would overflow a Duration.
const longest = 365 * 24 * time.Hour

// spend takes one request from the bucket, or returns the time until there is one. The bucket has a share of its rate
// and its burst, but room for one request.
func (b *bucket) spend(now time.Time, share float64) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	rate, burst := b.rate*share, max(b.burst*share, min(1, b.burst))
	if d := now.Sub(b.at); !b.at.IsZero() && d > 0 {
		b.left += d.Seconds() * rate
	}
	b.left = min(b.left, burst)
	if b.at.IsZero() || now.After(b.at) {
		b.at = now
	}
	if wait := time.Duration(min((1-b.left)/rate, longest.Seconds()) * float64(time.Second)); wait > 0 {
		return wait
	}
	b.left-- // may be a rounding error below 0, which the next request makes up for
	b.spent++
	return 0
}

// charge takes what other members have spent.
func (b *bucket) charge(n float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = max(b.left-n, -debtSeconds*b.rate-b.burst)
}

// count returns how many requests were let through here.
func (b *bucket) count() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spent
}

// take continues with the state of an older bucket of the same key.
func (b *bucket) take(old *bucket) {
	old.mu.Lock()
	defer old.mu.Unlock()
	b.left, b.at, b.spent = min(b.burst, old.left), old.at, old.spent
}

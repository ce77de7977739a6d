// Package guard decides who may ask for what, and how often.
//
// A key is 256 random bits, so its SHA-256 is all that is stored: nobody can guess the key from it,
// and a leaked configuration opens no door. Every check compares the digest of what a client sent with
// the digests of all keys in constant time. A Guard without keys lets everyone in.
//
// A Guard is safe for concurrent use. Replace changes its keys while requests come: a key that stays
// keeps what is left of its rate. Nothing in it starts a goroutine, and time is an argument.
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
	// Serve asks models: rank, recommend, score, rerank, models.
	Serve Role = "serve"
	// Catalog reads and changes items, users, events and versions.
	Catalog Role = "catalog"
	// Admin does everything, and reads metrics and what the dashboard shows.
	Admin Role = "admin"
)

// Roles are all there are.
var Roles = []Role{Serve, Catalog, Admin}

// MaxKeys bounds how many keys a guard has: every check looks at each.
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

// DeniedError says that a key lacks a role.
type DeniedError struct {
	Name string
	Role Role
}

func (e *DeniedError) Error() string {
	return fmt.Sprintf("key %q has not the role %q that this needs", e.Name, e.Role)
}

// LimitError says that a key asked too often.
type LimitError struct {
	Name  string
	After time.Duration // until the next request is let in
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("key %q asks more often than its limit allows", e.Name)
}

// Guard checks keys. The zero value lets everyone in.
type Guard struct {
	keys atomic.Pointer[[]entry]
}

type entry struct {
	digest [sha256.Size]byte
	name   string
	roles  []Role
	bucket *bucket // nil: no limit
}

// New returns a guard with keys, which may be none.
func New(keys []Key) (*Guard, error) {
	g := &Guard{}
	return g, g.Replace(keys)
}

// Open reports whether everyone is let in.
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

// Check returns the name of the key that presented is, if it may do what role covers and has not
// asked too often, and counts the request. An open guard lets everyone in, without a name.
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
		if wait := k.bucket.spend(now); wait > 0 {
			return k.name, &LimitError{Name: k.name, After: wait}
		}
	}
	return k.name, nil
}

// Knows says whether a key is one of the guard's, whatever it opens, and counts nothing: for those who have to decide before
// they read a request. An open guard knows everyone.
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
		// No early end: the time tells nothing about which key it was.
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
	rand.Read(raw[:]) // never fails: it ends the process instead
	key = prefix + base64.RawURLEncoding.EncodeToString(raw[:])
	return key, Digest(key)
}

// Digest returns what is stored of a key.
func Digest(key string) string {
	d := sha256.Sum256([]byte(key))
	return hex.EncodeToString(d[:])
}

// bucket lets rate requests per second through, and burst at once.
type bucket struct {
	mu          sync.Mutex
	rate, burst float64
	left        float64
	at          time.Time // of left; zero before the first request
}

// longest bounds a wait: that of a tiny rate has no place in a Duration.
const longest = 365 * 24 * time.Hour

// spend takes one request out, or returns how long until there is one.
func (b *bucket) spend(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d := now.Sub(b.at); !b.at.IsZero() && d > 0 {
		b.left = min(b.burst, b.left+d.Seconds()*b.rate)
	}
	if b.at.IsZero() || now.After(b.at) {
		b.at = now
	}
	if wait := time.Duration(min((1-b.left)/b.rate, longest.Seconds()) * float64(time.Second)); wait > 0 {
		return wait
	}
	b.left-- // may end a rounding error below 0, which the next request pays
	return 0
}

// take continues where an older bucket of the same key was.
func (b *bucket) take(old *bucket) {
	old.mu.Lock()
	defer old.mu.Unlock()
	b.left, b.at = min(b.burst, old.left), old.at
}

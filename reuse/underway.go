package reuse

import (
	"slices"
	"sync"

	"grebe/engine"
	"grebe/kv"
	"grebe/plan"
)

// underway is the KV that requests under way are about to compute, by key. Requests that need the same share an
// engine.Underway, so that those whose batch begins later use what the first one computed, before that is published.
// The zero value is ready.
type underway struct {
	mu   sync.Mutex
	all  map[plan.Key]*pending
	free []*pending
}

// pending is KV that some requests need.
type pending struct {
	kv     engine.Underway
	key    plan.Key
	tokens []int32 // a user's: the key says whose they are, or is short
	users  int     // requests that need it
}

// keptPending is how many are kept for later requests.
const keptPending = 1024

// join adds a request to those that need the KV. It returns nil if requests under way need that of other tokens under
// the key.
func (u *underway) join(key plan.Key, tokens []int32) *pending {
	u.mu.Lock()
	defer u.mu.Unlock()
	p := u.all[key]
	if p == nil {
		if n := len(u.free); n > 0 {
			p, u.free = u.free[n-1], u.free[:n-1]
		} else {
			p = &pending{}
		}
		if u.all == nil {
			u.all = map[plan.Key]*pending{}
		}
		p.key, p.tokens = key, tokens
		u.all[key] = p
	} else if !slices.Equal(p.tokens, tokens) {
		return nil
	}
	p.users++
	return p
}

// leave ends what a request began with join.
func (u *underway) leave(p *pending) {
	u.mu.Lock()
	p.users--
	last := p.users == 0
	if last {
		delete(u.all, p.key)
	}
	u.mu.Unlock()
	if !last {
		return
	}
	p.kv.Clear() // without the lock: it may free memory
	p.tokens = nil
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.free) < keptPending {
		u.free = append(u.free, p)
	}
}

// expect has a segment of which the job needs the KV of some leading tokens use what another request computes first.
// The tokens of a user are given, else nil.
func (v *Visit) expect(segment, needs int, key plan.Key, tokens []int32) {
	s := &v.segments[segment]
	if s.Entry != nil && s.Entry.Len() >= needs {
		return
	}
	if p := v.cache.opt.Shared.underway.join(key, tokens); p != nil {
		s.Underway = &p.kv
		v.expected = append(v.expected, p)
	}
}

// expectUser is expect for the user's segment. Its last token is computed if it answers.
func (v *Visit) expectUser(segment int, answers bool) {
	needs := len(v.tokens)
	if answers {
		needs--
	}
	if v.segments[segment].Last = answers; needs > 0 && needs >= v.cache.opt.Least {
		v.expect(segment, needs, v.pendingKey(), v.tokens)
	}
}

// pendingKey returns the key of the user's KV. Users without a name go by their tokens.
func (v *Visit) pendingKey() plan.Key {
	if v.named {
		return v.user
	}
	return kv.PrefixKey(v.cache.userSpace, v.tokens)
}

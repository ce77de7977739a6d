package reuse

import (
	"sync"
	"time"
)

// returns learns how often users come back while their KV would still be cached, by how often they
// came lately. It watches all requests, whichever order they take, so that it needs no trials: a
// request counts as asked, and as answered when the user's next one comes before an entry of that age
// is evicted. What it expects is held against the hits that users did have after they were kept.
type returns struct {
	mu       sync.Mutex
	seen     []lastSeen // by hash of the user; a collision forgets one of the two
	asked    [classes]float64
	came     [classes]float64
	survival time.Duration // age at which users are evicted; 0: none was
	hoped    float64       // returns expected of users that were kept
	hits     float64       // returns that found them
}

// lastSeen is a user's last request.
type lastSeen struct {
	user  uint64
	at    time.Duration
	class int8
}

const (
	classes    = 4       // of users, by requests within the window: none, one, two, more
	seenUsers  = 1 << 16 // that are remembered
	fade       = 1 - 1./1024
	priorAsked = 8
	priorHoped = 8
	mostSteps  = 8 // returns of one user that are looked ahead
	follow     = 1. / 16
)

// What is believed before anything was seen.
var priorCame = [classes]float64{.3, .5, .5, .5}

func newReturns() *returns { return &returns{seen: make([]lastSeen, seenUsers)} }

// classOf sorts users by their frequency.
func classOf(frequency float64) int { return min(int(frequency+.5), classes-1) }

// note counts a request of a user that had this frequency before it.
func (r *returns) note(user uint64, frequency float64, now time.Duration) {
	class := classOf(frequency)
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.asked {
		r.asked[i] *= fade
		r.came[i] *= fade
	}
	r.hoped *= fade
	r.hits *= fade
	s := &r.seen[user%seenUsers]
	if s.user == user && (r.survival == 0 || now-s.at <= r.survival) {
		r.came[s.class]++
	}
	r.asked[class]++
	*s = lastSeen{user, now, int8(class)}
}

// evicted learns from a user's entry that was dropped how long entries survive.
func (r *returns) evicted(user uint64, now time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.seen[user%seenUsers]
	if s.user != user {
		return
	}
	age := max(now-s.at, 1)
	if r.survival == 0 {
		r.survival = age
		return
	}
	r.survival += time.Duration(follow * float64(age-r.survival))
}

// expect returns how often a user of this frequency will find what is kept now.
func (r *returns) expect(frequency float64) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	total, chance := 0.0, 1.0
	for step := range mostSteps {
		class := min(classOf(frequency)+step, classes-1)
		chance *= min((r.came[class]+priorAsked*priorCame[class])/(r.asked[class]+priorAsked), 1)
		total += chance
	}
	return total * min((r.hits+priorHoped)/(r.hoped+priorHoped), 1)
}

// kept counts a user that is being kept in the hope of so many returns.
func (r *returns) kept(hope float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hoped += hope
}

// hit counts a user that was found.
func (r *returns) hit() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hits++
}

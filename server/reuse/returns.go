package reuse

import (
	"sync"
	"time"

	"grebe/internal/record"
)

// returns learns how often users come back while their KV would still be cached, by how often they
// came lately. It watches all requests, whichever order they take, so that it needs no trials: a
// request counts as asked, and as answered when the user's next one comes before an entry of that age
// is evicted. What it expects of users that are kept is held against the hits that they had when they
// are evicted: not earlier, since hopes are young while there is room.
type returns struct {
	mu       sync.Mutex
	seen     []lastSeen // by hash of the user; a collision forgets one of the two
	asked    [classes]float64
	came     [classes]float64
	late     float64       // returns after an entry of that age was evicted, before it was twice as old
	survival time.Duration // age at which users are evicted; 0: none was
	hoped    float64       // returns expected of users that were kept and evicted
	hits     float64       // returns that found them
	rec      *record.Room
}

// lastSeen is a user's last request.
type lastSeen struct {
	user  uint64
	at    time.Duration
	hope  float32 // returns expected when it was kept; 0: it is not
	hits  float32 // since then
	class int8
}

const (
	classes    = 4       // of users, by requests within the window: none, one, two, more
	seenUsers  = 1 << 16 // that are remembered
	fade       = 1 - 1./1024
	priorAsked = 8
	priorHoped = 8
	mostHope   = 16 // returns of one user
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
	if r.rec.On() {
		r.rec.In("came", user, frequency, now)
	}
	for i := range r.asked {
		r.asked[i] *= fade
		r.came[i] *= fade
	}
	r.late *= fade
	r.hoped *= fade
	r.hits *= fade
	s := &r.seen[user%seenUsers]
	if s.user != user {
		*s = lastSeen{user: user}
	} else if gap := now - s.at; r.survival == 0 || gap <= r.survival {
		r.came[s.class]++
	} else if gap <= 2*r.survival {
		r.late++
	}
	r.asked[class]++
	s.at, s.class = now, int8(class)
}

// evicted learns from a user's entry that was dropped how long entries survive, and whether it was worth
// what was hoped.
func (r *returns) evicted(user uint64, now time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rec.On() {
		r.rec.In("evicted", user, now)
	}
	s := &r.seen[user%seenUsers]
	if s.user != user {
		return
	}
	if s.hope > 0 {
		r.hoped += float64(s.hope)
		r.hits += float64(s.hits)
		s.hope, s.hits = 0, 0
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
	for class := classOf(frequency); ; class++ {
		next := r.chance(class)
		if class == classes-1 { // from here on each return is as likely as the one before
			total += min(chance*next/max(1-next, 1./mostHope), mostHope)
			break
		}
		chance *= next
		total += chance
	}
	total *= min((r.hits+priorHoped)/(r.hoped+priorHoped), 1)
	if r.rec.On() {
		r.rec.In("expect", frequency)
		r.rec.Did("returns", total)
	}
	return total
}

// gain returns the share of a user's expected returns that is gained when another makes room for it, who
// would have come back too: the chance of a return of the one whose entry is old, over that of the one
// who is here, is lost.
func (r *returns) gain(frequency float64) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	gone := float64(priorAsked)
	for class := range r.asked {
		gone += max(r.asked[class]-r.came[class], 0)
	}
	gain := max(0, 1-r.late/gone/r.chance(classOf(frequency)))
	if r.rec.On() {
		r.rec.In("gain", frequency)
		r.rec.Did("share", gain)
	}
	return gain
}

// chance is that of a return of a user of a class while its KV would still be cached.
func (r *returns) chance(class int) float64 {
	return min((r.came[class]+priorAsked*priorCame[class])/(r.asked[class]+priorAsked), 1)
}

// kept notes, after the user's request, that the user is kept in the hope of so many returns.
func (r *returns) kept(user uint64, hope float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rec.On() {
		r.rec.In("kept", user, hope)
	}
	if s := &r.seen[user%seenUsers]; s.user == user {
		s.hope, s.hits = float32(hope), 0
	}
}

// hit counts a user that was found.
func (r *returns) hit(user uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rec.On() {
		r.rec.In("hit", user)
	}
	if s := &r.seen[user%seenUsers]; s.user == user {
		s.hits++
	}
}

package schedule

import "time"

// Returns learns how often users return while their KV would still be cached, by how often they came recently.
//
// It observes all requests, whatever their order, so it needs no experiments. Each request counts as asked. It counts
// as answered if the user's next request comes before an entry of that age would be evicted. When a kept user is
// evicted, its hits are compared with the expected returns. Users that are still kept may yet return.
//
// Memory is fixed. Users are named by a hash. If two share a slot, the later one is remembered.
type Returns struct {
	seen     []lastSeen
	asked    [userClasses]float64
	came     [userClasses]float64
	late     float64       // returns after an entry of that age was evicted, but before twice that age
	survival time.Duration // age at which users are evicted; 0: none was evicted
	hoped    float64       // returns expected of kept users that were evicted
	hits     float64       // returns that found their KV
}

// lastSeen is a user's last request.
type lastSeen struct {
	user  uint64
	at    time.Duration
	hope  float32 // returns expected when it was kept; 0: it is not kept
	hits  float32 // since then
	class int8
}

const (
	userClasses  = 4       // by requests within the window: none, one, two, more
	seenUsers    = 1 << 16 // users remembered
	returnsFade  = 1 - 1./1024
	priorAsked   = 8
	priorHoped   = 8
	mostReturns  = 16 // limit of the returns expected of one user
	survivalRate = 1. / 16
)

// priorCame is the chance of a return by class before any observation.
var priorCame = [userClasses]float64{.3, .5, .5, .5}

// NewReturns makes a Returns without observations.
func NewReturns() *Returns { return &Returns{seen: make([]lastSeen, seenUsers)} }

// userClass classifies users by frequency.
func userClass(frequency float64) int { return min(int(frequency+.5), userClasses-1) }

// Came counts a request of a user that had this frequency before it.
func (r *Returns) Came(user uint64, frequency float64, now time.Duration) {
	class := userClass(frequency)
	for i := range r.asked {
		r.asked[i] *= returnsFade
		r.came[i] *= returnsFade
	}
	r.late *= returnsFade
	r.hoped *= returnsFade
	r.hits *= returnsFade
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

// Evicted learns from the eviction of a user's entry how long entries survive, and whether it had the expected hits.
func (r *Returns) Evicted(user uint64, now time.Duration) {
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
	r.survival += time.Duration(survivalRate * float64(age-r.survival))
}

// Expect predicts how often a user of this frequency will find its KV if it is kept now.
func (r *Returns) Expect(frequency float64) float64 {
	total, chance := 0.0, 1.0
	for class := userClass(frequency); ; class++ {
		next := r.chance(class)
		if class == userClasses-1 { // from here on every further return is equally likely
			total += min(chance*next/max(1-next, 1./mostReturns), mostReturns)
			break
		}
		chance *= next
		total += chance
	}
	return total * min((r.hits+priorHoped)/(r.hoped+priorHoped), 1)
}

// Gain returns the share of a user's expected returns that is gained when another user is evicted for it. The evicted
// user would have come back too. So the chance that an old user returns, divided by the chance that this one does, is
// lost.
func (r *Returns) Gain(frequency float64) float64 {
	gone := float64(priorAsked)
	for class := range r.asked {
		gone += max(r.asked[class]-r.came[class], 0)
	}
	return max(0, 1-r.late/gone/r.chance(userClass(frequency)))
}

// chance returns the chance that a user of a class returns while its KV would still be cached.
func (r *Returns) chance(class int) float64 {
	return min((r.came[class]+priorAsked*priorCame[class])/(r.asked[class]+priorAsked), 1)
}

// Kept records, after the user's request, that the user is kept and how many returns are expected.
func (r *Returns) Kept(user uint64, returns float64) {
	if s := &r.seen[user%seenUsers]; s.user == user {
		s.hope, s.hits = float32(returns), 0
	}
}

// Hit counts a return that found its KV.
func (r *Returns) Hit(user uint64) {
	if s := &r.seen[user%seenUsers]; s.user == user {
		s.hits++
	}
}

package schedule

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// visit makes a user come n times, a gap apart, and returns the time after the last gap.
func visit(r *Returns, user uint64, n int, now, gap time.Duration) time.Duration {
	for i := range n {
		r.Came(user, float64(i), now)
		now += gap
	}
	return now
}

func TestReturnsTellLoyalFromPassing(t *testing.T) {
	passing, loyal := NewReturns(), NewReturns()
	now := time.Duration(0)
	for user := range uint64(500) {
		visit(passing, user+1, 1, now, time.Second)
		now = visit(loyal, user+1, 5, now, time.Second)
	}
	if got := passing.Expect(0); got > .05 {
		t.Errorf("users who come once are expected back %.2f times", got)
	}
	if got := loyal.Expect(0); got < 2 || got > 5 {
		t.Errorf("users who come five times are expected back %.2f times after the first, want about 4", got)
	}
	if first, later := loyal.Expect(0), loyal.Expect(3); later >= first {
		t.Errorf("expected back %.2f times at first and %.2f times after the fourth: it should fall", first, later)
	}
}

func TestReturnsCountOnlyWhatSurvives(t *testing.T) {
	r := NewReturns()
	now := time.Duration(0)
	for user := range uint64(500) {
		visit(r, user+1, 2, now, time.Minute)
		r.Evicted(user+1, now+time.Minute+time.Second) // a second after the last request
		now += 2 * time.Minute
	}
	if got := r.Expect(0); got > .1 {
		t.Errorf("users who return after a minute to a cache that holds them for a second: %.2f hits expected", got)
	}
}

func TestReturnsLearnFromHits(t *testing.T) {
	r := NewReturns()
	now := time.Duration(0)
	for user := range uint64(200) {
		now = visit(r, user+1, 3, now, time.Second)
	}
	before := r.Expect(0)
	for user := range uint64(100) {
		r.Kept(user+1, before)
	}
	if after := r.Expect(0); after != before {
		t.Errorf("users kept that may still return: %.2f expected, %.2f before", after, before)
	}
	for user := range uint64(100) {
		r.Evicted(user+1, now)
	}
	if after := r.Expect(0); after > before/5 {
		t.Errorf("100 users were kept for %.2f returns each and evicted without a hit, still %.2f are expected", before,
			after)
	}
	for user := range uint64(100) {
		r.Kept(user+1, before)
		for range int(2*before) + 1 {
			r.Hit(user + 1)
		}
		r.Evicted(user+1, now)
	}
	if after := r.Expect(0); math.Abs(after-before) > .1*before {
		t.Errorf("all hits came: %.2f expected, want %.2f", after, before)
	}
}

// If all users come at the same pace, replacing one by another gains nothing. If they come in bursts, it gains nearly
// all of a user's expected savings.
func TestReturnsGainBeyondTheDisplaced(t *testing.T) {
	const survival = 10 * time.Second
	paced, bursts := NewReturns(), NewReturns()
	paced.survival, bursts.survival = survival, survival
	rng := rand.New(rand.NewPCG(1, 2))
	now := time.Duration(0)
	for range 20_000 {
		now += time.Duration(rng.ExpFloat64() * float64(200*time.Millisecond))
		paced.Came(uint64(1+rng.IntN(100)), 0, now) // each every 20 s on average
	}
	for user := range uint64(2_000) {
		now = visit(bursts, user+1, 3, now, time.Second)
	}
	if got := paced.Gain(0); got > .15 {
		t.Errorf("users alike: %.2f of the returns are gained, want next to none", got)
	}
	if got := bursts.Gain(0); got < .95 {
		t.Errorf("users who come in bursts: %.2f of the returns are gained, want all", got)
	}
}

// Expected returns follow from how often users came, are corrected by earlier expectations, and are bounded.
func TestExpectedReturns(t *testing.T) {
	r := NewReturns()
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	// Before any observation: .3 of new users return, then half of them each time.
	near("of a new user", r.Expect(0), .3+.3*.5+.3*.5*.5+.3*.5*.5*.5/(1-.5))
	near("of one who came often", r.Expect(7), .5/(1-.5))
	near("gain", r.Gain(0), 1)
	for f, want := range map[float64]int{0: 0, .49: 0, .5: 1, 1.4: 1, 1.5: 2, 2.5: 3, 100: 3} {
		if got := userClass(f); got != want {
			t.Errorf("frequency %v is of class %d, want %d", f, got, want)
		}
	}
	r.asked[0], r.came[0] = 16, 4
	near("chance", r.chance(0), (4+8*.3)/(16+8))
	r.came[0] = 1000
	near("a chance above one", r.chance(0), 1)
	r.came[3], r.asked[3] = 2e9, 1e9
	near("without end", r.Expect(3), mostReturns)
	r = NewReturns()
	r.Came(5, 0, 10)
	if r.asked[0] != 1 || r.came[0] != 0 || r.seen[5].at != 10 {
		t.Errorf("a first request: %+v", r.seen[5])
	}
	r.Came(5, 1, 20)
	near("the first request, faded", r.asked[0], returnsFade)
	if r.came[0] != 1 || r.asked[1] != 1 || r.seen[5].class != 1 {
		t.Errorf("a second request: %v of %v", r.came, r.asked)
	}
	r.Evicted(5, 50) // after 30
	if r.survival != 30 {
		t.Errorf("entries survive %v", r.survival)
	}
	r.Evicted(5, 66)
	if r.survival != 31 { // a sixteenth of the way to 46
		t.Errorf("entries survive %v, want 31", r.survival)
	}
	r.Evicted(6, 1000) // an unknown user
	if r.survival != 31 {
		t.Errorf("entries survive %v after one that nobody knows", r.survival)
	}
	for gap, want := range map[time.Duration][2]float64{31: {1, 0}, 32: {0, 1}, 62: {0, 1}, 63: {0, 0}} {
		r := NewReturns()
		r.survival = 31
		r.Came(9, 0, 100)
		r.Came(9, 0, 100+gap)
		if r.came[0] != want[0] || r.late != want[1] {
			t.Errorf("after %d: came %v, late %v", gap, r.came[0], r.late)
		}
	}
	r = NewReturns()
	r.late, r.asked[0], r.came[0] = 2, 10, 6
	near("gain", r.Gain(0), 1-2./(8+4)/((6+2.4)/18))
	r.late = 1e9
	near("no gain", r.Gain(0), 0)
	r = NewReturns()
	r.Came(5, 0, 1)
	r.Kept(5, 12)
	r.Hit(5)
	r.Hit(5)
	r.Hit(6)
	r.Kept(6, 99)
	r.Evicted(5, 2)
	r.Evicted(5, 3) // counted only once
	if r.hoped != 12 || r.hits != 2 {
		t.Errorf("hoped for %v, had %v", r.hoped, r.hits)
	}
	near("what is hoped is held against hits", r.Expect(7), .5/(1-.5)*(2+8)/(12+8))
	r.Came(5+seenUsers, 0, 4) // takes the slot of the other
	if s := r.seen[5]; s.user != 5+seenUsers || s.hope != 0 || s.hits != 0 {
		t.Errorf("of the next user %+v is known", s)
	}
	r.Came(7, 0, 5)
	near("hopes fade", r.hoped, 12*returnsFade*returnsFade)
	near("hits fade", r.hits, 2*returnsFade*returnsFade)
}

// Nothing is allocated for a request.
func TestReturnsDoNotAllocate(t *testing.T) {
	r := NewReturns()
	if n := testing.AllocsPerRun(100, func() {
		r.Came(1, 0, 1)
		r.Kept(1, r.Expect(0)*r.Gain(0))
		r.Hit(1)
		r.Evicted(1, 2)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

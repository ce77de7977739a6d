package reuse

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// visit has a user come n times, a gap apart, and returns the time after the last gap.
func visit(r *returns, user uint64, n int, now, gap time.Duration) time.Duration {
	for i := range n {
		r.note(user, float64(i), now)
		now += gap
	}
	return now
}

func TestReturnsTellLoyalFromPassing(t *testing.T) {
	passing, loyal := newReturns(), newReturns()
	now := time.Duration(0)
	for user := range uint64(500) {
		visit(passing, user+1, 1, now, time.Second)
		now = visit(loyal, user+1, 5, now, time.Second)
	}
	if got := passing.expect(0); got > .05 {
		t.Errorf("users who come once are expected back %.2f times", got)
	}
	if got := loyal.expect(0); got < 2 || got > 5 {
		t.Errorf("users who come five times are expected back %.2f times after the first, want about 4", got)
	}
	if first, later := loyal.expect(0), loyal.expect(3); later >= first {
		t.Errorf("expected back %.2f times at first and %.2f times after the fourth: it should fall", first, later)
	}
}

func TestReturnsCountOnlyWhatSurvives(t *testing.T) {
	r := newReturns()
	now := time.Duration(0)
	for user := range uint64(500) {
		visit(r, user+1, 2, now, time.Minute)
		r.evicted(user+1, now+time.Minute+time.Second) // a second after the last request
		now += 2 * time.Minute
	}
	if got := r.expect(0); got > .1 {
		t.Errorf("users who return after a minute to a cache that holds them for a second: %.2f hits expected", got)
	}
}

func TestReturnsLearnFromHits(t *testing.T) {
	r := newReturns()
	now := time.Duration(0)
	for user := range uint64(200) {
		now = visit(r, user+1, 3, now, time.Second)
	}
	before := r.expect(0)
	for user := range uint64(100) {
		r.kept(user+1, before)
	}
	if after := r.expect(0); after != before {
		t.Errorf("users kept that may still return: %.2f expected, %.2f before", after, before)
	}
	for user := range uint64(100) {
		r.evicted(user+1, now)
	}
	if after := r.expect(0); after > before/5 {
		t.Errorf("100 users were kept for %.2f returns each and evicted without a hit, still %.2f are expected", before, after)
	}
	for user := range uint64(100) {
		r.kept(user+1, before)
		for range int(2*before) + 1 {
			r.hit(user + 1)
		}
		r.evicted(user+1, now)
	}
	if after := r.expect(0); math.Abs(after-before) > .1*before {
		t.Errorf("all hits came: %.2f expected, want %.2f", after, before)
	}
}

// Where all users come at the same pace, nothing is gained by putting one in the place of another; where
// they come in bursts, nearly all of what a user is expected to save.
func TestReturnsGainBeyondTheDisplaced(t *testing.T) {
	const survival = 10 * time.Second
	paced, bursts := newReturns(), newReturns()
	paced.survival, bursts.survival = survival, survival
	rng := rand.New(rand.NewPCG(1, 2))
	now := time.Duration(0)
	for range 20_000 {
		now += time.Duration(rng.ExpFloat64() * float64(200*time.Millisecond))
		paced.note(uint64(1+rng.IntN(100)), 0, now) // each every 20 s on average
	}
	for user := range uint64(2_000) {
		now = visit(bursts, user+1, 3, now, time.Second)
	}
	if got := paced.gain(0); got > .15 {
		t.Errorf("users alike: %.2f of the returns are gained, want next to none", got)
	}
	if got := bursts.gain(0); got < .95 {
		t.Errorf("users who come in bursts: %.2f of the returns are gained, want all", got)
	}
}

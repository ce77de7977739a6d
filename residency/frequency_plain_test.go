package residency

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// plainCounts is a Frequency of a few users with maps: for each user the requests in each sub-window.
type plainCounts struct {
	sub    time.Duration
	keep   float64
	counts map[uint64]map[int64]float64
	last   map[uint64]int64
}

func (p *plainCounts) observe(key uint64, now time.Duration) {
	epoch := int64(now / p.sub)
	if p.counts[key] == nil {
		p.counts[key], p.last[key] = map[int64]float64{}, epoch
	}
	if epoch > p.last[key]-8 {
		p.counts[key][epoch]++
	}
	p.last[key] = max(p.last[key], epoch)
}

func (p *plainCounts) hit(key uint64) {
	for epoch := range p.counts[key] {
		p.counts[key][epoch] *= p.keep
	}
}

func (p *plainCounts) estimate(key uint64, now time.Duration) float64 {
	epoch := int64(now / p.sub)
	inside := float64(now%p.sub) / float64(p.sub)
	if epoch < p.last[key] {
		epoch, inside = p.last[key], 1
	}
	sum := (1 - inside) * p.counts[key][epoch-7]
	for e := epoch - 6; e <= epoch; e++ {
		sum += p.counts[key][e]
	}
	return sum
}

// Estimates agree with the plain counts. In a full table a new user replaces one with the lowest count.
func TestFrequencyAgainstPlainCounts(t *testing.T) {
	const places = 16 // of the smallest table: two buckets, so every user may be anywhere
	displaced := 0
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 41))
		f := newFrequency(t, FrequencyConfig{Users: 1, Window: 7 * time.Second, HitDecay: .5})
		p := &plainCounts{sub: time.Second, keep: .5, counts: map[uint64]map[int64]float64{}, last: map[uint64]int64{}}
		users := uint64(5 + rng.IntN(25))
		now := time.Duration(rng.IntN(20)) * time.Second
		for turn := range 300 {
			now += time.Duration(rng.IntN(6)*rng.IntN(6)*rng.IntN(6)) * time.Second / 64
			key := 1 + rng.Uint64N(users)
			at := max(0, now-time.Duration(rng.IntN(5)*rng.IntN(640))*time.Second/64)
			switch {
			case rng.IntN(6) == 0:
				f.Hit(key)
				p.hit(key)
			case len(p.counts) < places || p.counts[key] != nil:
				f.Observe(key, at)
				p.observe(key, at)
			default:
				f.Observe(key, at)
				var left []uint64
				lowest := -1.0
				for k := range p.counts {
					if e := p.estimate(k, at); lowest < 0 || e < lowest {
						lowest = e
					}
					if f.find(k) < 0 {
						left = append(left, k)
					}
				}
				if len(left) != 1 || p.estimate(left[0], at) > lowest+1e-5 {
					t.Fatalf("seed %d, turn %d: user %d displaced %v, want one of those with %v",
						seed, turn, key, left, lowest)
				}
				delete(p.counts, left[0])
				p.observe(key, at)
				displaced++
			}
			if f.Len() != len(p.counts) {
				t.Fatalf("seed %d, turn %d: %d users, want %d", seed, turn, f.Len(), len(p.counts))
			}
			for k := range users + 2 {
				asked := max(0, now+time.Duration(rng.IntN(640)-320)*time.Second/64)
				want := 0.0
				if p.counts[max(k, 1)] != nil {
					want = p.estimate(max(k, 1), asked)
				}
				if got := f.Estimate(k, asked); math.Abs(got-want) > 1e-5 {
					t.Fatalf("seed %d, turn %d: user %d has %v at %v, want %v", seed, turn, k, got, asked, want)
				}
			}
		}
	}
	if displaced < 1000 {
		t.Errorf("%d users were displaced: the draw tests too little", displaced)
	}
}

// A table has a quarter more places than users, in whole buckets of eight, and at least two buckets.
func TestPlacesOfAFrequency(t *testing.T) {
	one := newFrequency(t, DefaultFrequency(1)).Bytes() / 16
	for users, want := range map[int]int{
		1: 16, 12: 16, 13: 24, 16: 24, 19: 24, 20: 32, 64: 80, 65: 88, 1000: 1256, 100_000: 125_000,
	} {
		f := newFrequency(t, DefaultFrequency(users))
		if got := f.Bytes() / one; got != want {
			t.Errorf("%d places for %d users, want %d", got, users, want)
		}
	}
	for window, ok := range map[time.Duration]bool{6: false, 7: true} { // a sub-window is a nanosecond at least
		if err := (FrequencyConfig{Users: 1, Window: window}).Validate(); (err == nil) != ok {
			t.Errorf("a window of %d ns: %v", window, err)
		}
	}
}

// A key is counted once, however often it is seen.
func TestFrequencyCountsKeys(t *testing.T) {
	f, err := NewFrequency(DefaultFrequency(100))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		f.ObserveBatch([]Access{{Key: 1}, {Key: 2}, {Key: 1}, {Key: 3}})
	}
	if n := f.Len(); n != 3 {
		t.Errorf("%d keys are known, want 3", n)
	}
}

package residency

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// exact is the plain version: it remembers every request.
type exact map[uint64][]time.Duration

func (e exact) between(key uint64, from, to time.Duration) float64 {
	n := 0
	for _, at := range e[key] {
		if at > from && at <= to {
			n++
		}
	}
	return float64(n)
}

func newFrequency(t testing.TB, c FrequencyConfig) *Frequency {
	t.Helper()
	f, err := NewFrequency(c)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// spread spreads small numbers as hashed user ids would be.
func spread(n uint64) uint64 {
	n = (n ^ n>>31) * 0x7fb5d329728ea185
	n = (n ^ n>>27) * 0x81dadef4bc2dd44d
	return n ^ n>>33
}

// The stated bound: estimates are off by at most the requests of the oldest sub-window, which the window includes only
// partly.
func TestFrequencyAgainstExactCounts(t *testing.T) {
	const window = 7 * time.Second
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		f := newFrequency(t, FrequencyConfig{Users: 400, Window: window})
		truth, now := exact{}, time.Duration(0)
		zipf := rand.NewZipf(rng, 1.2, 1, 299)
		worst := 0.0
		for range 4000 {
			now += time.Duration(rng.ExpFloat64() * float64(20*time.Millisecond))
			key := spread(zipf.Uint64())
			f.Observe(key, now)
			truth[key] = append(truth[key], now)

			asked := spread(zipf.Uint64())
			sub := window / 7
			oldest := now/sub*sub - window // start of the sub-window that the window includes partly
			slack := truth.between(asked, oldest-1, oldest+sub-1)
			got, want := f.Estimate(asked, now), truth.between(asked, now-window, now)
			if math.Abs(got-want) > slack+1e-3 {
				t.Fatalf("seed %d at %v: estimate %v, exactly %v, may be off by %v", seed, now, got, want, slack)
			}
			worst = max(worst, math.Abs(got-want))
		}
		if seed == 0 {
			t.Logf("largest error %.2f requests", worst)
		}
	}
}

// Observations a little out of order count as if in order.
func TestFrequencyOutOfOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	c := FrequencyConfig{Users: 100, Window: 7 * time.Second}
	ordered, shuffled := newFrequency(t, c), newFrequency(t, c)
	var batch []Access
	for i := range 2000 {
		batch = append(batch, Access{Key: spread(uint64(rng.IntN(50))), At: time.Duration(i) * 10 * time.Millisecond})
	}
	ordered.ObserveBatch(batch)
	for part := range slices.Chunk(batch, 200) { // two seconds of seven
		rng.Shuffle(len(part), func(i, j int) { part[i], part[j] = part[j], part[i] })
		shuffled.ObserveBatch(part)
	}
	for key := range uint64(50) {
		a, b := ordered.Estimate(spread(key), 20*time.Second), shuffled.Estimate(spread(key), 20*time.Second)
		if a != b {
			t.Errorf("user %d: %v in order, %v shuffled", key, a, b)
		}
	}
}

func TestFrequencyForgets(t *testing.T) {
	f := newFrequency(t, FrequencyConfig{Users: 10, Window: 7 * time.Second})
	f.Observe(1, time.Second/2)
	for _, c := range []struct {
		at   time.Duration
		want float64
	}{
		{time.Second, 1}, {7 * time.Second, 1}, {7500 * time.Millisecond, .5}, {8 * time.Second, 0}, {time.Hour, 0},
		{0, 1}, // before its last request: as of that request
	} {
		if got := f.Estimate(1, c.at); math.Abs(got-c.want) > 1e-6 {
			t.Errorf("at %v the estimate is %v, want %v", c.at, got, c.want)
		}
	}
	f.Observe(1, time.Hour)
	f.Observe(1, time.Second) // too old to count
	if got := f.Estimate(1, time.Hour); got != 1 {
		t.Errorf("after an hour and a late request the estimate is %v, want 1", got)
	}
	if got := f.Estimate(2, 0); got != 0 {
		t.Errorf("an unknown user has %v, want 0", got)
	}
	f.Hit(2)
	f.Observe(0, time.Hour)
	if got := f.Estimate(0, time.Hour); got != 2 {
		t.Errorf("key 0 shares the slot of key 1 and has %v, want 2", got)
	}
}

// BAT-5: a hit decays the estimate; the order among users stays.
func TestHitDecays(t *testing.T) {
	f := newFrequency(t, FrequencyConfig{Users: 100, Window: 7 * time.Second, HitDecay: 1. / 8})
	for n := range uint64(40) {
		for range n {
			f.ObserveBatch([]Access{{Key: spread(n), At: time.Second, Hit: true}})
		}
		want := 8 * (1 - math.Pow(7./8, float64(n)))
		if got := f.Estimate(spread(n), time.Second); math.Abs(got-want) > 1e-3 {
			t.Errorf("after %d hits the estimate is %v, want %v", n, got, want)
		}
	}
}

// With a quarter of the room the hottest users keep exact counts, and no count is too high.
func TestFrequencyUnderPressure(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	f := newFrequency(t, FrequencyConfig{Users: 1000, Window: 7 * time.Second})
	zipf := rand.NewZipf(rng, 1.1, 5, 20_000)
	counts := map[uint64]float64{}
	for range 40_000 {
		n := zipf.Uint64()
		counts[n]++
		f.Observe(spread(n), time.Second)
	}
	for n, want := range counts {
		got := f.Estimate(spread(n), time.Second)
		if got > want {
			t.Errorf("user %d is counted %v times, asked %v times", n, got, want)
		}
		if n < 50 && got < .98*want {
			t.Errorf("user %d of the 50 hottest is counted %v times, asked %v times", n, got, want)
		}
	}
	if f.Len() > len(f.keys) {
		t.Errorf("%d users in %d slots", f.Len(), len(f.keys))
	}
}

// Filled with its stated number of users, the table loses almost none of them.
func TestFrequencyHoldsItsUsers(t *testing.T) {
	const users = 200_000
	f := newFrequency(t, DefaultFrequency(users))
	for n := range uint64(users) {
		f.Observe(spread(n), time.Second)
	}
	lost := 0
	for n := range uint64(users) {
		if f.Estimate(spread(n), time.Second) != 1 {
			lost++
		}
	}
	t.Logf("%d of %d users lost", lost, users)
	if lost > users/1000 {
		t.Errorf("%d of %d users lost, want at most one in a thousand", lost, users)
	}
}

// Ten million users fit in one GiB.
func TestFrequencyMemory(t *testing.T) {
	const users = 10_000_000
	f := newFrequency(t, DefaultFrequency(users/100))
	perUser := float64(f.Bytes()) / (users / 100)
	t.Logf("%.1f bytes per user, %.0f MiB for ten million", perUser, perUser*users/(1<<20))
	if perUser*users > 1<<30 {
		t.Errorf("%.1f bytes per user: ten million take more than 1 GiB", perUser)
	}
}

func TestFrequencyDoesNotAllocate(t *testing.T) {
	f := newFrequency(t, DefaultFrequency(100))
	n := uint64(0)
	batch := make([]Access, 16)
	if got := testing.AllocsPerRun(1000, func() {
		for i := range batch {
			n++
			batch[i] = Access{Key: spread(n), At: time.Duration(n) * time.Millisecond, Hit: n%2 == 0}
		}
		f.ObserveBatch(batch)
		f.Estimate(spread(n), time.Duration(n))
	}); got != 0 {
		t.Errorf("%v allocations per batch", got)
	}
}

func TestFrequencyConfigIsChecked(t *testing.T) {
	for _, c := range []FrequencyConfig{
		{Users: 0, Window: time.Second}, {Users: 1}, {Users: 1, Window: 3},
		{Users: 1, Window: time.Second, HitDecay: 1}, {Users: 1, Window: time.Second, HitDecay: float32(math.NaN())},
	} {
		if _, err := NewFrequency(c); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
}

func BenchmarkFrequency(b *testing.B) {
	f := newFrequency(b, DefaultFrequency(1_000_000))
	for n := range uint64(1_000_000) {
		f.Observe(spread(n), time.Duration(n))
	}
	b.Run("estimate", func(b *testing.B) {
		n := uint64(0)
		for b.Loop() {
			n++
			f.Estimate(spread(n%1_000_000), time.Second)
		}
	})
	b.Run("observe", func(b *testing.B) {
		n := uint64(0)
		for b.Loop() {
			n++
			f.Observe(spread(n%2_000_000), time.Second)
		}
	})
}

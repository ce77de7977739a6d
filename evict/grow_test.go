package evict

import "testing"

// The number of remembered keys grows with the cache: eight per entry, two per entry in large caches, up to a bound.
func TestForecasterGrowsWithTheCache(t *testing.T) {
	f := NewGrowingForecaster(100, 1000)
	remembers := func(want int) {
		t.Helper()
		for i := range 20000 {
			f.Access(uint64(i), int64(i), Context{})
		}
		if f.Tracker.used != want {
			t.Fatalf("made for %d entries, it remembers %d keys, want %d", f.Tracker.cfg.Entries, f.Tracker.used, want)
		}
	}
	remembers(800)
	f.Hold(100)
	remembers(800)
	f.Hold(101)
	remembers(1600)
	f.Hold(700)
	remembers(5600)
	f.Hold(5000)
	remembers(8000)
	f.Hold(9000)
	remembers(8000)
	if c := f.Tracker.cfg; c.Entries != 1000 || c.HalfLife != 31 || c.Horizon != 4000 || c.Window != window {
		t.Errorf("a tracker for 1,000 entries has %+v", c)
	}
	for _, c := range []struct{ entries, keys int }{{10, 80}, {1 << 14, 1 << 17}, {1 << 15, 1 << 17}, {1 << 16, 1 << 17},
		{1 << 17, 1 << 18}} {
		if got := keysOf(c.entries); got != c.keys {
			t.Errorf("%d keys for %d entries, want %d", got, c.entries, c.keys)
		}
	}
}

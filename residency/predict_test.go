package residency

import "testing"

// The predictor's memory grows with the entries that a level holds, up to a bound.
func TestForecastIsSizedByWhatIsHeld(t *testing.T) {
	f := newForecast(1 << 19)
	f.Hold(1 << 19)
	if n := f.Tracker.Remembers(); n != 2*mostRemembered {
		t.Errorf("for half a million entries %d keys are remembered, want %d", n, 2*mostRemembered)
	}
	if n := newForecast(8).Tracker.Remembers(); n != 8*leastRemembered {
		t.Errorf("at the least %d keys are remembered, want %d", n, 8*leastRemembered)
	}
}

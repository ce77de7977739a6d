package schedule

import (
	"testing"
	"time"
)

func TestFetchPays(t *testing.T) {
	for _, c := range []struct {
		takes float64
		wait  time.Duration
		want  bool
	}{{1, 3 * time.Millisecond, false}, {1, 3100 * time.Microsecond, true}, {0, 0, false},
		{50, 40 * time.Millisecond, false}} {
		if got := FetchPays(c.takes, c.wait); got != c.want {
			t.Errorf("a fetch of %v ms pays within %v: %v", c.takes, c.wait, got)
		}
	}
}

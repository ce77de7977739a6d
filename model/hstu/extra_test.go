package hstu

import (
	"math"
	"testing"
)

// Events are before a question or after it, however far: the earliest time there is is long ago, and not now.
func TestTimesFarApart(t *testing.T) {
	c := &Config{Times: QueryLog, TimeBuckets: 64, PositionBuckets: 8}
	const now = 1_700_000_000
	for _, x := range []struct {
		event int64
		want  int
	}{
		{now - 60*8, 2}, {now, 0}, {now + 1e6, 0}, {math.MaxInt64, 0}, {0, c.bucket(now)}, {-now, c.bucket(2 * now)},
		{math.MinInt64, c.bucket(math.MaxInt64)}, {math.MinInt64 + 1, c.bucket(math.MaxInt64)},
	} {
		if got := c.bucket(before(now, x.event)); got != x.want {
			t.Errorf("an event at %d is in bucket %d at %d, want %d", x.event, got, now, x.want)
		}
	}
	if got := before(-now, math.MaxInt64); got != math.MinInt64 {
		t.Errorf("an event at the end of time is %d seconds before one long ago", got)
	}
}

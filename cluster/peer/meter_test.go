package peer

import (
	"testing"
	"time"
)

// Slow first transfers over new connections do not make a node seem far away. A link that stays slow is measured.
func TestFirstTransfersWeighLittle(t *testing.T) {
	const slow = 12.5e6 // bytes per second, 0.1 Gb/s
	var m meter
	now := time.Unix(1, 0)
	move := func(bytes int64) {
		d := time.Duration(float64(bytes) / slow * float64(time.Second))
		now = now.Add(d)
		m.moved(now, bytes, d)
	}
	if m.rate(now) != 0 {
		t.Error("a rate before the first transfer")
	}
	move(256 << 10)
	// It counts as 1.25 MiB: once as recent, and as the long-term rate. Beside that are 8 MiB at 1 GB/s.
	if got := m.rate(now); got < 80e6 || got > 90e6 {
		t.Errorf("after one transfer of 256 KiB the rate is %.0f MB/s", got/1e6)
	}
	for range 128 {
		move(1 << 20)
	}
	if got := m.rate(now); got < slow || got > 1.3*slow {
		t.Errorf("after 128 MiB at 12.5 MB/s the rate is %.1f MB/s", got/1e6)
	}
}

// A link that was measured on 32 MiB is known, right after that and after any idle time.
func TestRateOfALinkStaysKnown(t *testing.T) {
	for _, want := range []float64{12.5e6, 125e6, 1.25e9} { // 0.1, 1 and 10 Gb/s
		var m meter
		now := time.Unix(1, 0)
		for range 128 {
			d := time.Duration((256 << 10) / want * float64(time.Second))
			now = now.Add(d)
			m.moved(now, 256<<10, d)
		}
		for _, idle := range []time.Duration{0, time.Second, 10 * time.Second, time.Minute, time.Hour} {
			if got := m.rate(now.Add(idle)); got < .8*want || got > 1.2*want {
				t.Errorf("%v after 32 MiB at %.1f MB/s the rate is %.1f MB/s", idle, want/1e6, got/1e6)
			}
		}
	}
}

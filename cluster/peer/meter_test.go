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

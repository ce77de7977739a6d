package schedule

import (
	"math"
	"testing"
	"time"
)

func TestDrift(t *testing.T) {
	var d Drift
	near := func(name string, now time.Duration, want float64) {
		t.Helper()
		if got := d.Factor(now); math.Abs(got/want-1) > .01 {
			t.Errorf("%s: the factor is %v, want %v", name, got, want)
		}
	}
	near("nothing known", time.Hour, 1)
	d.Observe(3, 1, true, 0)
	near("one transfer", 0, 3)
	d.Observe(0, 1, true, 0)
	d.Observe(1, 0, true, 0)
	d.Observe(2, 1, false, 0) // it may have taken three
	near("nothing new", 0, 3)
	d.Observe(12, 1, false, 0)
	near("one that would have taken longer", 0, 6)
	near("half a minute later", paceLasts, math.Exp(math.Log(6)/math.E))
	near("much later", time.Hour, 1)
	for range 60 {
		d.Observe(1, 4, true, time.Second)
	}
	near("a faster disk", time.Second, .25)
	for range 60 {
		d.Observe(1e9, 1, true, time.Second)
	}
	near("a hung disk", time.Second, 128)
}

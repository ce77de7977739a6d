package alloc

import (
	"math"
	"slices"
	"testing"
)

// calm is an epoch in which rows would save most, hot one in which KV would.
func calm(p99 float64) Observation {
	o := Observation{State: State{Hot: 0.2, EmbHit: 0.5, P99: p99}, Requests: 10000, LinkLoad: 0.8, GPULoad: 0.7}
	o.Gains.Emb[0] = 10
	return o
}

func hot(p99 float64) Observation {
	o := calm(p99)
	o.Hot = 0.5
	o.Gains.KV[0] = 100
	return o
}

// live lets epochs pass and returns the share after each.
func live(c *Climb, alpha float64, epochs ...Observation) []float64 {
	var out []float64
	for _, o := range epochs {
		o.Alpha = alpha
		alpha = c.Decide(&o).To
		out = append(out, alpha)
	}
	return out
}

func repeat(n int, o Observation) []Observation {
	out := make([]Observation, n)
	for i := range out {
		out[i] = o
	}
	return out
}

func TestClimbHasAReasonToFollow(t *testing.T) {
	got := live(&Climb{SLO: 30}, 0.5, repeat(20, calm(12))...)
	if last := got[19]; last <= 0.5 || last > 0.5+20*climbCreep {
		t.Errorf("P99 of 12 ms of 30: the share went from 0.5 to %.3f in 20 epochs, want a creep", last)
	}
	got = live(&Climb{SLO: 30}, 0.5, repeat(12, calm(28))...)
	if got[4] > 0.51 || got[11] < 0.7 {
		t.Errorf("P99 of 28 ms of 30: shares %.3f, want that it follows once there were some epochs", got)
	}
	var drift []Observation
	for i := range 24 {
		o := hot(12)
		o.Hot = 0.2 + 0.01*float64(i)
		drift = append(drift, o)
	}
	if got := live(&Climb{SLO: 30}, 0.5, drift...); got[23] > 0.3 {
		t.Errorf("hot users drift from 0.2 to 0.43 and KV would save: the share went from 0.5 to %.3f", got[23])
	}
}

func TestClimbDoesNotFollowBursts(t *testing.T) {
	c := &Climb{SLO: 30}
	at := live(c, 0.5, repeat(15, calm(12))...)[14]
	got := live(c, at, append(repeat(5, hot(15)), repeat(60, calm(12))...)...)
	for i, a := range got {
		if a != at {
			t.Fatalf("epoch %d after a burst began that was within the SLO: the share went from %.3f to %.3f", i, at, a)
		}
	}
}

// Pressure of a burst moves the boundary, a little and not in every epoch, and calm does not take that back.
func TestClimbLearnsFromBursts(t *testing.T) {
	c := &Climb{SLO: 30}
	at := live(c, 0.5, repeat(15, calm(12))...)[14]
	got := live(c, at, append(repeat(4, hot(200)), repeat(10, calm(12))...)...)
	for i := range got {
		before := at
		if i > 0 {
			before = got[i-1]
		}
		if want := i == 0 || i == 2; (got[i] < before) != want || before-got[i] > pushMost+1e-12 {
			t.Errorf("epoch %d: the share went from %.3f to %.3f", i, before, got[i])
		}
	}
	if last := got[len(got)-1]; last != got[3] {
		t.Errorf("after the burst the share went from %.3f to %.3f", got[3], last)
	}
}

// A share of hot users that lasts is no burst.
func TestClimbFollowsSteps(t *testing.T) {
	c := &Climb{SLO: 30}
	at := live(c, 0.5, repeat(15, calm(12))...)[14]
	if got := live(c, at, repeat(14, hot(40))...); got[13] > 0.2 {
		t.Errorf("for 14 epochs half of the users are hot, P99 is above the SLO and KV would save: the share went from %.3f to %.3f", at, got)
	}
}

func TestCourse(t *testing.T) {
	var c course
	var aways, ends []int
	for i := range 30 {
		h := 0.2
		if i >= 4 && i < 7 || i >= 18 { // a burst, and a step that lasts
			h = 0.5
		}
		away, ended := c.note(h, 10000)
		if away {
			aways = append(aways, i)
		}
		if ended {
			ends = append(ends, i)
		}
	}
	if want := []int{4, 5, 6, 18, 19, 20, 21, 22, 23}; !slices.Equal(aways, want) || !slices.Equal(ends, []int{7}) {
		t.Errorf("epochs %v were away, want %v; bursts ended before epochs %v, want one before 7", aways, want, ends)
	}
	if m := c.median(); math.Abs(m-0.5) > 1e-12 {
		t.Errorf("the median is %v after twelve epochs of 0.5", m)
	}
}

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
	if got := live(&Climb{SLO: 30}, 0.5, repeat(3, busy(calm(12), 0.9))...); math.Abs(got[2]-0.5-3*climbRise) > 1e-9 {
		t.Errorf("a load of 0.9: shares %.3f, want that it follows by %.3f an epoch", got, climbRise)
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

// Epochs of a burst move nothing, and those after it only creep.
func TestClimbDoesNotFollowBursts(t *testing.T) {
	c := &Climb{SLO: 30}
	at := live(c, 0.5, repeat(15, calm(12))...)[14]
	for i, a := range live(c, at, repeat(5, hot(15))...) {
		if a != at {
			t.Fatalf("epoch %d of a burst that was within the SLO: the share went from %.3f to %.3f", i, at, a)
		}
	}
	if got := live(c, at, repeat(60, calm(12))...)[59]; got < at || got > at+60*climbCreep {
		t.Errorf("in 60 epochs after the burst the share went from %.3f to %.3f, want a creep", at, got)
	}
}

// busy is what half a second is like whose load is so much.
func busy(o Observation, load float64) Observation {
	o.LinkLoad, o.Requests = load, 1000
	return o
}

// look shows parts of epochs and returns how far the share moved.
func look(c *Climb, alpha float64, parts ...Observation) float64 {
	moved := 0.0
	for _, o := range parts {
		o.Alpha = alpha + moved
		if d, ok := c.Glance(&o); ok {
			moved += d.To - d.From
		}
	}
	return moved
}

func TestClimbReactsWithinAnEpoch(t *testing.T) {
	many := hot(12)
	many.Gains = Gains{} // nobody has come twice
	lacks := hot(12)
	lacks.Gains.KV[0] = 1000
	few := busy(many, 0.9)
	few.Requests = glanceLeast - 1
	for _, c := range []struct {
		name  string
		parts []Observation
		want  float64
	}{
		{"a burst begins at a busy node", repeat(4, busy(many, 0.9)), -4 * surgeStep},
		{"the same, and ghosts say that KV lacks it", repeat(4, busy(lacks, 0.9)), -4 * ghostStep},
		{"a burst begins at a node with time", repeat(4, busy(many, 0.8)), 0},
		{"a burst begins, too few requests to tell", repeat(4, few), 0},
		{"a burst that lasts, the node busy", repeat(20, busy(many, 0.9)), -Glances * surgeStep},
		{"calm, and a jam", repeat(4, busy(calm(12), 1)), 4 * rowStep},
		{"calm, and a node that is busy", repeat(4, busy(calm(12), 0.9)), 0},
	} {
		climb := &Climb{SLO: 30}
		at := live(climb, 0.5, repeat(15, calm(12))...)[14]
		if got := look(climb, at, c.parts...); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: the share moved by %.3f, want %.3f", c.name, got, c.want)
		}
	}
	if got := look(&Climb{}, 0.5, repeat(4, busy(hot(12), 1))...); got != 0 {
		t.Errorf("one that always follows moved by %.3f between epochs", got)
	}
}

// What KV got in a burst and does not need goes back while the burst lasts, and no more than that.
func TestClimbGivesBack(t *testing.T) {
	c := &Climb{SLO: 30}
	at := live(c, 0.5, repeat(15, calm(12))...)[14]
	low := at + look(c, at, repeat(4, busy(hot(12), 0.9))...)
	if got := live(c, low, busy(hot(12), 0.9))[0]; got != low {
		t.Errorf("a busy epoch of a burst: the share went from %.3f to %.3f", low, got)
	}
	got := live(c, low, repeat(3, hot(12))...)
	if math.Abs(got[0]-low-giveBack) > 1e-9 || math.Abs(got[2]-at) > 1e-9 {
		t.Errorf("three easy epochs of a burst: the share went from %.3f to %.3f, want back to %.3f", low, got, at)
	}
}

// users is an epoch with this share of hot users, of whom this share finds its KV.
func users(hot, found float64) Observation {
	o := calm(12)
	o.Hot, o.KVHit, o.Events, o.Gains = hot, hot*found, 10000, Gains{}
	return o
}

// After a fall KV keeps what the users who are left need, in one move, and nothing else is taken at once.
func TestClimbKeepsWhatKVNeeds(t *testing.T) {
	for _, c := range []struct {
		name        string
		hot, found  float64
		alpha, want float64
	}{
		{"all hot users were served", 0.2, needHits, 0.4, 1 - 0.6*math.Pow(0.4, needGrows)},
		{"half of them were, and KV still lacks memory", 0.25, needHits / 2, 0.4, 0.4},
		{"half of them were, and few are left", 0.1, needHits / 2, 0.4, 1 - 2*0.6*math.Pow(0.2, needGrows)},
		{"nearly nobody is left", 0, needHits, 0.4, 0.4},
		{"few are left", 0.01, needHits, 0.4, MaxShare},
		{"no KV was found, so nothing is known", 0.2, 0, 0.4, 0.4},
	} {
		climb := &Climb{SLO: 30}
		at := live(climb, c.alpha, repeat(15, users(0.5, c.found))...)[14]
		got := live(climb, at, repeat(4, users(c.hot, 0.9))...)
		if math.Abs(got[0]-c.want) > 0.003 || math.Abs(got[3]-got[0]) > 1e-9 {
			t.Errorf("%s: shares %.3f after %.3f, want %.3f", c.name, got, at, c.want)
		}
	}
}

// rise lets epochs with glances pass and returns the share after each.
func rise(c *Climb, alpha float64, epochs int, o Observation) []float64 {
	var out []float64
	for range epochs {
		alpha += look(c, alpha, repeat(Glances, busy(o, o.LinkLoad))...)
		alpha = live(c, alpha, o)[0]
		out = append(out, alpha)
	}
	return out
}

// The share that follows a rise from a fifth to a half is where KV needs 2.5^needGrows times what it had.
var risen = 0.7 / (0.7 + 0.3*math.Pow(2.5, needGrows))

// KV gets what the new users need within three epochs. Nothing moves after that.
func TestClimbFollowsARise(t *testing.T) {
	for name, glances := range map[string]bool{"with glances": true, "too few requests for glances": false} {
		c := &Climb{SLO: 30}
		at := live(c, 0.7, repeat(15, users(0.2, needHits))...)[14]
		got := live(c, at, users(0.34, 0.4))
		if glances {
			got = append(got, rise(c, got[0], 40, users(0.5, 0.7))...)
		} else {
			got = append(got, live(c, got[0], repeat(40, users(0.5, 0.7))...)...)
		}
		if math.Abs(at-0.7) > 1e-9 || math.Abs(got[2]-risen) > 0.02 || math.Abs(got[40]-got[2]) > 0.02 {
			t.Errorf("%s: shares %.3f after %.3f, want %.3f from the third epoch on", name, got, at, risen)
		}
	}
}

// What followed a rise goes back within half a second when the burst ends. The next burst moves nothing, but a rise
// that lasts is followed.
func TestClimbGoesBackAfterABurst(t *testing.T) {
	c := &Climb{SLO: 30}
	at := live(c, 0.7, repeat(15, users(0.2, needHits))...)[14]
	low := rise(c, at, 3, users(0.5, 0.7))[2]
	other := *c
	got := low + look(c, low, busy(users(0.2, needHits), 0.8))
	if math.Abs(low-risen) > 0.02 || math.Abs(got-at) > 1e-9 {
		t.Errorf("a burst at %.3f led to %.3f, and its end to %.3f; want %.3f and back", at, low, got, risen)
	}
	if moved := look(&other, low, busy(users(0.2, needHits), 0.9)); moved != 0 {
		t.Errorf("at the end of a burst the node was busy, and the share moved by %.3f at once", moved)
	}
	live(c, at, repeat(courseEpochs, users(0.2, needHits))...)
	late := rise(c, at, 12, users(0.5, 0.7))
	if math.Abs(late[4]-at) > 0.001 || math.Abs(late[11]-risen) > 0.02 {
		t.Errorf("a rise soon after a burst: shares %.3f, want %.3f for five epochs, then %.3f", late, at, risen)
	}
}

func TestClimbAllocatesNothing(t *testing.T) {
	c := &Climb{SLO: 30}
	o := busy(hot(40), 0.99)
	if n := testing.AllocsPerRun(100, func() { c.Decide(&o); c.Glance(&o) }); n != 0 {
		t.Errorf("a decision and a glance allocate %v times", n)
	}
}

// A share of hot users that lasts is no burst.
func TestClimbFollowsSteps(t *testing.T) {
	c := &Climb{SLO: 30}
	at := live(c, 0.5, repeat(15, calm(12))...)[14]
	if got := live(c, at, repeat(14, hot(40))...); got[13] > 0.2 {
		t.Errorf("for 14 epochs half of the users are hot, P99 is above the SLO and KV would save: the share went from "+
			"%.3f to %.3f", at, got)
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

package schedule

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"grebe/plan"
)

func close2(a, b float64) bool { return math.Abs(a-b) <= 1e-9*(1+math.Abs(a)+math.Abs(b)) }

// A user's kept KV is worth, per expected return, the saving of the same request with the user cached.
func TestKeptUserIsWorthWhatACachedOneSaves(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 22))
	valued := 0
	for range 3000 {
		in, c := draw(rng)
		in.UserCached, in.Slack = [plan.NumTiers]int32{}, 0
		for tier := range c.Transfer {
			c.Transfer[tier].Entry = 0 // a kept user is one more entry, whose cost is left out
		}
		switch rng.IntN(3) {
		case 0:
			in.ReturnsKnown, in.Returns = true, 3*rng.Float64()
		case 1:
			in.Frequency, in.Coldest = 2, 1
		}
		d := Decide(&in, &c, Predicted)
		returns := 0.75 * max(0, in.Frequency-in.Coldest)
		switch {
		case in.ReturnsKnown && in.UserRoom:
			returns = in.Returns
		case in.ReturnsKnown:
			returns = 0.75 * in.Returns
		case in.UserRoom:
			returns = 0.75 * (in.Frequency + c.RoomReturns)
		}
		again := in
		again.UserCached[c.Keep] = in.User
		s := again.sumItems()
		cached := c.userFirst(&again, &s, loadAll)
		want := returns * max(0, min(d.User.Ms, d.Item.Ms)-min(cached.Ms, d.Item.Ms))
		if in.User == 0 {
			want = 0
		}
		if !close2(d.User.Value, want) {
			t.Fatalf("%+v\n%+v: worth %v, want %v", in, c, d.User.Value, want)
		}
		if want > 0 {
			valued++
		}
		// A user who is already cached adds no value.
		full := again
		for tier := plan.Host; tier < plan.NumTiers; tier++ {
			c.Transfer[tier] = Transfer{}
		}
		if d := Decide(&full, &c, Predicted); d.User.Value != 0 {
			t.Fatalf("a user who is cached is worth %v more", d.User.Value)
		}
	}
	if valued < 500 {
		t.Errorf("%d users were worth something: the draw tests too little", valued)
	}
}

// Missing items are worth, per expected use, the time to compute them.
func TestMissingItemsAreWorthTheirComputation(t *testing.T) {
	c := DefaultCosts(PrefillModel{Row: 2, Key: 0.5})
	in := Request{Preamble: 3, LeadIn: 1, User: 10, Items: []int32{4, 2, 5},
		ItemTier:      []plan.Tier{plan.Missing, plan.Missing, plan.Host},
		ItemFrequency: []float32{0.5, 2, 9}}
	d := Decide(&in, &c, Predicted)
	perToken := 2 + 4*0.5
	want := 0.75 * ((0.5*4+2*2)*perToken + (0.5*10+2*3)*0.5)
	if !close2(d.Item.Value, want) {
		t.Errorf("worth %v, want %v", d.Item.Value, want)
	}
}

// An order is not chosen as an investment if only the other one meets the deadline, to the millisecond.
func TestDeadlineBeforeInvestment(t *testing.T) {
	for _, c := range []struct {
		slack  float64
		order  plan.Order
		reason Reason
	}{
		{0, plan.UserFirst, Invest}, {4.99, plan.UserFirst, Invest}, {5, plan.ItemFirst, Deadline},
		{9.99, plan.ItemFirst, Deadline},
		{10, plan.UserFirst, Invest}, {20, plan.UserFirst, Invest},
	} {
		d := Decision{User: Option{Ms: 10, Value: 8}, Item: Option{Ms: 5}}
		d.predicted(&Request{Slack: c.slack})
		if d.Order != c.order || d.Reason != c.reason {
			t.Errorf("slack %v: %v, %v, want %v, %v", c.slack, d.Order, d.Reason, c.order, c.reason)
		}
	}
	d := Decision{User: Option{Ms: 5}, Item: Option{Ms: 5}}
	if d.predicted(&Request{}); d.Order != plan.ItemFirst || d.Reason != Cheaper {
		t.Errorf("of two that cost the same: %v, %v", d.Order, d.Reason)
	}
}

// After memory batches, a batch counts 1/e of a new one. Batches of half a millisecond count too.
func TestMemoryOfATuner(t *testing.T) {
	m := PrefillModel{Row: 1}
	m.Quality.Largest = Sample{Rows: 1, Keys: 1, Requests: 1, Ms: 1}
	for _, memory := range []int{1, 10} {
		tuner, err := NewTuner(m, memory)
		if err != nil {
			t.Fatal(err)
		}
		if want := math.Exp(-1 / float64(memory)); !close2(tuner.fade, want) {
			t.Errorf("memory %d: a batch fades by %v, want %v", memory, tuner.fade, want)
		}
		for range 10 * memory {
			tuner.Observe(Sample{Rows: 1, Keys: 0, Requests: 1, Ms: 0.5})
		}
		model := tuner.Model()
		if got := model.Predict(1, 0, 1); math.Abs(got-0.5) > 0.3 {
			t.Errorf("memory %d: %v ms are predicted after many batches of 0.5", memory, got)
		}
	}
}

// A huge request waits for small ones that would miss their deadlines, until those had as much time as it takes.
func TestSmallAndHugeShare(t *testing.T) {
	b := newQueue(t, DefaultBatcher(64, 100*ms), PrefillModel{Fixed: 1, Row: 1})
	b.Add(Job{ID: 1, Rows: 59, Deadline: time.Second}) // takes 60 of 100
	now, passed := time.Duration(0), time.Duration(0)
	for id := uint64(2); ; id++ {
		b.Add(Job{ID: id, Rows: 20, Arrival: now, Deadline: now + 30*ms})
		batch, shed, _ := b.Step(now)
		if len(batch) != 1 || len(shed) != 0 {
			t.Fatalf("a batch of %d, %d shed", len(batch), len(shed))
		}
		if batch[0].ID == 1 {
			break
		}
		now += 21 * ms
		passed += 21 * ms
	}
	if passed != 63*ms { // the first sum of small batches that is at least its own time
		t.Errorf("the huge one ran after %v of small ones, want 63ms", passed)
	}
	if b.passed != 0 {
		t.Errorf("%v are still owed to nobody", b.passed)
	}
}

// A fitted model reports how well it fits: the share of explained variance, and its largest relative error.
func TestQualityOfAFit(t *testing.T) {
	rng := rand.New(rand.NewPCG(31, 32))
	var samples []Sample
	for i := range 60 {
		s := Sample{Rows: 10 + 37*i, Keys: 1000 + rng.IntN(9000)*i, Requests: 1 + i%5}
		s.Ms = (3 + 0.1*float64(s.Rows) + 0.0001*float64(s.Keys) + float64(s.Requests)) * (0.8 + 0.4*rng.Float64())
		samples = append(samples, s)
	}
	m, err := Fit(samples)
	if err != nil {
		t.Fatal(err)
	}
	mean, missed, varied, worst := 0.0, 0.0, 0.0, 0.0
	for _, s := range samples {
		mean += s.Ms / float64(len(samples))
	}
	for _, s := range samples {
		e := m.Predict(s.Rows, s.Keys, s.Requests) - s.Ms
		missed, varied = missed+e*e, varied+(s.Ms-mean)*(s.Ms-mean)
		worst = max(worst, math.Abs(e)/s.Ms)
	}
	if q := m.Quality; q.Samples != 60 || math.Abs(q.R2-(1-missed/varied)) > 1e-9 || math.Abs(q.MaxRelative-worst) > 1e-9 {
		t.Errorf("%+v, want an R² of %v and errors up to %v", q, 1-missed/varied, worst)
	}
}

// Requests that have left the queue no longer count in it, keys included.
func TestQueueOfNobodyIsEmpty(t *testing.T) {
	b := newQueue(t, DefaultBatcher(8, time.Second), PrefillModel{Fixed: 1, Row: 0.01, Key: 0.0001})
	for id := range uint64(4) {
		b.Add(Job{ID: id, Rows: 5 + int(id), Keys: 100 * int(id+1)})
	}
	for id := range uint64(4) {
		b.Remove(id)
	}
	if b.smalls != (load{}) {
		t.Errorf("%+v is counted of an empty queue", b.smalls)
	}
}

package schedule

import (
	"math"
	"testing"
	"time"

	"grebe/plan"
)

const ms = time.Millisecond

func newQueue(t *testing.T, c BatcherConfig, m PrefillModel) *Batcher {
	t.Helper()
	b, err := NewBatcher(c, m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The time until a request's turn is that of the work ahead of it, in batches as full as the target allows.
func TestAhead(t *testing.T) {
	c := DefaultBatcher(16, time.Second)
	c.Efficiency = 0.5 // a target of twice the fixed cost
	b := newQueue(t, c, PrefillModel{Fixed: 10, Row: 1})
	if got := b.Ahead(time.Hour); got != 0 {
		t.Errorf("%v before nothing", got)
	}
	if got := b.Target(); got != 20*ms {
		t.Errorf("a target of %v, want 20ms", got)
	}
	for i, rows := range []int{4, 4, 5} { // 13 ms of work, in two batches of up to 10
		b.Add(Job{ID: uint64(i), Rows: rows, Deadline: time.Duration(100+i) * ms})
	}
	for _, x := range []struct{ deadline, want time.Duration }{
		{99 * ms, 0}, {100 * ms, 14 * ms}, {101 * ms, 18 * ms}, {102 * ms, 33 * ms}, {time.Hour, 33 * ms},
	} {
		if got := b.Ahead(x.deadline); got != x.want {
			t.Errorf("%v before a deadline of %v, want %v", got, x.deadline, x.want)
		}
	}
	b.Add(Job{ID: 9, Rows: 40, Deadline: 50 * ms}) // larger than a batch: it adds its own fixed cost
	if got := b.Ahead(50 * ms); got != 50*ms {
		t.Errorf("%v before a deadline of 50ms, want 50ms", got)
	}
	// If the target has no room beyond the fixed cost, each request runs alone.
	c.SLO = 20 * ms
	b = newQueue(t, c, PrefillModel{Fixed: 10, Row: 1})
	for i := range 3 {
		b.Add(Job{ID: uint64(i), Rows: 2, Deadline: time.Second})
	}
	if got := b.Ahead(time.Second); got != 36*ms {
		t.Errorf("%v before three that run alone, want 36ms", got)
	}
}

// Predictions include the margin and follow the model. A later change affects later predictions.
func TestSlackAndModelCanChange(t *testing.T) {
	b := newQueue(t, DefaultBatcher(4, time.Second), PrefillModel{Fixed: 10, Row: 1, Key: 0.5, Request: 2})
	if got := b.Alone(8, 20); got != 30*ms {
		t.Errorf("%v alone, want 30ms", got)
	}
	b.SetSlack(0.5, 7*ms)
	if b.Margin() != 0.5 || b.Answer() != 7*ms || b.Alone(8, 20) != 45*ms {
		t.Errorf("margin %v, %v for answers, %v alone", b.Margin(), b.Answer(), b.Alone(8, 20))
	}
	b.SetSlack(-1, -1)
	if b.Margin() != 0 || b.Answer() != 0 {
		t.Errorf("margin %v, %v for answers, want none", b.Margin(), b.Answer())
	}
	b.SetModel(PrefillModel{Row: 2})
	if got := b.Alone(8, 20); got != 16*ms {
		t.Errorf("%v alone, want 16ms", got)
	}
	b.SetModel(PrefillModel{Fixed: math.MaxFloat64})
	if got := b.Alone(1, 1); got != 365*24*time.Hour {
		t.Errorf("%v alone, want a year at most", got)
	}
	b.SetModel(PrefillModel{Fixed: 10})
	b.SetSLO(50 * ms)
	b.Add(Job{ID: 1, Arrival: 5 * ms})
	if batch, _, _ := b.Step(5 * ms); len(batch) != 1 || batch[0].Deadline != 55*ms {
		t.Errorf("batch %+v, want one job whose deadline is 55ms", batch)
	}
}

// A request is shed when it would miss its deadline even alone and at once, including the time for its answer, and not
// before.
func TestShedAtTheLastMoment(t *testing.T) {
	for _, c := range []struct {
		now  time.Duration
		shed bool
	}{{85 * ms, false}, {85*ms + 1, true}} {
		b := newQueue(t, DefaultBatcher(4, time.Second), PrefillModel{Fixed: 10})
		b.SetSlack(0, 5*ms)
		b.Add(Job{ID: 1, Rows: 1, Deadline: 100 * ms})
		batch, shed, wake := b.Step(c.now)
		if len(shed) != 1 == c.shed || len(batch) == 1 == c.shed || wake != Never {
			t.Errorf("at %v: a batch of %d, %d shed, wake at %v", c.now, len(batch), len(shed), wake)
		}
	}
	// A model that became slower after the request arrived sheds it too, small or huge.
	for _, rows := range []int{1, 600} {
		b := newQueue(t, DefaultBatcher(4, time.Second), PrefillModel{Row: 1})
		b.Add(Job{ID: 1, Rows: rows, Deadline: 700 * ms})
		b.SetModel(PrefillModel{Fixed: 701})
		if batch, shed, _ := b.Step(0); len(batch) != 0 || len(shed) != 1 {
			t.Errorf("%d rows: a batch of %d and %d shed, want it shed", rows, len(batch), len(shed))
		}
		if b.Len() != 0 {
			t.Errorf("%d rows: %d wait", rows, b.Len())
		}
	}
}

// A queue takes as many requests as it has places, each once. A place is free again when its request leaves.
func TestQueueHasPlaces(t *testing.T) {
	b := newQueue(t, DefaultBatcher(2, time.Second), PrefillModel{Row: 1})
	for _, c := range []struct {
		id uint64
		ok bool
	}{{1, true}, {1, false}, {2, true}, {3, false}} {
		if got := b.Add(Job{ID: c.id, Rows: 1}); got != c.ok {
			t.Errorf("request %d: %v, want %v", c.id, got, c.ok)
		}
	}
	if b.Remove(3) || !b.Remove(1) || b.Remove(1) || b.Len() != 1 {
		t.Errorf("%d wait, want one", b.Len())
	}
	if !b.Add(Job{ID: 3, Rows: 1}) || b.Len() != 2 {
		t.Error("the place of one who left is not free")
	}
}

// MaxRows limits a batch, but not a request that runs alone.
func TestRowsOfABatch(t *testing.T) {
	c := DefaultBatcher(8, time.Second)
	c.MaxRows = 10
	for _, x := range []struct {
		rows []int
		want int
	}{{[]int{5, 5, 5}, 2}, {[]int{5, 6, 1}, 1}, {[]int{11, 1}, 1}, {[]int{10, 1}, 1}} {
		b := newQueue(t, c, PrefillModel{Fixed: 10, Row: 0.01})
		for i, rows := range x.rows {
			b.Add(Job{ID: uint64(i), Rows: rows})
		}
		if batch, _, _ := b.Step(0); len(batch) != x.want {
			t.Errorf("of %v rows %d run together, want %d", x.rows, len(batch), x.want)
		}
	}
}

// Validate checks the limits of BatcherConfig.
func TestBatcherBorders(t *testing.T) {
	for name, c := range map[string]struct {
		change func(c *BatcherConfig)
		ok     bool
	}{
		"one place":      {func(c *BatcherConfig) { c.Capacity = 1 }, true},
		"many places":    {func(c *BatcherConfig) { c.Capacity = math.MaxInt32 }, true},
		"too many":       {func(c *BatcherConfig) { c.Capacity = math.MaxInt32 + 1 }, false},
		"a short SLO":    {func(c *BatcherConfig) { c.SLO = 1 }, true},
		"no room":        {func(c *BatcherConfig) { c.MaxRows = 0 }, true},
		"no efficiency":  {func(c *BatcherConfig) { c.Efficiency = 0 }, false},
		"NaN":            {func(c *BatcherConfig) { c.Efficiency = math.NaN() }, false},
		"below a margin": {func(c *BatcherConfig) { c.Margin = -0.1 }, false},
		"NaN of margin":  {func(c *BatcherConfig) { c.Margin = math.NaN() }, false},
		"below 0":        {func(c *BatcherConfig) { c.Answer = -1 }, false},
	} {
		cfg := DefaultBatcher(8, time.Second)
		c.change(&cfg)
		if err := cfg.Validate(); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Validate checks the limits of Costs.
func TestCostBorders(t *testing.T) {
	for name, c := range map[string]struct {
		change func(c *Costs)
		ok     bool
	}{
		"as they are":         {func(*Costs) {}, true},
		"no transfer":         {func(c *Costs) { c.Transfer[plan.Host] = Transfer{} }, true},
		"entry below 0":       {func(c *Costs) { c.Transfer[plan.Host].Entry = -1 }, false},
		"token below 0":       {func(c *Costs) { c.Transfer[plan.Host].Token = -1 }, false},
		"NaN":                 {func(c *Costs) { c.Transfer[plan.Host].Token = math.NaN() }, false},
		"endless":             {func(c *Costs) { c.Transfer[plan.Host].Entry = math.Inf(1) }, false},
		"the last tier":       {func(c *Costs) { c.Keep = plan.NumTiers - 1 }, true},
		"no tier":             {func(c *Costs) { c.Keep = plan.NumTiers }, false},
		"missing":             {func(c *Costs) { c.Keep = plan.Missing }, false},
		"no discount":         {func(c *Costs) { c.Discount = 0 }, true},
		"all of it":           {func(c *Costs) { c.Discount = 1 }, true},
		"more":                {func(c *Costs) { c.Discount = 1.01 }, false},
		"a negative discount": {func(c *Costs) { c.Discount = -0.01 }, false},
		"no returns":          {func(c *Costs) { c.RoomReturns = 0 }, true},
		"negative returns":    {func(c *Costs) { c.RoomReturns = -1 }, false},
		"endless returns":     {func(c *Costs) { c.RoomReturns = math.Inf(1) }, false},
		"a model":             {func(c *Costs) { c.Model.Row = -1 }, false},
	} {
		costs := DefaultCosts(PrefillModel{Row: 1})
		c.change(&costs)
		if err := costs.Validate(); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Impossible samples are ignored.
func TestImpossibleSamples(t *testing.T) {
	m := PrefillModel{Fixed: 1, Row: 1}
	m.Quality.Largest = Sample{Rows: 100, Keys: 100, Requests: 4, Ms: 101}
	tuner, err := NewTuner(m, 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []Sample{
		{Rows: 0, Requests: 1, Ms: 9}, {Rows: 1, Keys: -1, Requests: 1, Ms: 9}, {Rows: 1, Requests: 0, Ms: 9},
		{Rows: 1, Requests: 1, Ms: 0}, {Rows: 1, Requests: 1, Ms: math.NaN()},
	} {
		tuner.Observe(s)
		if tuner.Model() != m {
			t.Errorf("%+v changed the model to %+v", s, tuner.Model())
		}
	}
	tuner.Observe(Sample{Rows: 1, Requests: 1, Ms: 3})
	if tuner.Model() == m {
		t.Error("a sample that can be taught nothing")
	}
	for name, bad := range map[string]func() (*Tuner, error){
		"no memory":   func() (*Tuner, error) { return NewTuner(m, 0) },
		"no sample":   func() (*Tuner, error) { return NewTuner(PrefillModel{Row: 1}, 10) },
		"a bad model": func() (*Tuner, error) { return NewTuner(PrefillModel{Row: -1}, 10) },
	} {
		if _, err := bad(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A batch that is held starts early enough for its first member's answer to meet the deadline.
func TestHoldingLeavesTimeForTheAnswer(t *testing.T) {
	for _, answer := range []time.Duration{0, 10 * time.Millisecond} {
		b, err := NewBatcher(DefaultBatcher(16, time.Second), PrefillModel{Fixed: 100, Row: 1})
		if err != nil {
			t.Fatal(err)
		}
		b.SetSlack(0, answer)
		const gap = 50 * time.Millisecond
		at := time.Duration(0)
		for id := uint64(1); id <= 10; id, at = id+1, at+gap { // one is expected every 50 ms
			b.Add(Job{ID: id, Rows: 10, Arrival: at, Deadline: at + 900*time.Millisecond})
			b.Remove(id)
		}
		b.Add(Job{ID: 99, Rows: 10, Arrival: at, Deadline: at + 150*time.Millisecond})
		batch, shed, wake := b.Step(at)
		if want := at + 30*time.Millisecond - answer; len(batch)+len(shed) > 0 || wake != want { // two take 120 ms
			t.Errorf("answers take %v: %d run, %d are shed, the next look is after %v, want %v", answer, len(batch), len(shed),
				wake-at, want-at)
		}
	}
}

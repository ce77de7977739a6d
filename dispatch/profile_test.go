package dispatch

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"grebe/engine"
	"grebe/schedule"
)

// gpu is an engine that computes in buckets of 128 rows. It prepares for seconds when it first sees a bucket, and once
// more the second time.
type gpu struct {
	seen  map[int]int
	flat  bool // times do not grow
	sizes bool // it says which sizes it prepares for
}

func (g *gpu) Sizes(most int) (out []int) {
	for rows := 128; g.sizes && rows <= most; rows += 128 {
		out = append(out, rows)
	}
	return out
}

func (g *gpu) MaxTokens() int { return 100_000 }

func (g *gpu) Check(j *engine.Job) (engine.Cost, error) {
	n := j.Plan.Tokens()
	return engine.Cost{Rows: n, Keys: n * (n + 1) / 2}, nil
}

func (g *gpu) Run(jobs []*engine.Job, out []engine.Outcome) {
	n := 0
	for i, j := range jobs {
		out[i].Computed = j.Plan.Tokens()
		n += j.Plan.Tokens()
	}
	bucket := (n + 127) / 128
	took := 2*time.Millisecond + time.Duration(bucket-1)*600*time.Microsecond
	if g.flat {
		took = 2 * time.Millisecond
	}
	switch g.seen[bucket]++; g.seen[bucket] {
	case 1:
		took += 2 * time.Second
	case 2:
		took += 30 * time.Millisecond
	}
	time.Sleep(took)
}

// The time in which a device prepares for a new size is not part of its measured times.
func TestProfileOfADeviceThatPrepares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		m, err := Profile(t.Context(), &gpu{seen: map[int]int{}}, 32768)
		if err != nil {
			t.Fatal(err)
		}
		for _, rows := range []int{128, 512, 1280, 2560} {
			want := 2 + float64(rows/128-1)*.6
			if got := m.Predict(rows, rows*rows/2, 1); math.Abs(got-want) > .35*want {
				t.Errorf("%d rows are predicted to take %.2f ms, want %.2f", rows, got, want)
			}
		}
		if took := time.Since(start); took > limit+5*time.Second {
			t.Errorf("the profile took %v", took)
		}
	})
}

// A device that says which sizes it prepares for has seen all of them when requests come.
func TestProfilePrepares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gpu{seen: map[int]int{}, sizes: true}
		m, err := Profile(t.Context(), g, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for bucket := 1; bucket <= prepared/128; bucket++ {
			if g.seen[bucket] == 0 {
				t.Errorf("no batch of %d rows was run", 128*bucket)
			}
		}
		if got := mostRows(g); got != prepared {
			t.Errorf("batches of %d rows at most, want %d", got, prepared)
		}
		if got := mostRows(&clockwork{}); got != 1000 {
			t.Errorf("batches of %d rows at most on a device that prepares nothing, want 1000", got)
		}
		if got, want := m.Predict(640, 640*640/2, 1), 2+4*.6; math.Abs(got-want) > .35*want {
			t.Errorf("640 rows are predicted to take %.2f ms, want %.2f", got, want)
		}
	})
}

// Prepare runs what a device prepares for and one small batch, and ends with the error of a batch.
func TestPrepareMeasuresNothing(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		e    *faulty
		runs int
		want error
	}{
		"a device that prepares nothing": {&faulty{hidden: 1}, 1, nil},
		"a device that prepares":         {&faulty{hidden: 1, gpu: gpu{sizes: true}}, prepared/128 + 1, nil},
		"fails when it prepares":         {&faulty{fail: broken, from: 500, gpu: gpu{sizes: true}}, 4, broken},
		"fails":                          {&faulty{fail: broken}, 1, broken},
		"answers NaN":                    {&faulty{hidden: float32(math.NaN())}, 1, ErrNotFinite},
	} {
		synctest.Test(t, func(t *testing.T) {
			c.e.seen = map[int]int{}
			if err := Prepare(t.Context(), c.e, 1000); !errors.Is(err, c.want) || c.e.runs != c.runs {
				t.Errorf("%s: %d batches, %v; want %d and %v", name, c.e.runs, err, c.runs, c.want)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Prepare(ctx, &faulty{hidden: 1, gpu: gpu{seen: map[int]int{1: 2}}}, 1000); !errors.Is(err,
		context.Canceled) {
		t.Errorf("after its context ended: %v", err)
	}
}

// Times that do not grow still give a model, and that model grows.
func TestProfileOfConstantTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := Profile(t.Context(), &gpu{seen: map[int]int{}, flat: true}, 32768)
		if err != nil {
			t.Fatal(err)
		}
		small, large := m.Predict(1, 1, 1), m.Predict(100_000, 1, 1)
		if small < 2 || small > 3 || large < 10*small {
			t.Errorf("1 row is predicted to take %.2f ms, 100,000 rows %.2f", small, large)
		}
	})
}

// A slow model is not measured longer than necessary.
func TestProfileOfASlowModelIsShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if _, err := Profile(t.Context(), &clockwork{}, 4096); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("the profile took %v", took)
		}
	})
}

// faulty is a gpu whose runs fail, or whose hidden states are not finite, from batches of so many tokens on.
type faulty struct {
	gpu
	from   int
	fail   error
	refuse error // by Check
	hidden float32
	runs   int
	after  func(runs int)
}

func (f *faulty) Check(j *engine.Job) (engine.Cost, error) {
	if j.Plan.Tokens() >= f.from && f.refuse != nil {
		return engine.Cost{}, f.refuse
	}
	return f.gpu.Check(j)
}

func (f *faulty) Run(jobs []*engine.Job, out []engine.Outcome) {
	f.gpu.Run(jobs, out)
	for i, j := range jobs {
		out[i].Result.Hidden = [][]float32{{1, 2, 3}}
		if j.Plan.Tokens() >= f.from {
			out[i].Err = f.fail
			out[i].Result.Hidden[0][1] = f.hidden
		}
	}
	if f.runs++; f.after != nil {
		f.after(f.runs)
	}
}

// A profile ends with the error of a batch that fails, is refused or has answers that are not finite, small or large,
// and with the error of its context.
func TestAProfileThatFails(t *testing.T) {
	broken := errors.New("broken")
	inf := float32(math.Inf(-1))
	for name, c := range map[string]struct {
		e    *faulty
		want error
	}{
		"fails":                     {&faulty{fail: broken}, broken},
		"fails for large batches":   {&faulty{fail: broken, from: 300}, broken},
		"refuses":                   {&faulty{refuse: broken}, broken},
		"refuses large batches":     {&faulty{refuse: broken, from: 300}, broken},
		"answers NaN":               {&faulty{hidden: float32(math.NaN())}, ErrNotFinite},
		"answers infinity":          {&faulty{hidden: inf, from: 300}, ErrNotFinite},
		"fails when it prepares":    {&faulty{fail: broken, from: 500, gpu: gpu{sizes: true}}, broken},
		"answers, and nothing else": {&faulty{hidden: 1}, nil},
		"is left at once":           {&faulty{after: func(int) {}, hidden: 1}, context.Canceled},
		"is left later":             {&faulty{hidden: 1}, context.Canceled},
		"is left as it prepares":    {&faulty{hidden: 1, gpu: gpu{sizes: true}}, context.Canceled},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			c.e.seen = map[int]int{}
			left := 0
			switch name {
			case "is left at once":
				cancel()
			case "is left later", "is left as it prepares":
				left = 3
				c.e.after = func(runs int) {
					if runs == left {
						cancel()
					}
				}
			}
			m, err := Profile(ctx, c.e, 2000)
			if !errors.Is(err, c.want) {
				t.Errorf("an engine that %s: %v, want %v", name, err, c.want)
			}
			if err != nil && m != (schedule.PrefillModel{}) {
				t.Errorf("an engine that %s: the model %+v beside an error", name, m)
			}
			if errors.Is(c.want, context.Canceled) && c.e.runs != left {
				t.Errorf("an engine that %s: %d runs, want %d", name, c.e.runs, left)
			}
		})
	}
}

// recorder is an engine that records the batches it ran.
type recorder struct {
	most    int
	each    time.Duration // of a token; 0: a millisecond
	batches [][2]int      // requests and tokens of each
}

func (r *recorder) MaxTokens() int { return r.most }

func (r *recorder) Check(j *engine.Job) (engine.Cost, error) {
	n := j.Plan.Tokens()
	if n > r.most {
		return engine.Cost{}, engine.ErrTooLarge
	}
	return engine.Cost{Rows: n, Keys: n * (n + 1) / 2}, nil
}

func (r *recorder) Run(jobs []*engine.Job, out []engine.Outcome) {
	r.batches = append(r.batches, [2]int{len(jobs), jobs[0].Plan.Tokens()})
	time.Sleep(time.Millisecond + time.Duration(len(jobs)*jobs[0].Plan.Tokens())*r.each)
}

// The measured batches depend on the model's speed: a few small ones for a slow model, up to 4,096 tokens for a fast
// one. None is longer than the model's positions or larger than the engine takes.
func TestWhatAProfileMeasures(t *testing.T) {
	for _, c := range []struct {
		name            string
		each            time.Duration
		most, positions int
		want            [][2]int
	}{
		{"fast", 10 * time.Microsecond, 8192, 8192, [][2]int{
			{1, 32}, {1, 1}, {1, 16}, {4, 4}, {4, 16}, {1, 64}, {8, 16}, {2, 64}, {1, 160},
			{1, 320}, {1, 640}, {1, 1280}, {1, 2560}}},
		{"short", 10 * time.Microsecond, 8192, 1280, [][2]int{
			{1, 32}, {1, 1}, {1, 16}, {4, 4}, {4, 16}, {1, 64}, {8, 16}, {2, 64}, {1, 160},
			{1, 320}, {1, 640}, {1, 1280}}},
		{"of few tokens", 10 * time.Microsecond, 64, 100,
			[][2]int{{1, 32}, {1, 1}, {1, 16}, {4, 4}, {4, 16}, {1, 64}, {8, 8}, {2, 32}, {1, 64}}},
		{"slower", 100 * time.Microsecond, 8192, 8192, [][2]int{
			{1, 32}, {1, 1}, {1, 16}, {4, 4}, {4, 16}, {1, 64}, {8, 16}, {2, 64}, {1, 160},
			{1, 320}, {1, 640}}},
		{"slow", 5 * time.Millisecond, 8192, 8192, [][2]int{{1, 32}, {1, 1}, {1, 16}, {4, 4}, {4, 16}, {1, 64}}},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := &recorder{most: c.most, each: c.each}
			m, err := Profile(t.Context(), r, c.positions)
			if err != nil {
				t.Fatal(err)
			}
			var ran [][2]int
			for _, b := range r.batches {
				if len(ran) == 0 || ran[len(ran)-1] != b {
					ran = append(ran, b)
				}
			}
			if !slices.Equal(ran, c.want) {
				t.Errorf("a %s model: measured %v, want %v", c.name, ran, c.want)
			}
			if got, want := m.Predict(64, 64*65/2, 1), 1+64*c.each.Seconds()*1000; math.Abs(got-want) > .05*want {
				t.Errorf("a %s model: 64 tokens are predicted to take %.2f ms, want %.2f", c.name, got, want)
			}
		})
	}
}

// A batch whose size does not explain its time runs again until two runs agree, at most five times. Otherwise it runs
// once.
func TestRunsOfABatch(t *testing.T) {
	for _, c := range []struct {
		name  string
		times []time.Duration
		runs  int
		best  float64 // ms
		spent time.Duration
	}{
		{"quick", []time.Duration{10 * ms, 9 * ms}, 2, 9, 19 * ms},
		{"prepared once", []time.Duration{1000 * ms, 10 * ms, 11 * ms}, 3, 10, 20 * ms},
		{"never the same", []time.Duration{1000 * ms, 400 * ms, 160 * ms, 70 * ms, 30 * ms, 1 * ms}, 5, 30, 30 * ms},
		{"exactly half", []time.Duration{100 * ms, 50 * ms, 1 * ms}, 2, 50, 150 * ms},
		{"slow and explained", []time.Duration{60 * ms, 1 * ms}, 1, 60, 60 * ms},
		{"slow and not explained", []time.Duration{61 * ms, 61 * ms, 1 * ms}, 2, 61, 122 * ms},
	} {
		synctest.Test(t, func(t *testing.T) {
			runs := 0
			e := &timed{each: func() time.Duration { runs++; return c.times[runs-1] }}
			p := profile{engine: e, start: time.Now(), samples: []schedule.Sample{{Rows: 32, Keys: 1, Requests: 1, Ms: 20}}}
			if err := p.add(t.Context(), 1, 16); err != nil {
				t.Fatal(err)
			}
			if best := p.last().Ms; runs != c.runs || best != c.best || p.spent != c.spent {
				t.Errorf("%s: %d runs, %.0f ms, %v that count; want %d, %.0f, %v", c.name, runs, best, p.spent, c.runs, c.best,
					c.spent)
			}
		})
	}
}

// timed is an engine whose runs take times that the test sets.
type timed struct {
	clockwork
	each func() time.Duration
}

func (s *timed) Run([]*engine.Job, []engine.Outcome) { time.Sleep(s.each()) }

// A profile ends after half a second of counted runs if it has enough samples for a fit, and after 30 s if it has any.
func TestAProfileHasAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		six, two := make([]schedule.Sample, 6), make([]schedule.Sample, 2)
		start := time.Now()
		for _, c := range []struct {
			p    profile
			want bool
		}{
			{profile{start: start, spent: patience + 1, samples: six}, true},
			{profile{start: start, spent: patience, samples: six}, false},
			{profile{start: start, spent: patience + 1, samples: six[:5]}, false},
			{profile{start: start.Add(-limit - 1), samples: two}, true},
			{profile{start: start.Add(-limit), samples: two}, false},
			{profile{start: start.Add(-limit - 1), samples: two[:1]}, false},
		} {
			if got := c.p.done(); got != c.want {
				t.Errorf("%d samples, %v after %v: done %v", len(c.p.samples), c.p.spent, time.Since(c.p.start), got)
			}
		}
	})
}

// The model of times that do not grow has the least time as its fixed cost, and the largest batch's time per row.
func TestLinear(t *testing.T) {
	p := profile{samples: []schedule.Sample{{Rows: 32, Keys: 9, Requests: 3, Ms: 5},
		{Rows: 10, Keys: 50, Requests: 1, Ms: 2}, {Rows: 100, Keys: 20, Requests: 2, Ms: 4}}}
	want := schedule.PrefillModel{Fixed: 2, Row: .04,
		Quality: schedule.Quality{Samples: 3, Largest: schedule.Sample{Rows: 100, Keys: 50, Requests: 3, Ms: 5}}}
	if m := p.linear(); m != want {
		t.Errorf("%+v, want %+v", m, want)
	}
}

// A Dispatcher takes over what one like it learned: times of batches, their errors, and how long answers take.
func TestADispatcherLearnsFromOneLikeIt(t *testing.T) {
	largest := schedule.Sample{Rows: 100, Keys: 5000, Requests: 1, Ms: 11}
	first := schedule.PrefillModel{Fixed: 1, Row: .1, Quality: schedule.Quality{Largest: largest}}
	old, err := New([]Engine{&gpu{seen: map[int]int{}}}, Options{Model: first})
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	old.mu.Lock()
	for range 128 {
		old.admission.Measured(15, 10)
		old.admission.Woke(4)
		old.tuner.Observe(schedule.Sample{Rows: 50, Keys: 1275, Requests: 1, Ms: 30})
	}
	old.correct()
	old.mu.Unlock()
	next, err := New([]Engine{&gpu{seen: map[int]int{}}}, Options{Model: first, Like: old})
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	if was, is := old.Model(), next.Model(); was.Fixed != is.Fixed || was.Row != is.Row ||
		is.Row == first.Row && is.Fixed == first.Fixed {
		t.Errorf("its model is %+v, want %+v", is, was)
	}
	next.mu.Lock()
	defer next.mu.Unlock()
	if m, a := next.batcher.Margin(), next.batcher.Answer(); m != .5 || a != 10*time.Millisecond {
		t.Errorf("it allows for an error of %v and %v for an answer, want .5 and 10 ms", m, a)
	}
}

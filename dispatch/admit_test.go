package dispatch

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"grebe/dispatch/loading"
	"grebe/engine"
	"grebe/internal/locktest"
	"grebe/schedule"
)

// within runs a job of so many tokens with a deadline.
func within(t *testing.T, d *Dispatcher, wait time.Duration, tokens int) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	_, err := d.Do(ctx, job(tokens))
	return err
}

// background runs a job and returns its error on a channel. The job is in the queue or in a batch when background
// returns.
func background(t *testing.T, d *Dispatcher, j *engine.Job) <-chan error {
	out := make(chan error, 1)
	go func() { _, err := d.Do(t.Context(), j); out <- err }()
	synctest.Wait()
	return out
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	invalid, empty := exact, exact
	invalid.Row = math.NaN()
	empty.Quality.Largest = schedule.Sample{}
	for name, c := range map[string]struct {
		engines []Engine
		opt     Options
	}{
		"no engine":                  {nil, Options{Model: exact}},
		"a negative queue":           {[]Engine{&clockwork{}}, Options{Model: exact, Queue: -1}},
		"a model that is NaN":        {[]Engine{&clockwork{}}, Options{Model: invalid}},
		"a model of nothing":         {[]Engine{&clockwork{}}, Options{}},
		"a model without its sample": {[]Engine{&clockwork{}}, Options{Model: empty}},
	} {
		d, err := New(c.engines, c.opt)
		if err == nil {
			t.Errorf("%s: no error", name)
		}
		if d != nil {
			t.Errorf("%s: a dispatcher beside the error", name)
			d.Close()
		}
	}
}

// Without an SLO and a queue size the defaults apply: 200 ms, and 1,024 waiting jobs.
func TestDefaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, Options{}, &clockwork{})
		defer d.Close()
		first := background(t, d, job(190))
		if err := <-first; err != nil {
			t.Errorf("191 ms of work without a deadline: %v", err)
		}
		if _, err := d.Do(t.Context(), job(1)); err != nil {
			t.Error(err)
		}
		busy := background(t, d, job(50))
		var full, waiting atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for range 1030 {
			wg.Go(func() {
				_, err := d.Do(ctx, job(1))
				switch {
				case errors.Is(err, ErrQueueFull):
					full.Add(1)
				case errors.Is(err, context.Canceled):
					waiting.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		cancel()
		wg.Wait()
		if full.Load() != 6 || waiting.Load() != 1024 {
			t.Errorf("%d waited and %d were refused, want 1,024 and 6", waiting.Load(), full.Load())
		}
		if err := <-busy; err != nil {
			t.Error(err)
		}
	})
}

// An engine that prepares for sizes runs no larger batches than it was prepared for.
func TestBatchesAreAsLargeAsPreparedFor(t *testing.T) {
	for _, c := range []struct {
		e    Engine
		want int
	}{
		{&one{sizes: []int{128}}, prepared},
		{&one{}, 100_000},
		{&one{sizes: []int{128}, most: 500}, 500},
	} {
		if got := mostRows(c.e); got != c.want {
			t.Errorf("%+v: batches of %d rows at most, want %d", c.e, got, c.want)
		}
	}
}

// one is an engine that prepares for some sizes.
type one struct {
	clockwork
	sizes []int
	most  int
}

func (o *one) Sizes(int) []int { return o.sizes }

func (o *one) MaxTokens() int {
	if o.most > 0 {
		return o.most
	}
	return 100_000
}

// Until 16 batches are measured, an idle engine tries a request that is predicted to be late. Then it refuses it.
func TestAnEngineIsColdFor16Batches(t *testing.T) {
	for before := range 20 {
		synctest.Test(t, func(t *testing.T) {
			e := &clockwork{}
			d := open(t, Options{SLO: time.Second}, e)
			defer d.Close()
			for range before {
				if _, err := d.Do(t.Context(), job(10)); err != nil {
					t.Fatal(err)
				}
			}
			err := within(t, d, 200*time.Millisecond, 300)
			if tried := e.batches.Load() > int64(before); tried != (before < 16) || tried == errors.Is(err, ErrShed) {
				t.Errorf("301 ms of work within 200 ms after %d batches: computed %v, %v", before, tried, err)
			}
		})
	}
}

// perRequest is an engine that takes 10 ms per request, 1 ms per batch and 1 ms per token, until it becomes slow.
type perRequest struct {
	clockwork
	slow atomic.Bool
}

func (p *perRequest) Run(jobs []*engine.Job, out []engine.Outcome) {
	time.Sleep(time.Duration(10*len(jobs)) * time.Millisecond)
	if p.slow.Load() {
		time.Sleep(300 * time.Millisecond)
	}
	p.clockwork.Run(jobs, out)
}

// requests is the model of perRequest's times.
var requests = func() schedule.PrefillModel {
	var samples []schedule.Sample
	for i := 1; i < 40; i++ {
		rows, n := i*5, 1+i%4
		samples = append(samples, schedule.Sample{Rows: rows, Keys: rows * (1 + i%7), Requests: n,
			Ms: float64(1 + rows + 10*n)})
	}
	m, err := schedule.Fit(samples)
	if err != nil {
		panic(err)
	}
	return m
}()

// An idle engine tries a request that is in time only if nothing goes wrong, and refuses one that cannot be.
func TestAnIdleEngineTriesWhatMayBeInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &perRequest{}
		d, err := New([]Engine{e}, Options{SLO: time.Second, Model: requests})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		for i := range 40 {
			if _, err := d.Do(t.Context(), job(20+i%9)); err != nil {
				t.Fatal(err)
			}
		}
		// It takes 61 ms. With the margins for errors and for the answer it would not be computed.
		if err := within(t, d, 62*time.Millisecond, 50); err != nil {
			t.Errorf("61 ms of work within 62 ms on an idle engine: %v", err)
		}
		before := e.batches.Load()
		if err := within(t, d, 55*time.Millisecond, 50); !errors.Is(err, ErrShed) || e.batches.Load() != before {
			t.Errorf("61 ms of work within 55 ms: %v, want it refused without computing", err)
		}
		busy := background(t, d, job(1))
		if err := within(t, d, 70*time.Millisecond, 50); !errors.Is(err, ErrShed) {
			t.Errorf("61 ms of work within 70 ms behind a batch of 12 ms: %v, want it refused", err)
		}
		if err := <-busy; err != nil {
			t.Error(err)
		}
	})
}

// An engine that was slow for long is tried once a second, so its recovery is noticed.
func TestARecoveryIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &perRequest{}
		d, err := New([]Engine{e}, Options{SLO: time.Second, Model: requests})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		e.slow.Store(true)
		for range 100 {
			if _, err := d.Do(t.Context(), job(20)); err != nil {
				t.Fatal(err)
			}
		}
		e.slow.Store(false)
		start, tries, before := time.Now(), 0, e.batches.Load()
		for time.Since(start) < 600*time.Millisecond { // the last batch began 331 ms ago
			if err := within(t, d, 200*time.Millisecond, 20); !errors.Is(err, ErrShed) {
				t.Fatalf("%v after a slow batch, with a prediction of 331 ms: %v, want it refused", time.Since(start), err)
			}
			time.Sleep(50 * time.Millisecond)
		}
		if n := e.batches.Load() - before; n != 0 {
			t.Errorf("%d batches ran within the second", n)
		}
		for {
			tries++
			if within(t, d, 200*time.Millisecond, 20) == nil && e.batches.Load() > before+50 {
				break
			}
			if time.Since(start) > 3*time.Minute {
				t.Fatalf("after three minutes, %d batches ran in %d tries", e.batches.Load()-before, tries)
			}
			time.Sleep(50 * time.Millisecond)
		}
	})
}

// The backlog of a new request is the predicted time of the running and the waiting work.
func TestBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := exact
		m.Fixed, m.Row, m.Square, m.Key, m.Request = 1, 1, 0, .01, 0
		backlog := func(d *Dispatcher, name string, want float64, jobs int) {
			t.Helper()
			if got, n := d.Backlog(); math.Abs(got-want) > .01*want || n != jobs {
				t.Errorf("%s: %.2f ms and %d requests, want %.2f and %d", name, got, n, want, jobs)
			}
		}
		d, err := New([]Engine{&clockworkDisk{}}, Options{SLO: time.Minute, Model: m})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		slow := known(time.Second)
		running := background(t, d, job(400))
		backlog(d, "a batch of 400 tokens", 1+400+.01*400*401/2, 0)
		want := 1203.0 + 1 + 40 + .01*820
		queued := background(t, d, job(40))
		backlog(d, "and 40 tokens that wait", want, 1)
		// The disk is known to be far slower, so everything is computed, which takes as long again.
		want += 2 * (40 + .01*820)
		read := blended(t, 40, slow, time.Second)
		hasty := background(t, d, read)
		backlog(d, "and 40 tokens that are computed though a disk has them", want, 2)
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error)
		go func() { _, err := d.Do(ctx, job(100)); left <- err }()
		synctest.Wait()
		backlog(d, "and 100 tokens", want+100+.01*5050, 3)
		cancel()
		<-left
		backlog(d, "which leave", want, 2)
		for _, done := range []<-chan error{running, queued, hasty} {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if err := reads(read).Wait(t.Context()); err != nil {
			t.Error(err)
		}
		if got, n := d.Backlog(); got > 1e-6 || n != 0 {
			t.Errorf("at the end: %v ms and %d requests", got, n)
		}

		two, err := New([]Engine{&clockwork{}, &clockwork{}}, Options{SLO: time.Minute, Model: m})
		if err != nil {
			t.Fatal(err)
		}
		defer two.Close()
		running = background(t, two, job(400))
		backlog(two, "a batch of 400 tokens, two engines", (1+400+.01*400*401/2)/2, 0)
		if err := <-running; err != nil {
			t.Error(err)
		}
	})
}

// learned returns a dispatcher that has answered many requests of size 20, which took 21 ms each.
func learned(t *testing.T, engines ...Engine) *Dispatcher {
	d := open(t, Options{SLO: time.Second}, engines...)
	for range 200 {
		if err := request(t.Context(), d, time.Now().Add(time.Second), 20, 1); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// admits reports whether a request of a size is admitted within a time. It leaves its place at once.
func admits(t *testing.T, d *Dispatcher, kind Kind, size int, within time.Duration) bool {
	t.Helper()
	p, err := d.Admit(kind, size, time.Now().Add(within))
	if err == nil {
		p.Leave()
		return true
	}
	var shed *ShedError
	if !errors.As(err, &shed) || !errors.Is(err, ErrShed) || shed.After <= 0 {
		t.Errorf("refused with %v", err)
	}
	return false
}

// A request behind a batch is admitted if the rest of the batch and its own usual work, plus 15 %, end by its deadline.
func TestAdmissionBehindABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := learned(t, &clockwork{})
		defer d.Close()
		if !admits(t, d, Single, 100, time.Millisecond) {
			t.Error("nothing is under way, and a request is refused")
		}
		busy := background(t, d, job(100))
		// A request of size 40 has 42 ms of work. Before its job is known, 70 % of that count: 131 ms in all, plus 15
		// %.
		for _, c := range []struct {
			after, within time.Duration
			size          int
			want          bool
		}{
			{0, 145 * ms, 40, false},
			{0, 158 * ms, 40, true},
			{0, 145 * ms, 1, true},
			{50 * ms, 87 * ms, 40, false},
			{0, 99 * ms, 40, true},
		} {
			time.Sleep(c.after)
			if got := admits(t, d, Single, c.size, c.within); got != c.want {
				t.Errorf("size %d within %v, behind a batch of 101 ms: admitted %v, want %v", c.size, c.within, got, c.want)
			}
		}
		if err := <-busy; err != nil {
			t.Error(err)
		}
	})
}

// Admitted requests without a job in the queue count as ahead of others until they leave.
func TestAdmittedRequestsCountForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := learned(t, &clockwork{})
		defer d.Close()
		var places []*Place
		for range 3 { // 42 ms each
			p, err := d.Admit(Single, 40, time.Now().Add(time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			places = append(places, p)
		}
		check := func(name string, no, yes time.Duration) {
			t.Helper()
			if admits(t, d, Single, 40, no) {
				t.Errorf("%s: admitted within %v", name, no)
			}
			if !admits(t, d, Single, 40, yes) {
				t.Errorf("%s: refused within %v", name, yes)
			}
		}
		check("behind three", 165*ms, 190*ms) // 126 and 29 ms, plus 15 %
		places[0].Leave()
		check("behind two", 120*ms, 140*ms) // 84 and 29
		busy := make(chan error)
		go func() {
			ctx, cancel := context.WithTimeout(places[1].Within(t.Context()), time.Minute)
			defer cancel()
			_, err := d.Do(ctx, job(40)) // it runs, so it no longer counts as expected
			busy <- err
		}()
		synctest.Wait()
		check("behind one and its batch", 120*ms, 140*ms)
		if err := <-busy; err != nil {
			t.Error(err)
		}
		check("behind one", 70*ms, 90*ms) // 42 and 29
		for _, p := range places[1:] {
			p.Leave()
		}
		if !admits(t, d, Single, 40, ms) {
			t.Error("all have left, and a request is refused")
		}
	})
}

// The expected further rounds of a search count as ahead of others until it leaves.
func TestRoundsToComeCountForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, Options{SLO: time.Second}, &clockwork{})
		defer d.Close()
		for range 200 { // requests of size 30, in three rounds of 11 ms
			if err := request(t.Context(), d, time.Now().Add(time.Second), 30, 3); err != nil {
				t.Fatal(err)
			}
		}
		p, err := d.Admit(Rounds, 300, time.Now().Add(time.Minute)) // 330 ms
		if err != nil {
			t.Fatal(err)
		}
		ctx := p.Within(t.Context())
		for i, left := range []time.Duration{330 * ms, 229 * ms, 128 * ms, 27 * ms, 0} {
			if left > 0 {
				if admits(t, d, Single, 1, left) {
					t.Errorf("after %d rounds: admitted within %v", i, left)
				}
				if !admits(t, d, Single, 1, left*5/4+5*ms) {
					t.Errorf("after %d rounds: refused within %v", i, left*5/4+5*ms)
				}
			}
			if _, err := d.Do(ctx, job(100)); err != nil {
				t.Fatal(err)
			}
		}
		p.Leave()
		if !admits(t, d, Rounds, 300, ms) {
			t.Error("it has left, and a request is refused")
		}
	})
}

// A request that is too late once its job is known is refused then. After it leaves it no longer counts.
func TestAJobThatIsLargerThanUsualIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := learned(t, &clockwork{})
		defer d.Close()
		busy := background(t, d, job(100))
		p, err := d.Admit(Single, 20, time.Now().Add(200*ms))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(p.Within(t.Context()), 200*ms)
		defer cancel()
		var shed *ShedError
		_, err = d.Do(ctx, job(90)) // 101 and 91 ms, plus 15 %
		if !errors.As(err, &shed) {
			t.Errorf("91 ms of work within 200, behind 101 ms: %v, want it refused", err)
		} else if shed.After < 15*ms || shed.After > 40*ms {
			t.Errorf("it is to ask again in %v", shed.After)
		}
		p.Leave()
		if err := <-busy; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if !admits(t, d, Single, 1000, ms) {
			t.Error("nothing is under way, and a request is refused")
		}
	})
}

// Requests that are answered later than predicted, behind others, increase the margin at admission.
func TestDelaysAreLearned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, Options{SLO: time.Second}, &clockwork{})
		defer d.Close()
		for range 200 { // the client reads its answer slowly
			p, err := d.Admit(Single, 20, time.Now().Add(time.Second))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := d.Do(p.Within(t.Context()), job(20)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(21 * ms)
			p.Leave()
		}
		busy := background(t, d, job(100))
		if admits(t, d, Single, 1, 180*ms) {
			t.Error("admitted within 180 ms behind 101 ms, and answers take twice as long as predicted")
		}
		if !admits(t, d, Single, 1, 230*ms) {
			t.Error("refused within 230 ms")
		}
		if err := <-busy; err != nil {
			t.Error(err)
		}
	})
}

// jumpy is a clockwork in which every tenth batch takes twice as long.
type jumpy struct{ clockwork }

func (j *jumpy) Run(jobs []*engine.Job, out []engine.Outcome) {
	start := time.Now()
	j.clockwork.Run(jobs, out)
	if j.batches.Load()%10 == 0 {
		time.Sleep(time.Since(start))
	}
}

// Batches that sometimes take longer than predicted increase the margin.
func TestUnevenBatchesAreAllowedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		batches := func(e Engine, count *atomic.Int64) int64 {
			d := open(t, Options{SLO: time.Second}, e)
			defer d.Close()
			for i := range 201 {
				if _, err := d.Do(t.Context(), job(10+i%7)); err != nil {
					t.Fatal(err)
				}
			}
			before := count.Load()
			busy := background(t, d, job(30))
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					if err := within(t, d, 46*ms, 5); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if err := <-busy; err != nil {
				t.Error(err)
			}
			return count.Load() - before
		}
		// Two jobs of 6 ms have 15 ms left when the previous batch ends. Together they take 11 ms.
		even, uneven := &clockwork{}, &jumpy{}
		if n := batches(even, &even.batches); n != 2 {
			t.Errorf("an even engine ran %d batches, want the two jobs in one", n)
		}
		if n := batches(uneven, &uneven.batches); n != 3 {
			t.Errorf("an engine that sometimes takes twice as long ran %d batches, want the two jobs one by one", n)
		}
	})
}

// The model learns the times of batches, but not of one that computed more than its jobs announced.
func TestWhatIsLearnedFromABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, Options{SLO: time.Second}, &perRequest{})
		defer d.Close()
		for i := range 100 {
			if _, err := d.Do(t.Context(), job(10+i%30)); err != nil {
				t.Fatal(err)
			}
		}
		m := d.Model()
		if got := m.Predict(20, 210, 1); math.Abs(got-31) > 2 {
			t.Errorf("20 tokens are predicted to take %.1f ms, want 31", got)
		}
		busy := background(t, d, job(20))
		if got, _ := d.Backlog(); math.Abs(got-31) > 2 {
			t.Errorf("the batch that runs is predicted to take %.1f ms, want 31", got)
		}
		if err := <-busy; err != nil {
			t.Error(err)
		}
	})
}

// A new SLO is the deadline of requests without one.
func TestSetSLO(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := learned(t, &clockwork{})
		defer d.Close()
		d.SetSLO(60 * ms)
		busy := background(t, d, job(50))
		if _, err := d.Do(t.Context(), job(40)); !errors.Is(err, ErrShed) {
			t.Errorf("41 ms of work behind 51 ms, with an SLO of 60 ms: %v, want it refused", err)
		}
		if err := <-busy; err != nil {
			t.Error(err)
		}
	})
}

// Everything that reads or changes the state of the engines' goroutines waits for the lock.
func TestCallsWaitForTheLock(t *testing.T) {
	d := open(t, Options{SLO: time.Second}, &clockwork{})
	defer d.Close()
	p, err := d.Admit(Single, 1, time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func(){
		"Do":      func() { _, _ = d.Do(context.Background(), job(1)) },
		"Admit":   func() { _, _ = d.Admit(Single, 1, time.Now().Add(time.Hour)) },
		"Leave":   p.Leave,
		"done":    func() { p.done(nil) },
		"woke":    func() { d.woke(0) },
		"remove":  func() { d.remove(1 << 60) },
		"take":    func() { d.take(&batch{}, 0) },
		"observe": func() { d.observe(&batch{late: true}, 0, 0) },
		"SetSLO":  func() { d.SetSLO(time.Second) },
		"Model":   func() { d.Model() },
		"Backlog": func() { d.Backlog() },
	} {
		locktest.Waits(t, name, d.mu.Lock, d.mu.Unlock, call)
	}
}

// A job whose caller no longer waits is not queued.
func TestWhoComesTooLateIsNotQueued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &clockwork{}
		d := open(t, Options{}, e)
		defer d.Close()
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		late, cancel := context.WithDeadline(t.Context(), time.Now())
		defer cancel()
		if _, err := d.Do(gone, job(1)); !errors.Is(err, context.Canceled) {
			t.Errorf("a client that left: %v", err)
		}
		if _, err := d.Do(late, job(1)); !errors.Is(err, ErrExpired) {
			t.Errorf("a deadline that has passed: %v", err)
		}
		if n := e.batches.Load(); n != 0 {
			t.Errorf("%d batches ran", n)
		}
	})
}

func TestAShedErrorSaysWhenToAskAgain(t *testing.T) {
	if got := (&ShedError{After: 1500400 * time.Microsecond}).Error(); !strings.Contains(got, "ask again in 1.5s") {
		t.Errorf("it says %q", got)
	}
}

// A job whose disk has not begun by the latest time to compute does not wait for it. Its batch does not wait either,
// and is predicted to compute everything.
func TestAJobLeavesADiskThatDoesNotBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, Options{SLO: time.Second}, &clockworkDisk{})
		defer d.Close()
		pace := known(ms)
		j := job(40)
		j.Blend = &engine.Blend{Load: loading.New(20, pace)} // its reader waits for its turn
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 500*ms)
		defer cancel()
		done := make(chan error, 1)
		go func() { _, err := d.Do(ctx, j); done <- err }()
		time.Sleep(340 * ms) // computing everything takes 82 ms; twice that is left after 336 ms
		if got, _ := d.Backlog(); math.Abs(got-81) > 1 {
			t.Errorf("%.1f ms are under way, want 81", got)
		}
		if err := <-done; err != nil || time.Since(start) > 420*ms {
			t.Errorf("%v after %v, want 417 ms", err, time.Since(start))
		}
	})
}

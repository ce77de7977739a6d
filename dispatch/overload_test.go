package dispatch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"grebe/engine"
)

// uneven is a clockwork whose batches take more or less time than it says, and sometimes much more.
type uneven struct {
	clockwork
	rng *rand.Rand
}

func (u *uneven) Run(jobs []*engine.Job, out []engine.Outcome) {
	n := 0
	for i, j := range jobs {
		out[i].Computed = j.Plan.Tokens()
		n += j.Plan.Tokens()
	}
	factor := .85 + .3*u.rng.Float64()
	if u.rng.IntN(50) == 0 {
		factor *= 1.5
	}
	u.batches.Add(1)
	time.Sleep(time.Duration(float64(1+n) * factor * float64(time.Millisecond)))
}

// offered counts the outcomes of requests in an open loop.
type offered struct {
	mu               sync.Mutex
	good, late, shed int
	work             int             // milliseconds that the good ones take one after another: the engine's capacity
	after            []time.Duration // ShedError.After of those that were shed
	worst            time.Duration   // latency of those that were late
}

// offer sends requests of about 25 ms for 20 s, at a multiple of the engine's capacity.
func offer(t *testing.T, d *Dispatcher, load float64, deadline time.Duration, rounds int) *offered {
	rng := rand.New(rand.NewPCG(uint64(load*10), uint64(rounds)))
	o := &offered{}
	var wg sync.WaitGroup
	start := time.Now()
	for time.Since(start) < 20*time.Second {
		tokens := 10 + rng.IntN(30)
		at := time.Now()
		wg.Go(func() {
			err := request(t.Context(), d, at.Add(deadline), tokens, rounds)
			took := time.Since(at)
			o.mu.Lock()
			defer o.mu.Unlock()
			var shed *ShedError
			switch {
			case errors.As(err, &shed):
				o.shed++
				o.after = append(o.after, shed.After)
			case err != nil:
				o.shed++
			case took > deadline:
				o.late++
				o.worst = max(o.worst, took)
			default:
				o.good++
				o.work += (1 + tokens/rounds) * rounds // a millisecond per batch and per token
			}
		})
		time.Sleep(time.Duration(rng.ExpFloat64() * 26 / load * float64(time.Millisecond)))
	}
	wg.Wait()
	return o
}

// request is a request that is decoded, computed in rounds and answered.
func request(ctx context.Context, d *Dispatcher, deadline time.Time, tokens, rounds int) error {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	kind := Single
	if rounds > 1 {
		kind = Rounds
	}
	p, err := d.Admit(kind, tokens, deadline)
	if err != nil {
		return err
	}
	defer p.Leave()
	ctx = p.Within(ctx)
	time.Sleep(time.Millisecond) // for decoding
	for range rounds {
		if _, err := d.Do(ctx, job(max(1, tokens/rounds))); err != nil {
			return err
		}
	}
	return nil
}

// Under any load the engine stays busy with requests that are answered in time. The others are refused at once.
func TestOverloadIsShedAtTheDoor(t *testing.T) {
	for _, rounds := range []int{1, 3} {
		for _, deadline := range []time.Duration{200 * time.Millisecond, time.Second} {
			for load, least := range map[float64]float64{1.5: .92, 3: .92, 10: .92} {
				t.Run(fmt.Sprintf("%v times, %d rounds, within %v", load, rounds, deadline), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						e := &uneven{rng: rand.New(rand.NewPCG(1, 2))}
						d := open(t, Options{SLO: 200 * time.Millisecond, Queue: 64}, e)
						defer d.Close()
						o := offer(t, d, load, deadline, rounds)
						goodput := float64(o.work) / 20e3
						if answered := o.good + o.late; float64(o.late) > .01*float64(answered) || goodput < least {
							t.Errorf("goodput %.2f of what the engine can do one by one, good %d, late %d (up to %v), refused %d: "+
								"want at least %.2f and 1 %% late", goodput, o.good, o.late, o.worst, o.shed, least)
						}
						t.Logf("goodput %.2f of the engine's time; late %d, refused %d", goodput, o.late, o.shed)
						for _, after := range o.after {
							if after <= 0 || after > 10*time.Second {
								t.Fatalf("refused with %v to wait", after)
							}
						}
						time.Sleep(2 * time.Second)
						if err := request(t.Context(), d, time.Now().Add(deadline), 20, rounds); err != nil {
							t.Errorf("2 s after the load: %v", err)
						}
						if n := d.admission.Node(0); !n.Idle || n.Promised != 0 {
							t.Errorf("something is left over: %+v", n)
						}
					})
				})
			}
		}
	}
}

// A queue of requests with long deadlines does not keep out one with a short deadline, which runs before them.
func TestLongDeadlinesDoNotKeepOutShortOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, Options{SLO: 200 * time.Millisecond}, &clockwork{})
		defer d.Close()
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { _ = request(t.Context(), d, time.Now().Add(time.Minute), 50, 1) })
		}
		time.Sleep(5 * time.Millisecond)
		if err := request(t.Context(), d, time.Now().Add(200*time.Millisecond), 20, 1); err != nil {
			t.Errorf("20 ms of work within 200 ms, beside 5 s with a minute: %v", err)
		}
		var shed *ShedError
		if _, err := d.Admit(Single, 20, time.Now().Add(10*time.Millisecond)); !errors.As(err, &shed) {
			t.Errorf("within 10 ms, behind a batch of 50 ms: %v, want it refused", err)
		}
		wg.Wait()
	})
}

// An idle engine with few measurements tries any request that has time left, however long it is predicted to take.
func TestAColdEngineTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wrong := exact
		wrong.Fixed, wrong.Row = 500, 50 // the machine was busy during measurement
		d, err := New([]Engine{&clockwork{}}, Options{SLO: 200 * time.Millisecond, Model: wrong})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		for i := range 100 {
			if err := request(t.Context(), d, time.Now().Add(200*time.Millisecond), 60, 3); err != nil {
				t.Fatalf("request %d of three rounds of 21 ms within 200 ms: %v", i, err)
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}

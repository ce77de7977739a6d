package dispatch

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"grebe/dispatch/loading"
	"grebe/engine"
	"grebe/kv"
)

// clockworkDisk is a clockwork whose jobs blend. The first layers take a quarter of a job's time. Blocks that do not
// arrive from disk take as long again as the whole job.
type clockworkDisk struct{ clockwork }

func (c *clockworkDisk) Check(j *engine.Job) (engine.Cost, error) {
	cost, err := c.clockwork.Check(j)
	if j.Blend != nil {
		cost.First, cost.Late = 0.25, 1
	}
	return cost, err
}

func (c *clockworkDisk) Run(jobs []*engine.Job, out []engine.Outcome) {
	n, first, late, waited := 0, 0, 0, time.Duration(0)
	for _, j := range jobs {
		n += j.Plan.Tokens()
		if j.Blend != nil {
			first += j.Plan.Tokens() / 4
		}
	}
	time.Sleep(time.Duration(first) * time.Millisecond)
	for _, j := range jobs {
		if j.Blend == nil {
			continue
		}
		waited += j.Blend.Load.Take(j.Blend.Parts, engine.Wait{Patience: j.Blend.Patience})
		if reads(j).Wait(ended0) != nil { // something is missing
			late += j.Plan.Tokens()
		}
	}
	time.Sleep(time.Duration(1+n+late-first) * time.Millisecond)
	c.batches.Add(1)
	for i := range out {
		out[i].Waited, out[i].Late = waited, late
	}
}

// ended0 is a context that has ended.
var ended0 = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// known returns a pace of so much time per token.
func known(each time.Duration) *loading.Pace {
	p := &loading.Pace{}
	l := loading.New(1, p)
	l.Next(1)
	time.Sleep(each)
	l.Came(&kv.Entry{}, nil)
	return p
}

// blended returns a job for which entries of 10 tokens are read, each in its time. A read with time 0 hangs until the
// test ends.
func blended(t *testing.T, tokens int, pace *loading.Pace, reads ...time.Duration) *engine.Job {
	j := job(tokens)
	l := loading.New(10*len(reads), pace)
	j.Blend = &engine.Blend{Load: l}
	go func() {
		defer l.End()
		for _, d := range reads {
			if !l.Next(10) {
				return
			}
			if d == 0 {
				<-t.Context().Done()
				return
			}
			time.Sleep(d)
			l.Came(&kv.Entry{}, nil)
		}
	}()
	return j
}

const ms = time.Millisecond

// A job's first layers and its reads overlap: it takes as long as the longer of the two, and its other layers.
func TestReadsOverlapFirstLayers(t *testing.T) {
	for name, c := range map[string]struct {
		reads       []time.Duration
		want, ahead time.Duration // with 10 ms of first layers and 31 of others
	}{
		"a slow disk": {[]time.Duration{10 * ms, 10 * ms, 10 * ms, 10 * ms}, 71 * ms, 81 * ms},
		"a fast disk": {[]time.Duration{4 * ms, 4 * ms}, 41 * ms, 49 * ms},
	} {
		for _, ahead := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				d := open(t, Options{SLO: time.Second, ReadAhead: ahead}, &clockworkDisk{})
				defer d.Close()
				pace := known(c.reads[0] / 10)
				start := time.Now()
				if _, err := d.Do(t.Context(), blended(t, 40, pace, c.reads...)); err != nil {
					t.Fatal(err)
				}
				want := c.want
				if ahead {
					want = c.ahead
				}
				if took := time.Since(start); took > want+ms || took < want-ms {
					t.Errorf("%s, read ahead %v: %v, want %v", name, ahead, took, want)
				}
			})
		}
	}
}

// A job that waits for a disk has no other wait and keeps its place by arrival. It does not outlive its deadline, or a
// caller that leaves. Other jobs do not wait for its reads.
func TestNobodyWaitsForWhatOneReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &clockworkDisk{}
		d := open(t, Options{SLO: time.Second}, e)
		defer d.Close()
		pace := known(10 * ms)
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() {
			_, err := d.Do(t.Context(), blended(t, 200, pace, 100*ms, 100*ms, 100*ms))
			if took := time.Since(start); err != nil || took < 450*ms || took > 502*ms { // some of the reads overlap
				t.Errorf("what is read in 300 ms and computed in 201: %v after %v", err, took)
			}
		})
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 15*ms)
			defer cancel()
			_, err := d.Do(ctx, blended(t, 200, pace, 200*ms, 0))
			if took := time.Since(start); !errors.Is(err, ErrExpired) || took > 16*ms {
				t.Errorf("with a deadline that passes while a disk hangs: %v after %v", err, took)
			}
		})
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(40*ms, cancel)
			_, err := d.Do(ctx, blended(t, 200, pace, 0))
			if took := time.Since(start); !errors.Is(err, context.Canceled) || took > 41*ms {
				t.Errorf("who leaves while a disk hangs: %v after %v", err, took)
			}
		})
		synctest.Wait()
		if _, err := d.Do(t.Context(), job(10)); err != nil || time.Since(start) > 20*ms {
			t.Errorf("a job of 11 ms beside them: %v after %v", err, time.Since(start))
		}
		wg.Wait()
		if n := e.batches.Load(); n != 2 {
			t.Errorf("%d batches, want 2", n)
		}
	})
}

// A hung disk costs no job its answer while the engine keeps up: missing blocks are computed in time.
func TestADiskThatHangsCostsNobodyTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, Options{SLO: time.Second}, &clockworkDisk{})
		defer d.Close()
		pace := known(ms)
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 50 * ms)
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 500*ms)
				defer cancel()
				j := blended(t, 10, pace, 10*ms, 0)
				if i%2 == 0 { // its reader waits for its turn
					j.Blend.Load = loading.New(20, pace)
				}
				if _, err := d.Do(ctx, j); err != nil {
					t.Errorf("a job of 21 ms, with 500 for it: %v after %v", err, time.Since(start))
				}
			})
		}
		wg.Wait()
	})
}

// If a disk has become slower, a batch waits as long as the missing blocks take to compute, and then computes them. The
// model learns the time without the wait. When the caller leaves, the batch stops waiting.
func TestABatchWaitsForADiskNoLongerThanItSaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, Options{SLO: time.Second}, &clockworkDisk{})
		defer d.Close()
		pace := known(ms)
		start := time.Now()
		// 10 ms of a read, 10 of first layers, 20 of patience (40 for all, and half has arrived), and 71 to compute
		// everything.
		_, err := d.Do(t.Context(), blended(t, 40, pace, 10*ms, 0))
		if took := time.Since(start); err != nil || took > 113*ms || took < 105*ms {
			t.Errorf("a disk that hangs: %v after %v, want 111 ms", err, took)
		}
		start = time.Now()
		// The read takes 30 ms instead of 10: the batch waits for 20 of them.
		if _, err := d.Do(t.Context(), blended(t, 40, known(ms), 30*ms)); err != nil || time.Since(start) > 63*ms ||
			time.Since(start) < 60*ms {
			t.Errorf("a disk that is late: %v after %v, want 61 ms", err, time.Since(start))
		}
		if m := d.Model(); m.Predict(40, 820, 1) > 43 {
			t.Errorf("a job of 41 ms is predicted to take %.1f: waits for disks were learned", m.Predict(40, 820, 1))
		}
		start = time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(20*ms, cancel)
		// The caller leaves while the batch waits, which then computes for 71 ms.
		if _, err := d.Do(ctx, blended(t, 40, pace, 0)); err != nil || time.Since(start) > 93*ms {
			t.Errorf("a caller who left: %v after %v, want 91 ms", err, time.Since(start))
		}
	})
}

// A job does not wait for a disk that is known to take far longer than computing. It uses blocks that arrive before
// rows are chosen; the rest is read for other requests. With a long queue the disk has that time too.
func TestNobodyWaitsForADiskThatIsMuchSlower(t *testing.T) {
	for name, c := range map[string]struct {
		each time.Duration // for an entry of 10 tokens
		want time.Duration // for four entries, for a job with 10 ms of first layers and 31 of others, or 71
	}{
		"as slow as to compute them":     {10 * ms, 71 * ms},
		"more than twice as slow":        {30 * ms, 81 * ms},
		"as slow as in a fairy tale":     {10 * time.Second, 81 * ms},
		"so quick that nothing is to do": {time.Millisecond, 41 * ms},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := open(t, Options{SLO: time.Minute}, &clockworkDisk{})
			defer d.Close()
			start := time.Now().Add(c.each / 10) // making the pace takes a moment
			j := blended(t, 40, known(c.each/10), c.each, c.each, c.each, c.each)
			if _, err := d.Do(t.Context(), j); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took < c.want-ms || took > c.want+ms {
				t.Errorf("a disk that is %s: %v, want %v", name, took, c.want)
			}
			if err := reads(j).Wait(t.Context()); err != nil || time.Since(start) < 4*c.each {
				t.Errorf("a disk that is %s: what it has was read after %v, %v", name, time.Since(start), err)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		d := open(t, Options{SLO: time.Minute}, &clockworkDisk{})
		defer d.Close()
		var wg sync.WaitGroup
		pace := known(3 * ms)
		wg.Go(func() { _, _ = d.Do(t.Context(), job(400)) })
		synctest.Wait()
		start := time.Now()
		if _, err := d.Do(t.Context(), blended(t, 40, pace, 30*ms, 30*ms, 30*ms, 30*ms)); err != nil ||
			time.Since(start) > 443*ms {
			t.Errorf("behind a batch of 401 ms, what is read in 120: %v after %v, want 442 ms", err, time.Since(start))
		}
		wg.Wait()
	})
}

// Under load, with reads that take from half to twice the expected time, jobs that read are answered sooner than with
// ReadAhead, and the others hardly later: batches seldom wait for a disk.
func TestReadsUnderLoad(t *testing.T) {
	var reading, others [2]time.Duration // mean latency, without and with ReadAhead
	for way, ahead := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := open(t, Options{SLO: time.Second, ReadAhead: ahead}, &clockworkDisk{})
			defer d.Close()
			r := rand.New(rand.NewPCG(1, 4))
			pace := known(ms)
			var wg sync.WaitGroup
			var took [2]atomic.Int64
			const each = 300
			for i := range 2 * each {
				time.Sleep(time.Duration(r.ExpFloat64() * 60 * float64(ms))) // 41 ms of work every 60
				var reads []time.Duration
				for range 2 + r.IntN(6) {
					reads = append(reads, time.Duration(10*math.Exp2(2*r.Float64()-1)*float64(ms)))
				}
				wg.Go(func() {
					start, j := time.Now(), job(40)
					if i%2 == 0 {
						j = blended(t, 40, pace, reads...)
					}
					if _, err := d.Do(t.Context(), j); err != nil {
						t.Error(err)
					}
					took[i%2].Add(int64(time.Since(start)))
				})
			}
			wg.Wait()
			reading[way], others[way] = time.Duration(took[0].Load()/each), time.Duration(took[1].Load()/each)
		})
	}
	t.Logf("jobs that read: %v, ahead %v; others: %v, ahead %v", reading[0], reading[1], others[0], others[1])
	if reading[0] > reading[1]-5*ms || others[0] > others[1]+5*ms {
		t.Errorf("jobs that read take %v, and %v when all is read ahead; the others %v, and %v", reading[0], reading[1],
			others[0], others[1])
	}
}

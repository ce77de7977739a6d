package loading

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"grebe/compute"
	"grebe/compute/ref"
	"grebe/engine"
	"grebe/internal/locktest"
	"grebe/internal/record"
	"grebe/kv"
	"grebe/pool"
)

// ended is a context that has ended.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// A Loading predicts how long the rest takes and when it is near, and no caller waits longer than needed.
func TestLoads(t *testing.T) {
	const ms = time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		pace := &Pace{}
		l := New(30, pace)
		if l.Expect() != 0 {
			t.Errorf("it takes %v, and nothing is known of the disk", l.Expect())
		}
		start := time.Now()
		if !l.Next(10) {
			t.Fatal("nobody wants it")
		}
		time.Sleep(20 * ms)
		l.Came(&kv.Entry{}, nil)
		if l.Expect() != 40*ms {
			t.Errorf("the rest takes %v, want 40 ms", l.Expect())
		}
		time.Sleep(5 * ms)
		if p, now := pace.State(); now-p.Last != 5*ms {
			t.Errorf("the last read was %v ago", now-p.Last)
		}
		pace.note(0, time.Hour)
		pace.note(-1, time.Hour)
		if p, _ := pace.State(); p.Token != float64(2*ms) {
			t.Errorf("a token takes %v ns", p.Token)
		}
		l.Here(10, nil, nil) // another request has read it
		if l.Expect() != 20*ms || l.most(engine.Wait{Patience: 30 * ms}) != 10*ms {
			t.Errorf("the rest takes %v, and %v of 30 ms are for it", l.Expect(), l.most(engine.Wait{Patience: 30 * ms}))
		}
		l.Next(10)
		time.Sleep(2 * ms)
		near := make(chan error, 1)
		go func() { near <- l.Near(t.Context(), 15*ms) }()
		synctest.Wait()
		if len(near) != 0 {
			t.Error("18 ms are near within 15")
		}
		time.Sleep(3 * ms)
		synctest.Wait()
		if err := <-near; err != nil || time.Since(start) != 30*ms {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		go func() { near <- l.Near(t.Context(), -ms) }()
		synctest.Wait()
		select {
		case <-l.Stopped():
			t.Error("it is stopped before anybody left")
		default:
		}
		l.Stop()
		l.Stop()
		<-l.Stopped()
		if err := <-near; err != nil || l.Next(1) || l.Wait(t.Context()) != nil {
			t.Errorf("after everybody left: %v", err)
		}
		l.End()
		if l.Expect() != 0 || l.reading != 0 {
			t.Errorf("the rest takes %v, and all has come", l.Expect())
		}
		if l.most(engine.Wait{Patience: time.Second}) != 1 || New(0, pace).most(engine.Wait{Patience: time.Second}) != 1 {
			t.Error("a share for nothing")
		}
		waiting := New(1, pace)
		ctx, cancel := context.WithTimeout(t.Context(), 3*ms)
		defer cancel()
		if err := waiting.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a wait that ends: %v", err)
		}
		if err := waiting.Near(ctx, ms); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a wait that ends: %v", err)
		}
		if waited := waiting.Take(nil, engine.Wait{Patience: 4 * ms}); waited != 4*ms {
			t.Errorf("waited %v, want 4 ms", waited)
		}
		waiting.End()
		if waited := waiting.Take(nil, engine.Wait{Patience: 4 * ms}); waited != 0 {
			t.Errorf("waited %v for nothing", waited)
		}
	})
}

// The rest is near when the pace says so. A read that takes longer than the pace is not near, and nothing is near
// before the pace is known.
func TestNear(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		known         time.Duration // per token
		reads         []time.Duration
		within, after time.Duration
	}{
		{known: ms, reads: []time.Duration{10 * ms, 10 * ms, 10 * ms}, within: 30 * ms, after: 0},
		{known: ms, reads: []time.Duration{10 * ms, 10 * ms, 10 * ms}, within: 26 * ms, after: 4 * ms},
		{known: ms, reads: []time.Duration{10 * ms, 10 * ms, 10 * ms}, within: 20 * ms, after: 10 * ms},
		{known: ms, reads: []time.Duration{10 * ms, 10 * ms, 10 * ms}, within: 0, after: 30 * ms},
		{known: ms, reads: []time.Duration{50 * ms}, within: 8 * ms, after: 2 * ms},
		{known: ms, reads: []time.Duration{50 * ms}, within: 4 * ms, after: 50 * ms},
		{known: 0, reads: []time.Duration{10 * ms, 10 * ms}, within: time.Hour, after: 10 * ms},
		{known: 0, reads: nil, within: 0, after: 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			pace := &Pace{}
			pace.note(1, c.known)
			if c.known == 0 {
				pace = &Pace{}
			}
			l := New(10*len(c.reads), pace)
			start := time.Now()
			go func() {
				defer l.End()
				for _, d := range c.reads {
					l.Next(10)
					time.Sleep(d)
					l.Came(&kv.Entry{}, nil)
				}
			}()
			synctest.Wait()
			if err := l.Near(t.Context(), c.within); err != nil || time.Since(start) != c.after {
				t.Errorf("%+v: %v after %v", c, err, time.Since(start))
			}
			if err := l.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// Jobs of a batch wait together for a hung disk: as long as the most patient one, each by what it still misses. If a
// device computes the first layers meanwhile, they also wait for that time.
func TestPatience(t *testing.T) {
	const ms = time.Millisecond
	type reads struct {
		came, all int // entries of 10 tokens; some have arrived and one hangs
		patience  time.Duration
	}
	for name, c := range map[string]struct {
		jobs []reads
		want time.Duration
	}{
		"alone":              {[]reads{{0, 1, 40 * ms}}, 40 * ms},
		"equals":             {[]reads{{0, 1, 40 * ms}, {0, 1, 40 * ms}, {0, 1, 40 * ms}}, 40 * ms},
		"a patient one last": {[]reads{{0, 1, 10 * ms}, {0, 1, 40 * ms}}, 40 * ms},
		"no time at all":     {[]reads{{0, 1, 1}, {1, 2, 1}}, 1},
		"most of it came":    {[]reads{{9, 10, 40 * ms}, {3, 4, 20 * ms}}, 5 * ms},
	} {
		for _, first := range []time.Duration{0, 8 * ms} {
			synctest.Test(t, func(t *testing.T) {
				start, waited := time.Now(), time.Duration(0)
				for _, r := range c.jobs {
					l := New(10*r.all, &Pace{})
					for range r.came {
						l.Next(10)
						l.Came(&kv.Entry{}, nil)
					}
					l.Next(10)
					guard := time.AfterFunc(time.Second, l.Stop)
					waited += l.Take(make([]engine.Part, 0), engine.Wait{Patience: r.patience, First: first, Waited: waited})
					guard.Stop()
				}
				if time.Since(start) != first+c.want || waited != first+c.want {
					t.Errorf("%s: the batch waited for %v, and says %v, want %v", name, time.Since(start), waited, first+c.want)
				}
			})
		}
	}
}

// Entries that have arrived replace the parts they are long enough for, once.
func TestTakenParts(t *testing.T) {
	memory := ref.New().Memory()
	p, err := pool.Over(memory, 1<<20, 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	store := kv.New(compute.Shape{Hidden: 8, Layers: 1, Heads: 1, KVHeads: 1, HeadDim: 8, Inter: 8, KV: compute.F32}, p)
	defer store.Close()
	entry, err := store.Reserve(kv.Exact, 4, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer entry.Release()
	l := New(8, &Pace{})
	l.Here(4, entry, []int{0, 1, 2})
	l.Here(4, nil, nil)
	l.End()
	parts := []engine.Part{{First: 0, Tokens: 4}, {First: 1, Tokens: 4}, {First: 3, Tokens: 1}, {Tokens: 1}}
	l.Take(parts, engine.Wait{})
	for i, want := range []bool{true, false, true, false} {
		if (parts[i].Entry != nil) != want {
			t.Errorf("part %d has an entry: %v", i, parts[i].Entry != nil)
		}
	}
	again := make([]engine.Part, 3)
	if l.Take(again, engine.Wait{}); again[0].Entry != nil {
		t.Error("what was taken is there again")
	}
}

// The inputs and decisions of a Loading are recorded.
func TestRecordOfALoad(t *testing.T) {
	var out strings.Builder
	synctest.Test(t, func(t *testing.T) {
		log := record.New(&out, 1<<20)
		pace := &Pace{}
		pace.Record(log.Room("pace"))
		l := New(30, pace)
		l.Record(log.Room("load"))
		l.Near(ended, 2*time.Millisecond)
		l.Next(10)
		time.Sleep(time.Millisecond)
		l.Came(&kv.Entry{}, nil)
		l.Next(10)
		l.Near(ended, 2*time.Millisecond)
		l.Near(t.Context(), time.Second)
		l.Came(nil, nil)
		l.most(engine.Wait{Patience: 10, First: 3, Waited: 1})
		l.most(engine.Wait{First: 3, Waited: 1})
		l.Here(10, &kv.Entry{}, nil)
		l.End()
		l.Take(nil, engine.Wait{Patience: 10, First: 3, Waited: 4})
		l.Stop()
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	})
	want := strings.Fields(`wants_30 rest_2000000_0_30_0_-_0 near_-_0 next_10 came_10_+_1000000
		pace0_read_10_1000000 pace0_._pace_100000 next_10 rest_2000000_100000_20_10_+_0 near_+_0
		rest_1000000000_100000_20_10_+_0 near_+_0 came_10_-_0
		batch_10_3_1_10_30 most_5 batch_0_3_1_10_30 most_0 here_10 end batch_10_3_4_0_30 most_-1 take_-1_0 took_2_0 stop`)
	var got []string
	for _, line := range strings.Split(strings.TrimSpace(out.String()), "\n")[1:] {
		line = strings.TrimPrefix(strings.TrimPrefix(line, "load0 "), ". ")
		got = append(got, strings.ReplaceAll(line, " ", "_"))
	}
	if !slices.Equal(got, want) {
		t.Errorf("recorded\n%v, want\n%v", got, want)
	}
}

// Reads and changes of a Loading or a Pace wait for its lock.
func TestLoadsWaitForTheirLocks(t *testing.T) {
	p := &Pace{}
	l := New(10, p)
	locktest.Waits(t, "Next", l.mu.Lock, l.mu.Unlock, func() { l.Next(1) })
	locktest.Waits(t, "Came", l.mu.Lock, l.mu.Unlock, func() { l.Came(nil, nil) })
	locktest.Waits(t, "Here", l.mu.Lock, l.mu.Unlock, func() { l.Here(1, nil, nil) })
	locktest.Waits(t, "End", l.mu.Lock, l.mu.Unlock, l.End)
	locktest.Waits(t, "Stop", l.mu.Lock, l.mu.Unlock, l.Stop)
	locktest.Waits(t, "state", l.mu.Lock, l.mu.Unlock, func() { l.state() })
	locktest.Waits(t, "near", l.mu.Lock, l.mu.Unlock, func() { l.near(1) })
	locktest.Waits(t, "Expect", l.mu.Lock, l.mu.Unlock, func() { l.Expect() })
	locktest.Waits(t, "most", l.mu.Lock, l.mu.Unlock, func() { l.most(engine.Wait{}) })
	locktest.Waits(t, "note", p.mu.Lock, p.mu.Unlock, func() { p.note(1, 1) })
	locktest.Waits(t, "State", p.mu.Lock, p.mu.Unlock, func() { p.State() })
}

package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"grebe/internal/locktest"
	"grebe/internal/record"
	"grebe/kv"
)

// A job says how long what it reads takes, and when it is near; and nobody waits for it who does not have to.
func TestJobsThatRead(t *testing.T) {
	const ms = time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		none := &Job{}
		if none.Expects() != 0 || none.Fetch(t.Context()) != nil || none.Approach(t.Context(), ms, ms) != nil {
			t.Error("a job that reads nothing waits")
		}
		none.Hasten(ms)
		none.Leave()
		pace := &Pace{}
		l := NewLoading(30, pace)
		j := &Job{Blend: &Blend{Load: l}}
		if j.Expects() != 0 {
			t.Errorf("it takes %v, and nothing is known of the disk", j.Expects())
		}
		start := time.Now()
		if !l.Next(10) {
			t.Fatal("nobody wants it")
		}
		time.Sleep(20 * ms)
		l.Came(&kv.Entry{}, nil)
		if j.Expects() != 40*ms {
			t.Errorf("the rest takes %v, want 40 ms", j.Expects())
		}
		time.Sleep(5 * ms)
		if _, age := pace.State(); age != 5*ms {
			t.Errorf("the last read was %v ago", age)
		}
		pace.note(0, time.Hour)
		pace.note(-1, time.Hour)
		if d, known := pace.Expect(3); d != 6*ms || !known {
			t.Errorf("three tokens take %v", d)
		}
		l.Here(10, nil, nil) // somebody else has it
		if j.Expects() != 20*ms || l.most(30*ms, 0, 0) != 10*ms {
			t.Errorf("the rest takes %v, and %v of 30 ms are for it", j.Expects(), l.most(30*ms, 0, 0))
		}
		l.Next(10)
		time.Sleep(2 * ms)
		near := make(chan error, 1)
		go func() { near <- j.Approach(t.Context(), 15*ms, 0) }()
		synctest.Wait()
		if len(near) != 0 {
			t.Error("18 ms are near within 15")
		}
		time.Sleep(3 * ms)
		synctest.Wait()
		if err := <-near; err != nil || j.Blend.First != 15*ms || j.Blend.Patience != 1 || time.Since(start) != 30*ms {
			t.Errorf("%v: first %v, patience %v, after %v", err, j.Blend.First, j.Blend.Patience, time.Since(start))
		}
		j.Hasten(-ms)
		if j.Blend.First != 0 || j.Blend.Patience != 1 {
			t.Errorf("in haste: first %v, patience %v", j.Blend.First, j.Blend.Patience)
		}
		go func() { near <- j.Approach(t.Context(), -ms, 7*ms) }()
		synctest.Wait()
		if j.Blend.Patience != 7*ms || j.Blend.First != 0 {
			t.Errorf("patience %v, first %v", j.Blend.Patience, j.Blend.First)
		}
		select {
		case <-l.Stopped():
			t.Error("it is stopped before anybody left")
		default:
		}
		j.Leave()
		j.Leave()
		<-l.Stopped()
		if err := <-near; err != nil || l.Next(1) || j.Fetch(t.Context()) != nil {
			t.Errorf("after everybody left: %v", err)
		}
		l.End()
		if j.Expects() != 0 || l.reading != 0 {
			t.Errorf("the rest takes %v, and all has come", j.Expects())
		}
		if l.most(time.Second, 0, 0) != 1 || NewLoading(0, pace).most(time.Second, 0, 0) != 1 {
			t.Error("a share for nothing")
		}
		waiting := NewLoading(1, pace)
		ctx, cancel := context.WithTimeout(t.Context(), 3*ms)
		defer cancel()
		if err := waiting.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a wait that ends: %v", err)
		}
		if err := waiting.Near(ctx, ms); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a wait that ends: %v", err)
		}
		if waited := waiting.Take(nil, 4*ms); waited != 4*ms {
			t.Errorf("waited %v, want 4 ms", waited)
		}
		waiting.End()
		if waited := waiting.Take(nil, 4*ms); waited != 0 {
			t.Errorf("waited %v for nothing", waited)
		}
	})
}

// The pace of a disk follows what is read: half of it is told by the last 1,024 tokens.
func TestPace(t *testing.T) {
	p := &Pace{}
	if _, known := p.Expect(1); known {
		t.Error("a pace is known before anything was read")
	}
	p.note(10, 100)
	if d, _ := p.Expect(1); d != 10 {
		t.Errorf("%v for a token", d)
	}
	p.note(1024, 1024*20)
	if d, _ := p.Expect(2); d != 30 {
		t.Errorf("%v for two tokens, want 30", d)
	}
	p.note(1024, 0)
	if d, _ := p.Expect(2); d != 16 { // half of 15 and of the least, each
		t.Errorf("%v for two tokens, want 16", d)
	}
}

// What came stands in for the parts that it is long enough for, once.
func TestTakenParts(t *testing.T) {
	e := newTiny(t, oneThread(t), "f32", Options{})
	entry := e.keep(t, user(1, 2, 3, 4))
	l := NewLoading(8, &Pace{})
	l.Here(4, entry, []int{0, 1, 2})
	l.Here(4, nil, nil)
	l.End()
	parts := []Part{{First: 0, Tokens: 4}, {First: 1, Tokens: 4}, {First: 3, Tokens: 1}, {Tokens: 1}}
	l.Take(parts, 0)
	for i, want := range []bool{true, false, true, false} {
		if (parts[i].Entry != nil) != want {
			t.Errorf("part %d has an entry: %v", i, parts[i].Entry != nil)
		}
	}
	again := make([]Part, 3)
	if l.Take(again, 0); again[0].Entry != nil {
		t.Error("what was taken is there again")
	}
}

// What a load is told and decides is recorded.
func TestRecordOfALoad(t *testing.T) {
	var out strings.Builder
	synctest.Test(t, func(t *testing.T) {
		log := record.New(&out, 1<<20)
		pace := &Pace{}
		pace.Record(log.Room("pace"))
		l := NewLoading(30, pace)
		l.Record(log.Room("load"))
		l.Near(ended, 2*time.Millisecond)
		l.Next(10)
		time.Sleep(time.Millisecond)
		l.Came(&kv.Entry{}, nil)
		l.Next(10)
		l.Near(ended, 2*time.Millisecond)
		l.Near(t.Context(), time.Second)
		l.Came(nil, nil)
		l.most(10, 3, 1)
		l.most(0, 3, 1)
		l.Here(10, &kv.Entry{}, nil)
		l.End()
		l.most(10, 3, 4)
		l.Take(nil, 5)
		l.Stop()
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	})
	want := strings.Fields(`wants_30 rest_2000000_0_30_0_-_0 near_-_0 next_10 came_10_+_1000000 pace0_read_10_1000000 pace0_._pace_100000
		next_10 rest_2000000_100000_20_10_+_0 near_+_0 rest_1000000000_100000_20_10_+_0 near_+_0 came_10_-_0
		batch_10_3_1_10_30 most_5 batch_0_3_1_10_30 most_0 here_10 end batch_10_3_4_0_30 most_-1 take_5_0 took_2_0 stop`)
	var got []string
	for _, line := range strings.Split(strings.TrimSpace(out.String()), "\n")[1:] {
		line = strings.TrimPrefix(strings.TrimPrefix(line, "load0 "), ". ")
		got = append(got, strings.ReplaceAll(line, " ", "_"))
	}
	if !slices.Equal(got, want) {
		t.Errorf("recorded\n%v, want\n%v", got, want)
	}
}

// Who changes or reads a load, a pace or the memory of beams waits for its lock; jobs wait for the batch that runs.
func TestEngineCallsWaitForTheirLocks(t *testing.T) {
	e := newTiny(t, oneThread(t), "f32", Options{})
	p := &Pace{}
	l := NewLoading(10, p)
	mem := &tallied{Memory: e.memory}
	s := &beamStore{memory: mem}
	locktest.Waits(t, "Next", l.mu.Lock, l.mu.Unlock, func() { l.Next(1) })
	locktest.Waits(t, "Came", l.mu.Lock, l.mu.Unlock, func() { l.Came(nil, nil) })
	locktest.Waits(t, "Here", l.mu.Lock, l.mu.Unlock, func() { l.Here(1, nil, nil) })
	locktest.Waits(t, "End", l.mu.Lock, l.mu.Unlock, l.End)
	locktest.Waits(t, "Stop", l.mu.Lock, l.mu.Unlock, l.Stop)
	locktest.Waits(t, "state", l.mu.Lock, l.mu.Unlock, func() { l.state() })
	locktest.Waits(t, "near", l.mu.Lock, l.mu.Unlock, func() { l.near(1) })
	locktest.Waits(t, "expect", l.mu.Lock, l.mu.Unlock, func() { l.expect() })
	locktest.Waits(t, "most", l.mu.Lock, l.mu.Unlock, func() { l.most(1, 0, 0) })
	locktest.Waits(t, "note", p.mu.Lock, p.mu.Unlock, func() { p.note(1, 1) })
	locktest.Waits(t, "State", p.mu.Lock, p.mu.Unlock, func() { p.State() })
	locktest.Waits(t, "Expect", p.mu.Lock, p.mu.Unlock, func() { p.Expect(1) })
	locktest.Waits(t, "take", s.mu.Lock, s.mu.Unlock, func() { b, _ := s.take(256); mem.Free(b) })
	locktest.Waits(t, "give", s.mu.Lock, s.mu.Unlock, func() { b, _ := mem.Alloc(256); s.give(b) })
	locktest.Waits(t, "close", s.mu.Lock, s.mu.Unlock, s.close)
	locktest.Waits(t, "Run", e.mu.Lock, e.mu.Unlock, func() { e.Run(nil, nil) })
	locktest.Waits(t, "Close", e.mu.Lock, e.mu.Unlock, func() { _ = e.Close() })
	s.close()
}

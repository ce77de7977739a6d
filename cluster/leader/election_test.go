package leader

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

const ttl = 3 * time.Second

var zero = time.Unix(1000, 0)

func at(d time.Duration) time.Time { return zero.Add(d) }

func TestTakeover(t *testing.T) {
	e := NewElection("b", ttl)
	if _, _, ok := e.Next(at(0)); ok {
		t.Error("it writes before it has read the key")
	}
	e.Saw(at(0), Record{Term: 4, Holder: "a", Beat: 1}, 10)
	e.Saw(at(2*time.Second), Record{Term: 4, Holder: "a", Beat: 2}, 11)
	e.Saw(at(4*time.Second), Record{Term: 4, Holder: "a", Beat: 2}, 11)
	if r, _, ok := e.Next(at(5*time.Second - 1)); ok {
		t.Errorf("it writes %v before the leader's ttl is over", r)
	}
	if got := e.Wake(at(4 * time.Second)); got != at(5*time.Second) {
		t.Errorf("it wakes at %v", got.Sub(zero))
	}
	r, expected, ok := e.Next(at(5 * time.Second))
	if !ok || expected != 11 || r != (Record{Term: 5, Holder: "b"}) {
		t.Fatalf("it writes %v over version %d: %v", r, expected, ok)
	}
	e.Trying(at(5 * time.Second))
	e.Wrote(at(5*time.Second), at(6*time.Second), r, 12)
	for d, want := range map[time.Duration]int64{6 * time.Second: 5, 7500*time.Millisecond - 1: 5,
		7500 * time.Millisecond: 0} {
		if got := e.Leading(at(d)); got != want {
			t.Errorf("at %v it leads in term %d, want %d", d, got, want)
		}
	}
	if r, expected, ok = e.Next(at(6 * time.Second)); !ok || expected != 12 || r.Term != 5 || r.Beat != 1 {
		t.Errorf("it renews with %v over version %d: %v", r, expected, ok)
	}
	if r, _, ok = e.Next(at(9 * time.Second)); !ok || r.Term != 6 {
		t.Errorf("after its own term is over it writes %v: %v; a term never begins again", r, ok)
	}
}

func TestTakenOver(t *testing.T) {
	e := NewElection("b", ttl)
	e.Saw(at(0), Record{}, 0)
	r, expected, ok := e.Next(at(0))
	if !ok || expected != 0 || r.Term != 1 {
		t.Fatalf("on an absent key it writes %v over %d: %v", r, expected, ok)
	}
	e.Wrote(at(0), at(0), r, 1)
	e.Saw(at(time.Second), Record{Term: 1, Holder: "b", Beat: 1}, 2) // our own renewal, which was not answered
	if e.Leading(at(time.Second)) != 1 {
		t.Error("its own renewal ended its term")
	}
	e.Saw(at(time.Second), Record{Term: 2, Holder: "c"}, 3)
	if e.Leading(at(time.Second)) != 0 {
		t.Error("it leads after another took over")
	}
	e.Saw(at(time.Second), Record{Term: 2, Beat: 1}, 4)
	e.Raise(8)
	if r, _, ok = e.Next(at(time.Second)); !ok || r.Term != 9 {
		t.Errorf("after the leader resigned it writes %v: %v, above a term 8 that was found", r, ok)
	}
}

// Processes whose requests and answers take random time, get lost or come late: at no time do two of them act. Clocks
// run at one rate.
func TestNeverTwoLeaders(t *testing.T) {
	led := 0
	for seed := range uint64(100) {
		led += simulate(t, rand.New(rand.NewPCG(seed, 1)))
	}
	if led < 1000 {
		t.Errorf("only %d terms in all", led)
	}
}

// simulate returns how many terms began.
func simulate(t *testing.T, rng *rand.Rand) (terms int) {
	type event struct {
		at time.Duration
		do func(now time.Duration)
	}
	var events []event
	after := func(now, d time.Duration, do func(time.Duration)) { events = append(events, event{now + d, do}) }
	delay := func() time.Duration {
		if rng.IntN(20) == 0 {
			return time.Duration(rng.Int64N(int64(3 * ttl))) // as after a pause
		}
		return time.Duration(rng.Int64N(int64(50 * time.Millisecond)))
	}
	var stored Record
	var version int64
	var parts []*Election
	for i := range 3 {
		e := NewElection(fmt.Sprint(i), ttl)
		parts = append(parts, e)
		var read func(time.Duration)
		again := func(now time.Duration) { after(now, time.Duration(rng.Int64N(int64(ttl/10)))+time.Millisecond, read) }
		write := func(now time.Duration) {
			r, expected, ok := e.Next(at(now))
			if !ok {
				again(now)
				return
			}
			sent, lost := at(now), rng.IntN(5) == 0
			e.Trying(sent)
			after(now, delay(), func(now time.Duration) {
				won := version == expected
				if won {
					if r.Term < stored.Term {
						t.Fatalf("term %d after %d", r.Term, stored.Term)
					}
					if r.Term > stored.Term {
						terms++
					}
					version++
					stored = r
				}
				v := version
				after(now, delay(), func(now time.Duration) {
					if won && !lost {
						e.Wrote(sent, at(now), r, v)
					}
					again(now)
				})
			})
		}
		read = func(now time.Duration) {
			after(now, delay(), func(now time.Duration) {
				r, v := stored, version
				after(now, delay(), func(now time.Duration) { e.Saw(at(now), r, v); write(now) })
			})
		}
		after(0, time.Duration(rng.IntN(100))*time.Millisecond, read)
	}
	for range 1000 {
		first := 0
		for i, e := range events {
			if e.at < events[first].at {
				first = i
			}
		}
		next := events[first]
		events[first] = events[len(events)-1]
		events = events[:len(events)-1]
		acting := map[int64]int{}
		for i, e := range parts {
			if term := e.Leading(at(next.at)); term != 0 {
				acting[term] = i
			}
		}
		if len(acting) > 1 {
			t.Fatalf("at %v several act: terms and processes %v", next.at, acting)
		}
		next.do(next.at)
	}
	return terms
}

func TestFencedFormat(t *testing.T) {
	for _, f := range []Fenced{{1, nil}, {99, []byte("a\nterm 3\n")}} {
		got, err := Decode(f.Encode())
		if err != nil || got.Term != f.Term || string(got.Data) != string(f.Data) {
			t.Errorf("%v comes back as %v: %v", f, got, err)
		}
	}
	for _, bad := range []string{"", "term 1", "term\n", "term -1\n", "term 0\nx", "7\nx", "term 1x\n", "xterm 1\n"} {
		if f, err := Decode([]byte(bad)); err == nil {
			t.Errorf("%q reads as %v", bad, f)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("term 7\nabc"))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := Decode(b)
		if err != nil {
			return
		}
		again, err := Decode(v.Encode())
		if err != nil || again.Term != v.Term || string(again.Data) != string(v.Data) {
			t.Errorf("%q: %v, then %v, %v", b, v, again, err)
		}
	})
}

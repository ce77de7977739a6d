package guard

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// fleet is a cluster in virtual time, in steps of a millisecond.
type fleet struct {
	t       *testing.T
	members []*fleetMember
	now     time.Duration
	mail    []letter
	cut     func(a, b int, now time.Duration) bool // no message passes between two members; nil: all do
	key     string
	passed  []int // requests that were let through, by millisecond
}

type fleetMember struct {
	g    *Guard
	boot string
	next time.Duration // earliest next round of reports
	owed float64       // requests that clients have sent in part
	seen int           // let through in all
	down bool
}

// letter is a report on its way.
type letter struct {
	at       time.Duration
	from, to int
	boot     string
	number   uint64
	spent    map[uint64]uint64
	missed   bool // it says that there was no answer
	answer   bool // it answers a report
}

const (
	fleetEvery  = 20 * time.Millisecond
	fleetTrip   = time.Millisecond
	fleetMisses = 300 * time.Millisecond
)

func newFleet(t *testing.T, n int, rate float64, burst int) *fleet {
	t.Helper()
	key, digest := NewKey()
	f := &fleet{t: t, key: key}
	for i := range n {
		g, err := New([]Key{{Name: "k", SHA256: digest, Roles: []Role{Serve}, Rate: rate, Burst: burst}})
		if err != nil {
			t.Fatal(err)
		}
		var peers []string
		for j := range n {
			if j != i {
				peers = append(peers, fmt.Sprint(j))
			}
		}
		g.SetPeers(peers)
		f.members = append(f.members, &fleetMember{g: g, boot: fmt.Sprint("boot ", i)})
	}
	return f
}

func (f *fleet) reached(a, b int) bool {
	return !f.members[a].down && !f.members[b].down && (f.cut == nil || !f.cut(a, b, f.now))
}

// send reports to a member, or finds that it does not answer.
func (f *fleet) send(from, to int, answer bool) {
	m := f.members[from]
	l := letter{at: f.now + fleetTrip, from: from, to: to, boot: m.boot, answer: answer}
	l.number, l.spent = m.g.Spent()
	if !f.reached(from, to) {
		if answer {
			return
		}
		l = letter{at: f.now + fleetMisses, from: to, to: from, missed: true}
	}
	f.mail = append(f.mail, l)
}

// run has clients send requests, so many per second at each member, and returns how many were let through.
func (f *fleet) run(d time.Duration, demand func(member int, now time.Duration) float64) (passed int) {
	epoch := time.Unix(1700000000, 0)
	for end := f.now + d; f.now < end; f.now += time.Millisecond {
		var later []letter
		due := f.mail
		f.mail = nil
		for _, l := range due {
			switch to := f.members[l.to]; {
			case l.at > f.now:
				later = append(later, l)
			case to.down:
			case l.missed:
				to.g.Missed(fmt.Sprint(l.from))
			default:
				to.g.Heard(fmt.Sprint(l.from), l.boot, l.number, l.spent)
				if !l.answer {
					f.send(l.to, l.from, true)
				}
			}
		}
		f.mail = append(f.mail, later...)
		step := 0
		for i, m := range f.members {
			if m.down {
				continue
			}
			for m.owed += demand(i, f.now) / 1000; m.owed >= 1; m.owed-- {
				if _, err := m.g.Check(f.key, Serve, epoch.Add(f.now)); err == nil {
					step++
					m.seen++
				}
			}
			if f.now < m.next {
				continue
			}
			select {
			case <-m.g.Wake():
				m.next = f.now + fleetEvery
				for j := range f.members {
					if j != i {
						f.send(i, j, false)
					}
				}
			default:
			}
		}
		f.passed = append(f.passed, step)
		passed += step
	}
	return passed
}

// most returns the most requests that were let through in any window of ten seconds.
func (f *fleet) most() (most int) {
	sum := 0
	for i, n := range f.passed {
		if sum += n; i >= 10_000 {
			sum -= f.passed[i-10_000]
		}
		most = max(most, sum)
	}
	return most
}

// The limit holds over all members, however clients spread over them: at most a tenth more than one server would let
// through in any ten seconds, and at least nine tenths of it on average.
func TestLimitsHoldOverAllMembers(t *testing.T) {
	patterns := map[string]func(n int, total float64) func(int, time.Duration) float64{
		"even": func(n int, total float64) func(int, time.Duration) float64 {
			return func(int, time.Duration) float64 { return total / float64(n) }
		},
		"one": func(_ int, total float64) func(int, time.Duration) float64 {
			return func(i int, _ time.Duration) float64 { return total * float64(1-min(i, 1)) }
		},
		"uneven": func(n int, total float64) func(int, time.Duration) float64 {
			return func(i int, _ time.Duration) float64 { return total * math.Pow(2, -float64(i+1)) }
		},
		"shifting": func(n int, total float64) func(int, time.Duration) float64 {
			return func(i int, now time.Duration) float64 {
				if int(now/(700*time.Millisecond))%n == i {
					return total
				}
				return 0
			}
		},
	}
	for name, pattern := range patterns {
		for _, c := range []struct {
			n     int
			rate  float64
			burst int
			over  float64 // demand, as a multiple of the rate
		}{{2, 50, 0, 5}, {3, 200, 0, 2}, {3, 200, 20, 10}, {8, 100, 0, 5}, {3, 2, 0, 10}, {3, 1000, 0, 1.2},
			{3, 100, 0, .5}} {
			t.Run(fmt.Sprintf("%s %d members rate %v burst %d demand %v", name, c.n, c.rate, c.burst, c.over),
				func(t *testing.T) {
					f := newFleet(t, c.n, c.rate, c.burst)
					const seconds = 40
					demand := pattern(c.n, c.over*c.rate)
					sent := 0.0
					for at := time.Duration(0); at < seconds*time.Second; at += time.Millisecond {
						for i := range c.n {
							sent += demand(i, at) / 1000
						}
					}
					passed := f.run(seconds*time.Second, demand)
					burst := float64(c.burst)
					if burst == 0 {
						burst = max(c.rate, 1)
					}
					if most, limit := f.most(), 10*c.rate+burst; float64(most) > 1.1*limit {
						t.Errorf("%d requests in ten seconds, the limit is %.0f", most, limit)
					}
					if due := min(sent, seconds*c.rate); float64(passed) < .9*due {
						t.Errorf("%d requests were let through, want about %.0f", passed, due)
					}
				})
		}
	}
}

// A member dies. Its share is left to it until the others know that it is gone; then they have all.
func TestLimitsAfterALoss(t *testing.T) {
	f := newFleet(t, 3, 90, 0)
	busy := func(int, time.Duration) float64 { return 200 }
	f.run(10*time.Second, busy)
	f.members[2].down = true
	f.run(time.Second, busy)
	if got := f.run(10*time.Second, busy); got < 540 || got > 660 {
		t.Errorf("two of three members let %d requests through in ten seconds, want about 600", got)
	}
	if share := f.members[0].g.LimitShare(); math.Abs(share-2./3) > 1e-9 {
		t.Errorf("the share is %v", share)
	}
	f.members[0].g.SetPeers([]string{"1"})
	f.members[1].g.SetPeers([]string{"0"})
	f.run(time.Second, busy)
	if got := f.run(10*time.Second, busy); got < 810 || got > 990 {
		t.Errorf("the two let %d requests through in ten seconds, want about 900", got)
	}
}

// The network is cut. The sides together hold the limit, and each has its share of it.
func TestLimitsInAPartition(t *testing.T) {
	f := newFleet(t, 3, 90, 0)
	busy := func(int, time.Duration) float64 { return 200 }
	f.cut = func(a, b int, now time.Duration) bool {
		return now >= 10*time.Second && now < 40*time.Second && (a == 2) != (b == 2)
	}
	f.run(15*time.Second, busy)
	before := f.members[2].seen
	got := f.run(20*time.Second, busy)
	if got < 1620 || got > 1980 {
		t.Errorf("the two sides let %d requests through in 20 s, want about 1800", got)
	}
	if alone := f.members[2].seen - before; alone < 540 || alone > 660 {
		t.Errorf("the member that is cut off let %d requests through in 20 s, want about 600", alone)
	}
	f.run(10*time.Second, busy) // it heals
	if got := f.run(10*time.Second, busy); got < 810 || got > 990 {
		t.Errorf("afterwards %d requests in ten seconds, want about 900", got)
	}
	if most := f.most(); most > 1100 {
		t.Errorf("%d requests in some ten seconds, the limit is 990", most)
	}
}

// A process that restarts counts from 0 again. Reports that are late, or of a process that is gone, charge nothing
// twice.
func TestReportsThatRepeat(t *testing.T) {
	f := newFleet(t, 2, 1, 100)
	g := f.members[0].g
	key := g.list()[0].id()
	left := func() float64 { return g.list()[0].bucket.left }
	report := func(n uint64) map[uint64]uint64 { return map[uint64]uint64{key: n} }
	for _, c := range []struct {
		boot   string
		number uint64
		spent  uint64
		left   float64
	}{{"a", 1, 40, 100}, {"a", 3, 50, 90}, {"a", 2, 45, 90}, {"a", 3, 50, 90}, {"b", 1, 5, 90}, {"b", 2, 7, 88},
		{"b", 3, 0, 88}, {"b", 4, 3, 85}} {
		g.Heard("1", c.boot, c.number, report(c.spent))
		if left() != c.left {
			t.Errorf("report %+v: %v are left", c, left())
		}
	}
	g.Missed("1")
	g.Heard("1", "b", 5, report(50)) // from its own share
	if left() != 85 {
		t.Errorf("%v are left after it was out of reach", left())
	}
	g.Heard("nobody", "b", 9, report(50))
	g.Heard("1", "b", 6, report(1e9))
	if want := -debtSeconds*1 - 100.0; left() != want {
		t.Errorf("%v are left, want %v: a debt is bounded", left(), want)
	}
}

func TestKeysDigest(t *testing.T) {
	_, d1 := NewKey()
	_, d2 := NewKey()
	a, b := Key{Name: "a", SHA256: d1, Roles: []Role{Serve, Catalog}, Rate: 5},
		Key{Name: "b", SHA256: d2, Roles: []Role{Admin}}
	digest := func(keys ...Key) string {
		g, err := New(keys)
		if err != nil {
			t.Fatal(err)
		}
		return g.KeysDigest()
	}
	want := digest(a, b)
	swapped := a
	swapped.Roles = []Role{Catalog, Serve}
	if digest(b, swapped) != want {
		t.Error("the order counts")
	}
	faster, renamed, fewer := a, a, a
	faster.Rate, renamed.Name, fewer.Roles = 6, "c", []Role{Serve}
	for name, got := range map[string]string{"rate": digest(faster, b), "name": digest(renamed, b),
		"roles": digest(fewer, b), "one key": digest(a), "none": digest()} {
		if got == want {
			t.Errorf("%s: the digest is the same", name)
		}
	}
}

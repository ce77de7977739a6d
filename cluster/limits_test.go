package cluster

import (
	"maps"
	"sync"
	"testing"
	"time"
)

// counted are limits that only count what they hear.
type counted struct {
	mu     sync.Mutex
	wake   chan struct{}
	number uint64
	spent  map[uint64]uint64
	peers  []string
	heard  map[string]map[uint64]uint64 // by member
	missed map[string]int
}

func newCounted() *counted {
	return &counted{wake: make(chan struct{}, 1), spent: map[uint64]uint64{}, heard: map[string]map[uint64]uint64{},
		missed: map[string]int{}}
}

func (l *counted) spend(key, n uint64) {
	l.mu.Lock()
	l.spent[key] += n
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *counted) Wake() <-chan struct{} { return l.wake }

func (l *counted) Spent() (uint64, map[uint64]uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.number++
	return l.number, maps.Clone(l.spent)
}

func (l *counted) SetPeers(ids []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.peers = ids
}

func (l *counted) Heard(id, _ string, _ uint64, spent map[uint64]uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard[id] = spent
}

func (l *counted) Missed(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.missed[id]++
}

func (l *counted) LimitShare() float64 { return 1 }
func (l *counted) KeysDigest() string  { return "keys" }

func (l *counted) of(id string, key uint64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heard[id][key]
}

func TestLimitsAreShared(t *testing.T) {
	t.Parallel()
	limits := map[string]*counted{"n1": newCounted(), "n2": newCounted(), "n3": newCounted()}
	nodes := three(t, func(c *Config) { c.Limits = limits[c.Node] })
	limits["n1"].spend(7, 5)
	limits["n2"].spend(7, 2)
	waitFor(t, func() bool {
		return limits["n2"].of("n1", 7) == 5 && limits["n3"].of("n1", 7) == 5 && limits["n1"].of("n2", 7) == 2 &&
			limits["n3"].of("n2", 7) == 2
	})
	for i := range 20 { // a round may be under way
		limits["n1"].spend(7, 1)
		waitFor(t, func() bool { return limits["n3"].of("n1", 7) == uint64(6+i) })
	}
	if n := nodes[0].Status().Nodes[2]; n.Keys != "keys" {
		t.Errorf("the status says that the keys of n3 are %q", n.Keys)
	}
	nodes[2].wire.grpc.Stop() // it is a member, but answers nobody
	waitFor(t, func() bool {
		limits["n1"].spend(7, 1)
		limits["n1"].mu.Lock()
		defer limits["n1"].mu.Unlock()
		return limits["n1"].missed["n3"] > 0 && len(limits["n1"].peers) == 2
	})
	limits["n1"].spend(7, 1) // the others are told all the same
	waitFor(t, func() bool { _, s := limits["n1"].Spent(); return limits["n2"].of("n1", 7) == s[7] })
}

func TestReportEvery(t *testing.T) {
	for others, want := range map[int]time.Duration{0: 20 * time.Millisecond, 2: 20 * time.Millisecond,
		7: 70 * time.Millisecond, 63: 200 * time.Millisecond} {
		if got := reportEvery(others); got != want {
			t.Errorf("%d others: %v, want %v", others, got, want)
		}
	}
}

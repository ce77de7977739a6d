package residency

import (
	"crypto/sha256"
	"math/rand/v2"
	"testing"
	"time"

	"grebe/plan"
)

func key(i int) plan.Key { return sha256.Sum256([]byte{byte(i), byte(i >> 8)}) }

func newHotness(t testing.TB, c HotnessConfig) *Hotness {
	t.Helper()
	h, err := NewHotness(c)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// The coldest cached user is the one that a scan of all users finds, once the background work has looked at all.
func TestColdestCachedUser(t *testing.T) {
	const users = 60
	window := 100 * time.Second
	x := newHotness(t, HotnessConfig{Users: 1000, Items: 10, Window: window})
	r := rand.New(rand.NewPCG(1, 2))
	cached := map[int]bool{}
	now := time.Duration(0)
	for step := range 3000 {
		now += time.Duration(r.IntN(200)) * time.Millisecond
		u := r.IntN(users) * r.IntN(users) / users // skewed
		switch r.IntN(3) {
		case 0:
			x.NoteUser(key(u), now, false)
		case 1:
			x.now = now
			x.Hold(key(u))
			cached[u] = true
		case 2:
			if r.IntN(3) == 0 {
				x.Leave(key(u))
				delete(cached, u)
			}
		}
		if step%50 != 0 || len(cached) == 0 {
			continue
		}
		x.Apply(now)
		_, got := x.User(key(0), now)
		want := -1.0
		for c := range cached {
			f, _ := x.User(key(c), now)
			if want < 0 || f < want {
				want = f
			}
		}
		if got != want {
			t.Fatalf("step %d: the coldest of %d cached users has frequency %v, want %v", step, len(cached), got, want)
		}
	}
}

func TestAccessesAreCountedLater(t *testing.T) {
	x := newHotness(t, HotnessConfig{Users: 100, Items: 100, Buffer: 4})
	frequency := func() float64 { f, _ := x.User(key(1), time.Second); return f }
	x.NoteUser(key(1), time.Second, false)
	if f := frequency(); f != 0 {
		t.Errorf("a noted access counts %v before it was applied", f)
	}
	x.Apply(time.Second)
	if f := frequency(); f != 1 {
		t.Errorf("an applied access counts %v", f)
	}
	for range 9 { // more than the buffer holds, but nothing is lost
		x.NoteUser(key(1), time.Second, false)
	}
	x.Apply(time.Second)
	if f := frequency(); f != 10 {
		t.Errorf("ten accesses count %v", f)
	}
	items := []plan.Key{key(7), key(8)}
	x.NoteItems(items[:1], time.Second)
	x.Apply(time.Second)
	uses := make([]float32, 2)
	x.Items(items, []plan.Tier{plan.Missing, plan.Missing}, time.Second, uses)
	if uses[0] != 1 || uses[1] != 0 {
		t.Errorf("uses of the items: %v, want 1 and 0", uses)
	}
	x.Items(items, []plan.Tier{plan.Host, plan.Missing}, time.Second, uses)
	if uses[0] != 0 {
		t.Errorf("an item that is cached has %v expected uses of computing it", uses[0])
	}
}

func TestNothingAllocates(t *testing.T) {
	x := newHotness(t, HotnessConfig{Users: 1000, Items: 1000})
	keys := make([]plan.Key, 100)
	for i := range keys {
		keys[i] = key(i)
		x.Hold(keys[i])
	}
	tiers, uses := make([]plan.Tier, 100), make([]float32, 100)
	n := testing.AllocsPerRun(100, func() {
		x.Items(keys, tiers, 1, uses)
		x.User(keys[1], 1)
		x.NoteUser(keys[1], 1, true)
		x.NoteItems(keys, 1)
	})
	if n != 0 {
		t.Errorf("asking and noting allocate %v times", n)
	}
}

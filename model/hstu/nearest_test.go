package hstu

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"grebe/compute"
	"grebe/compute/ref"
)

// counted counts the searches of vectors, and can hold them up.
type counted struct {
	compute.Vectors
	mu       sync.Mutex
	searches []int // how many queries each had
	hold     chan struct{}
	err      error
}

func (c *counted) Best(queries []compute.Query) error {
	c.mu.Lock()
	c.searches = append(c.searches, len(queries))
	c.mu.Unlock()
	if c.hold != nil {
		<-c.hold
	}
	if c.err != nil {
		return c.err
	}
	return c.Vectors.Best(queries)
}

// drawn is an index of random whole numbers, of which few differ.
func drawn(t *testing.T, items, width int, r *rand.Rand) (*index, *counted) {
	t.Helper()
	v, err := ref.Retrieving(nil).(compute.Retriever).Vectors(items, width, func(_ int, to []float32) error {
		for i := range to {
			to[i] = float32(r.IntN(7) - 3)
		}
		to[width] = float32(math.NaN()) // item 1
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	c := &counted{Vectors: v}
	return &index{width: width, items: items, vectors: c, asked: newCompany(c)}, c
}

// TestPages: however many items are wanted, left out or not eligible, what is found is what all items would yield.
func TestPages(t *testing.T) {
	const items, width = 20000, 4
	r := rand.New(rand.NewPCG(1, 2))
	x, _ := drawn(t, items, width, r)
	user := []float32{1, 2, -1, 3}
	var order []compute.Hit
	last := compute.Query{Vector: user, K: compute.MaxHits}
	for {
		q := []compute.Query{last}
		if err := x.vectors.Best(q); err != nil {
			t.Fatal(err)
		}
		if order = append(order, q[0].Hits...); len(q[0].Hits) < q[0].K {
			break
		}
		last.After = &order[len(order)-1]
	}
	if len(order) != items-1 {
		t.Fatalf("%d items in pages, want %d", len(order), items-1)
	}
	for _, one := range []int{0, 1, 2, 30, 1000, items + 1} { // item i is eligible if i%one is 0; 0: no filter
		for _, n := range []int{1, 100, 3000, items} {
			for _, out := range []int{0, 3} {
				check := retrieval{x: x, user: user, n: n}
				if one > 0 {
					check.eligible = func(item int32) bool { return int(item)%one == one/2 }
				}
				for i := 0; out > 0 && i < items+9; i += out {
					check.without = append(check.without, int32(i))
				}
				var want []Found
				for _, h := range order {
					if len(want) < n && (one == 0 || int(h.Item)%one == one/2) && (out == 0 || int(h.Item)%out != 0) {
						want = append(want, Found{h.Item, h.Score})
					}
				}
				if err := check.run(t.Context()); err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(check.found, want) {
					t.Errorf("one of %d eligible, one of %d left out, the best %d: %d items, want %d", one, out, n, len(check.found),
						len(want))
				}
				broken := 0
				if one == 0 || 1%one == one/2 {
					broken = 1
				}
				if check.broken != broken {
					t.Errorf("one of %d eligible: %d broken, want %d", one, check.broken, broken)
				}
			}
		}
	}
}

// asked notes which items a retrieval asks for.
type asked struct {
	mu    sync.Mutex
	items map[int32]bool
}

// eligible notes the items that f is called for.
func (a *asked) eligible(f func(item int32) bool) func(item int32) bool {
	a.items = map[int32]bool{}
	return func(item int32) bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.items[item] = true
		return f(item)
	}
}

// check checks that all items but those of without were asked for.
func (a *asked) check(t *testing.T, items int, without []int32) {
	t.Helper()
	for i := range int32(items) {
		if !a.items[i] && !slices.Contains(without, i) {
			t.Fatalf("of %d items less %d, item %d was not asked for", items, len(without), i)
		}
	}
}

// TestShortAsksForAll: a retrieval that finds too few items has asked whether each of the others is eligible, so that
// callers know what no item has.
func TestShortAsksForAll(t *testing.T) {
	for _, items := range []int{300, 20000} { // of one page, and of more
		x, _ := drawn(t, items, 4, rand.New(rand.NewPCG(1, 2)))
		for _, without := range [][]int32{nil, {1}, {0, 1, 2, 299}} { // item 1 is broken
			for _, one := range []int{1, 2, 100, items + 1} {
				a := &asked{}
				check := retrieval{x: x, user: []float32{1, 2, -1, 3}, n: items, without: without,
					eligible: a.eligible(func(item int32) bool { return int(item)%one == 0 })}
				if err := check.run(t.Context()); err != nil {
					t.Fatal(err)
				}
				a.check(t, items, without)
			}
		}
	}
}

// TestCompany: queries that come while a search runs share the next one.
func TestCompany(t *testing.T) {
	x, c := drawn(t, 300, 3, rand.New(rand.NewPCG(3, 4)))
	c.hold = make(chan struct{})
	const others = compute.MaxQueries + 5
	var wg sync.WaitGroup
	ask := func(v float32) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			q := compute.Query{Vector: []float32{v, 1, 0}, K: 5}
			got, err := x.asked.ask(t.Context(), q)
			want := []compute.Query{q}
			if err := errors.Join(err, c.Vectors.Best(want)); err != nil || !slices.Equal(got.Hits, want[0].Hits) {
				t.Errorf("%v: %v, %v; want %v", v, got.Hits, err, want[0].Hits)
			}
		}()
	}
	ask(0)
	c.hold <- struct{}{} // it runs; the next search waits for the next value
	wg.Wait()
	ask(1)
	for waiting := 0; waiting == 0; {
		c.mu.Lock()
		waiting = len(c.searches) - 1
		c.mu.Unlock()
	}
	gone, cancel := context.WithCancel(t.Context())
	wg.Add(1)
	go func() {
		defer wg.Done()
		if _, err := x.asked.ask(gone, compute.Query{Vector: []float32{9, 9, 9}, K: 1}); !errors.Is(err, context.Canceled) {
			t.Errorf("a request that nobody waits for: %v", err)
		}
	}()
	for i := range others {
		ask(float32(i))
	}
	for waiting := 0; waiting < others+1; {
		x.asked.mu.Lock()
		waiting = len(x.asked.waiting)
		x.asked.mu.Unlock()
	}
	cancel()
	for waiting := others + 1; waiting > others; {
		x.asked.mu.Lock()
		waiting = len(x.asked.waiting)
		x.asked.mu.Unlock()
	}
	close(c.hold)
	wg.Wait()
	if want := []int{1, 1, compute.MaxQueries, others - compute.MaxQueries}; !slices.Equal(c.searches, want) {
		t.Errorf("searches of %v queries, want %v", c.searches, want)
	}
	c.err = errors.New("lost")
	if _, err := x.asked.ask(t.Context(), compute.Query{Vector: []float32{0, 1, 0}, K: 1}); !errors.Is(err, c.err) {
		t.Errorf("of a device that failed: %v", err)
	}
}

// TestRetrieveOnDevice: a model whose products are bf16 retrieves on a device that can.
func TestRetrieveOnDevice(t *testing.T) {
	dev := ref.Retrieving(ref.New())
	for _, name := range fixtures {
		m := open(t, fixtureDir(name), dev, "bf16")
		if !m.cfg.Retrieval {
			continue
		}
		if m.index.vectors == nil || m.index.blocks != nil {
			t.Errorf("%s: the device has no vectors", name)
		}
		slow := open(t, fixtureDir(name), ref.New(), "bf16")
		state := make([]float32, m.cfg.Hidden)
		for i := range state {
			state[i] = float32(math.Sin(float64(3 * i)))
		}
		got, _, err := m.Retrieve(t.Context(), state, m.cfg.Items, 0, []int32{2}, nil)
		if err != nil {
			t.Fatal(err)
		}
		want, _, err := slow.Retrieve(t.Context(), state, m.cfg.Items, 0, []int32{2}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != len(want) {
			t.Fatalf("%s: %d items, want %d", name, len(got), len(want))
		}
		scores := map[int32]float32{}
		for _, f := range want {
			scores[f.Item] = f.Score
		}
		for i, f := range got {
			if i > 0 && worse(got[i-1], f) {
				t.Errorf("%s: %v before %v", name, got[i-1], f)
			}
			if w, ok := scores[f.Item]; !ok || math.Abs(float64(f.Score-w)) > 0.05*max(1, math.Abs(float64(w))) {
				t.Errorf("%s: item %d scores %v, want about %v", name, f.Item, f.Score, w)
			}
		}
	}
}

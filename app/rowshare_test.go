package app

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"grebe/alloc"
	"grebe/app/divide"
	"grebe/compute"
	"grebe/compute/computetest"
	"grebe/compute/cpu"
	"grebe/evict"
	"grebe/internal/config"
	"grebe/kv"
	"grebe/plan"
	"grebe/pool"
)

// paged is the host's part of a cache of rows in a device's memory: pages and the directory.
type paged struct {
	mu    sync.Mutex
	page  int
	dir   *evict.Directory
	pages []compute.Block
	fail  error // of Shrink
}

func newPaged(page, most int) *paged {
	return &paged{page: page, dir: evict.NewDirectory(1<<20, most, 2048, 2)}
}

func (c *paged) PageBytes() int { return c.page }
func (c *paged) Grow(pages []compute.Block) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range pages {
		if b.Size < c.page {
			return n, fmt.Errorf("a page of %d bytes", b.Size)
		}
		if _, ok := c.dir.Open(); !ok {
			return n, nil
		}
		c.pages = append(c.pages, b)
		n++
	}
	return n, nil
}
func (c *paged) Shrink(n int) ([]compute.Block, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	keep := len(c.pages) - min(n, len(c.pages))
	gone := slices.Clone(c.pages[keep:])
	for range gone {
		c.dir.Shut()
	}
	c.pages = c.pages[:keep]
	return gone, c.fail
}
func (c *paged) Changed([]int32)                     {}
func (c *paged) Prefetch([]int32, compute.RowSource) {}
func (c *paged) Stats() compute.RowStats             { return compute.RowStats{} }
func (c *paged) Close() error                        { return nil }

// copies counts what is done to the bytes of a memory.
type copies struct {
	compute.Memory
	n *atomic.Int64
}

func (m copies) Write(b compute.Block, src []byte) error { m.n.Add(1); return m.Memory.Write(b, src) }
func (m copies) Read(dst []byte, b compute.Block) error  { m.n.Add(1); return m.Memory.Read(dst, b) }
func (m copies) Copy(moves ...compute.Move) error        { m.n.Add(1); return m.Memory.Copy(moves...) }

// far is a pool in memory that the host cannot see, with KV and cached rows.
type far struct {
	pool   *pool.Pool
	store  *kv.Store
	cache  *paged
	held   *rowPages
	copied atomic.Int64
}

func newFar(tb testing.TB, bytes int64, page, rowPage int) *far {
	tb.Helper()
	host, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		tb.Fatal(err)
	}
	device := computetest.Far(host, false)
	f := &far{}
	p, err := pool.Over(copies{device.Memory(), &f.copied}, bytes, page)
	if err != nil {
		tb.Fatal(err)
	}
	p.SetBoundary(0.5)
	f.pool = p
	f.store = kv.New(compute.Shape{Layers: 2, Heads: 2, KVHeads: 2, HeadDim: 32, Hidden: 64, KV: compute.F32}, p)
	most := int(0.9 * float64(bytes) / float64(rowPage))
	f.cache = newPaged(rowPage, most)
	f.held = &rowPages{cache: f.cache, pool: p.For(pool.Embeddings), rowBytes: rowPage / 2048, most: most}
	tb.Cleanup(func() {
		f.store.Close()
		f.held.free()
		if err := errors.Join(p.Close(), device.Close()); err != nil {
			tb.Error(err)
		}
	})
	return f
}

// use has a user's KV in the pool.
func (f *far) use(user uint64, tokens int) error {
	key := kv.KeyOf(plan.Key{}, nil, fmt.Sprint(user))
	e, _ := f.store.Get(key)
	if e == nil {
		var err error
		if e, err = f.store.Reserve(kv.Chain, tokens, nil); err != nil {
			return err
		}
		f.store.Publish(plan.User, key, make([]int32, e.Len()), e)
	}
	e.Release()
	return nil
}

// anywhere moves to a random share at each decision.
type anywhere struct{ r *rand.Rand }

func (a anywhere) Decide(o *alloc.Observation) alloc.Decision {
	return alloc.Decision{From: o.Alpha, To: alloc.MinShare + 0.8*a.r.Float64()}
}

// The boundary of a device's memory moves over and over while KV comes and goes: no page is lost, none has two owners,
// both sides stay within their parts, and no byte of KV is read, written or copied.
func TestDevicePagesFollowTheBoundary(t *testing.T) {
	f := newFar(t, 16<<20, 4<<10, 64<<10)
	d, err := divide.New(divide.Config{Pool: f.pool, Rows: f.held, KV: f.store, Memory: "device",
		Controller: anywhere{rand.New(rand.NewPCG(7, 7))}}, 0.5)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(8, 8))
	grown, shrunk := 0, 0
	for range 200 {
		for range 20 {
			if err := f.use(r.Uint64N(400), 64+r.IntN(400)); err != nil {
				t.Fatal(err)
			}
		}
		before, _, _ := f.held.Slabs()
		copied := f.copied.Load()
		to := d.Step().To
		if n := f.copied.Load() - copied; n != 0 {
			t.Fatalf("a move made %d copies", n)
		}
		now, _, most := f.held.Slabs()
		grown, shrunk = grown+max(now-before, 0), shrunk+max(before-now, 0)
		own := f.pool.For(pool.Embeddings).Stats()
		if now != len(f.cache.pages) || own.Used != int64(now)*64<<10 || own.Used > int64(to*(16<<20)) || now > most {
			t.Fatalf("share %.3f: %d pages, the cache has %d, %d of %d bytes are used", to, now, len(f.cache.pages), own.Used,
				own.Total)
		}
		if over := f.pool.Over(); over != 0 {
			t.Fatalf("KV has %d bytes too many", over)
		}
		seen := map[uintptr]bool{}
		for _, b := range f.cache.pages {
			if seen[uintptr(b.Addr)] {
				t.Fatal("a page is there twice")
			}
			seen[uintptr(b.Addr)] = true
		}
	}
	if grown < 1000 || shrunk < 1000 {
		t.Errorf("%d pages came and %d went", grown, shrunk)
	}
}

// Pages that a failed device may still use are not given to KV before the cache is closed.
func TestStuckPagesStay(t *testing.T) {
	f := newFar(t, 4<<20, 4<<10, 64<<10)
	if n, err := f.held.Grow(100); n != 32 || !errors.Is(err, pool.ErrFull) {
		t.Fatalf("%d pages, %v: want the 32 of the side", n, err)
	}
	f.cache.fail = errors.New("lost")
	if n := f.held.Shrink(20); n != pagesAtOnce {
		t.Errorf("%d pages went, want those of one step", n)
	}
	if used := f.pool.For(pool.Embeddings).Stats().Used; used != 2<<20 {
		t.Errorf("%d bytes are used, want that all 2 MiB are", used)
	}
}

// A checkpoint's device memory is divided by a controller if not all rows have room, and answers do not depend on it.
func TestTheBoundaryOfADevice(t *testing.T) {
	path := "../testdata/fixtures/hstu/absolute"
	setting := func(rows, boundary string) *App {
		t.Helper()
		more := []config.Setting{{Path: "device", Value: "cpu"}, {Path: "models[0].device_memory", Value: "16MiB"},
			{Path: "models[0].device_rows", Value: rows}}
		if boundary != "" {
			more = append(more, config.Setting{Path: "cache.device_boundary", Value: boundary})
		}
		cfg := tableOfEvents(t, path, "4MiB", more...)
		a, err := Load(t.Context(), cfg, Options{Log: slog.New(slog.DiscardHandler), Open: openApart})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		})
		return a
	}
	if m := setting("1%", "").loaded.of("m")[0].memory; m.deviceDivider != nil || m.shared.divider == nil {
		t.Error("without being told, the boundary of the device's memory moves, or that of the host's does not")
	}
	if a := setting("25%", "climb"); a.loaded.of("m")[0].memory.deviceDivider != nil {
		t.Error("all rows have room, and the boundary moves")
	}
	plain, moving := setting("0", "climb"), setting("1%", "climb")
	m := moving.loaded.of("m")[0].memory
	if m.deviceDivider == nil {
		t.Fatal("no controller")
	}
	if b := m.pages.Boundary(); b < 0.09 || b > 0.11 {
		t.Errorf("the boundary is at %.3f, want the least that a controller may choose", b)
	}
	for i := range 12 {
		want, err1 := ranked(t.Context(), plain, visit(i%4, i/4))
		got, err2 := ranked(t.Context(), moving, visit(i%4, i/4))
		if err1 != nil || err2 != nil || want != got {
			t.Errorf("user %d: %q (%v), without a cache %q (%v)", i, got, err2, want, err1)
		}
		m.deviceDivider.Step()
	}
	families, err := moving.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, f := range families {
		for _, x := range f.Metric {
			labels := ""
			for _, l := range x.Label {
				labels += " " + l.GetValue()
			}
			found[f.GetName()+labels] = x.GetGauge().GetValue() + x.GetCounter().GetValue()
		}
	}
	for _, name := range []string{"grebe_pool_boundary device m", "grebe_pool_hit_ratio device m rows",
		"grebe_pool_decisions_total usual device m", "grebe_pool_boundary host m"} {
		if found[name] == 0 {
			t.Errorf("%s is %v, or there is none", name, found[name])
		}
	}
}

// BenchmarkDeviceBoundary moves 4 % of a device's memory to rows and back, with no KV to evict.
func BenchmarkDeviceBoundary(b *testing.B) {
	for _, size := range []int64{1 << 30, 8 << 30} {
		b.Run(fmt.Sprint(size>>30, "GiB"), func(b *testing.B) {
			f := newFar(b, size, 64<<10, 1<<20)
			to, times := 0.46, []time.Duration{}
			for b.Loop() {
				begin := time.Now()
				pages := f.pool.SetBoundary(to)
				f.store.Trim()
				now, _, _ := f.held.Slabs()
				if want := pages * (64 << 10) / f.held.SlabBytes(); want < now {
					f.held.Shrink(now - want)
				} else if _, err := f.held.Grow(want - now); err != nil {
					b.Fatal(err)
				}
				times = append(times, time.Since(begin))
				to = 0.96 - to
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2].Nanoseconds())/1e3, "µs/move")
			b.ReportMetric(float64(len(f.cache.pages))*0.04/0.48, "pages/move")
		})
	}
}

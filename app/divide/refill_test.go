package divide

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"grebe/embed"
	"grebe/pool"
)

// linked is a store behind a link, which fetches share.
type linked struct {
	mu    sync.Mutex
	free  time.Time // when the link has moved what was asked for
	rate  float64   // bytes per second
	trip  time.Duration
	rows  int64 // that were moved
	gone  map[uint64]bool
	fails bool
}

func (s *linked) Gather(ctx context.Context, keys []uint64, rows []byte, found []bool) error {
	s.mu.Lock()
	now := time.Now()
	if s.free.Before(now) {
		s.free = now
	}
	s.free = s.free.Add(time.Duration(float64(len(keys)*rowBytes) / s.rate * 1e9))
	s.rows += int64(len(keys))
	wait, fails := s.free.Sub(now)+s.trip, s.fails
	s.mu.Unlock()
	time.Sleep(wait)
	if fails {
		return embed.ErrUnavailable
	}
	for i, k := range keys {
		binary.LittleEndian.PutUint64(rows[i*rowBytes:], k)
		found[i] = !s.gone[k]
	}
	return nil
}

func (s *linked) Put(context.Context, []uint64, []byte) error { return nil }
func (s *linked) Delete(context.Context, []uint64) error      { return nil }
func (s *linked) RowBytes() int                               { return rowBytes }
func (s *linked) Close() error                                { return nil }

// node is a table behind a link, its cache, and a refiller or none.
type node struct {
	t        *testing.T
	store    *linked
	pool     *pool.Pool
	cache    *embed.Cache
	table    *embed.Table
	refiller *Refiller
	stop     func()

	r    *rand.Rand
	zipf []float64 // sums
	out  []byte
	last time.Time
}

const (
	cacheRows = 12000
	hotRows   = 10000
	batchKeys = 64
	every     = 10 * time.Millisecond
)

func newNode(t *testing.T, policy, file string, refills bool) *node {
	t.Helper()
	p, err := pool.New(cacheRows*rowBytes+64<<10, 32<<10)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, pool: p, store: &linked{rate: 20e6, trip: 200 * time.Microsecond, gone: map[uint64]bool{}},
		r: rand.New(rand.NewPCG(3, 4)), out: make([]byte, batchKeys*rowBytes)}
	if n.cache, err = embed.NewCache(p, embed.Config{Rows: cacheRows, RowBytes: rowBytes, Policy: policy}); err != nil {
		t.Fatal(err)
	}
	if n.table, err = embed.NewTable(n.store, n.cache, embed.TableConfig{Timeout: time.Second}); err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for i := range hotRows {
		sum += math.Pow(float64(i+1), -0.9)
		n.zipf = append(n.zipf, sum)
	}
	n.last, n.stop = time.Now(), func() {}
	if refills {
		n.refiller = NewRefiller(RefillConfig{Table: n.table, RowBytes: rowBytes, Rows: n.cache.Rows, Most: cacheRows,
			Name: "items", File: file})
		n.table.Watch(n.refiller.Gathered)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { n.refiller.Run(ctx) })
		n.stop = func() { cancel(); wg.Wait() }
	}
	return n
}

func (n *node) close() {
	n.t.Helper()
	n.stop()
	n.cache.Close()
	if err := n.pool.Close(); err != nil {
		n.t.Error(err)
	}
}

// key draws one of a hot set, or, one time in 20, one that nobody asks for again.
func (n *node) key(set uint64) uint64 {
	if n.r.IntN(20) == 0 {
		return 1<<40 + n.r.Uint64N(1<<40)
	}
	i, _ := slices.BinarySearch(n.zipf, n.r.Float64()*n.zipf[hotRows-1])
	return set<<32 + uint64(i) + 1
}

// phase is what a time with one hot set was like.
type phase struct {
	shares    []float64 // of hits, per half second
	latencies []float64 // milliseconds of batches
	rows      int64     // that the link moved
}

// serve has batches come for some time. One that comes while another is served waits.
func (n *node) serve(set uint64, lasts time.Duration) *phase {
	out, moved := &phase{}, n.store.rows
	keys := make([]uint64, batchKeys)
	for end := n.last.Add(lasts); n.last.Before(end); {
		hits, lookups := 0, 0
		for half := n.last.Add(time.Second / 2); n.last.Before(half); n.last = n.last.Add(every) {
			time.Sleep(time.Until(n.last))
			for i := range keys {
				keys[i] = n.key(set)
			}
			g := n.table.Gather(n.t.Context(), keys, n.out)
			hits, lookups = hits+g.Hits, lookups+len(keys)
			out.latencies = append(out.latencies, float64(time.Since(n.last))/1e6)
		}
		out.shares = append(out.shares, float64(hits)/float64(lookups))
	}
	out.rows = n.store.rows - moved
	return out
}

// steady is the share of hits of the last 20 s.
func (p *phase) steady() float64 { return mean(p.shares[len(p.shares)-40:]) }

func mean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

// back is the time until the share of hits was 95 % of its steady value, in seconds.
func (p *phase) back(steady float64) float64 {
	for i, s := range p.shares {
		if s >= 0.95*steady {
			return float64(i+1) / 2
		}
	}
	return math.Inf(1)
}

func p99(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)*99/100]
}

// compare fails unless refilling halves the time until the cache is warm, at no price for requests.
func compare(t *testing.T, what string, with, without *phase, steady float64) {
	t.Helper()
	on, off := with.back(steady), without.back(steady)
	a, b := mean(with.latencies), mean(without.latencies)
	t.Logf("%s: 95 %% of the steady share of hits (%.3f) after %.1f s with refill, %.1f s without; "+
		"latency %.3f and %.3f ms, P99 %.3f and %.3f ms; the link moved %d and %d rows",
		what, steady, on, off, a, b, p99(with.latencies),
		p99(without.latencies), with.rows, without.rows)
	if on > 0.5*off {
		t.Errorf("%s: warm after %.1f s with refill and %.1f s without, want half", what, on, off)
	}
	if a > 1.02*b || p99(with.latencies) > 1.02*p99(without.latencies) {
		t.Errorf("%s: latency %.3f ms with refill and %.3f ms without, P99 %.3f and %.3f ms", what, a, b, p99(with.latencies),
			p99(without.latencies))
	}
}

// After a restart the rows that were hot before it are fetched ahead of requests. Rows that were deleted meanwhile are
// not there again.
func TestRefillAfterARestart(t *testing.T) {
	for _, policy := range []string{"lru", "default"} {
		file := filepath.Join(t.TempDir(), "tables", "items.hot")
		var steady float64
		run := func(refills bool) (p *phase) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, policy, file, true)
				steady = n.serve(1, 2*time.Minute).steady()
				n.close()
				n = newNode(t, policy, file, refills)
				n.store.gone[1<<32+500] = true
				p = n.serve(1, time.Minute)
				if refills && (n.refiller.count.gone == 0 || n.cache.Get(1<<32+500, n.out) ||
					n.refiller.count.fetched < hotRows/2) {
					t.Errorf("%d rows were fetched ahead, %d were gone", n.refiller.count.fetched, n.refiller.count.gone)
				}
				n.close()
			})
			return p
		}
		compare(t, "a restart, "+policy, run(true), run(false), steady)
	}
}

// When rows become hot again that were not for minutes, the others that left with them are fetched ahead of requests.
func TestRefillWhenTheHotSetReturns(t *testing.T) {
	var steady float64
	run := func(refills bool) (p *phase) {
		synctest.Test(t, func(t *testing.T) {
			n := newNode(t, "lru", "", refills)
			steady = n.serve(1, 3*time.Minute).steady()
			n.serve(2, 4*time.Minute)
			p = n.serve(1, time.Minute)
			n.close()
		})
		return p
	}
	compare(t, "a shift back", run(true), run(false), steady)
}

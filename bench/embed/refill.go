package embed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"grebe/app/divide"
	table "grebe/embed"
)

// Refill compares a cache that is filled only by requests with one that is also filled ahead of them, behind links of
// their own and with the same requests.
type Refill struct {
	After  string  `json:"after"` // a restart, or a shift back to rows that were hot before
	Policy string  `json:"policy"`
	Steady float64 `json:"steady_hit_rate"`
	With   Warming `json:"with"`
	None   Warming `json:"without"`
}

// Warming is how a cache got warm.
type Warming struct {
	Seconds float64 `json:"seconds"` // until 95 % of the steady hit rate; +Inf if it never was
	Mean    float64 `json:"mean_ms"` // latency of batches
	P99     float64 `json:"p99_ms"`
	Rows    int64   `json:"link_rows"`   // that the link moved
	Ahead   int64   `json:"ahead_rows"`  // of these, ahead of requests
	Bytes   int64   `json:"ahead_bytes"` // of these rows
}

const (
	refillCache = 12_000 // rows
	refillHot   = 10_000
	refillBatch = 64
	refillEvery = 10 * time.Millisecond
	refillLink  = 20e6 // bytes per second
	refillTrip  = 200 * time.Microsecond
	refillSkew  = 0.9
	refillOnce  = 20 // one look-up in so many is for a row that is never asked for again
)

// link is a store behind a link, which fetches share.
type link struct {
	mu    sync.Mutex
	free  time.Time // when the link has moved what was asked for
	rows  int64     // that were moved
	gone  map[uint64]bool
	fails bool
}

func (s *link) Gather(_ context.Context, keys []uint64, rows []byte, found []bool) error {
	s.mu.Lock()
	now := time.Now()
	if s.free.Before(now) {
		s.free = now
	}
	s.free = s.free.Add(time.Duration(float64(len(keys)*rowBytes) / refillLink * 1e9))
	s.rows += int64(len(keys))
	wait, fails := s.free.Sub(now)+refillTrip, s.fails
	s.mu.Unlock()
	time.Sleep(wait)
	if fails {
		return table.ErrUnavailable
	}
	for i, k := range keys {
		binary.LittleEndian.PutUint64(rows[i*rowBytes:], k)
		found[i] = !s.gone[k]
	}
	return nil
}

func (s *link) Put(context.Context, []uint64, []byte) error { return nil }
func (s *link) Delete(context.Context, []uint64) error      { return nil }
func (s *link) RowBytes() int                               { return rowBytes }
func (s *link) Close() error                                { return nil }

// warmer is a table behind a link, its cache, and a refiller or none.
type warmer struct {
	store    *link
	cache    *table.Cache
	table    *table.Table
	refiller *divide.Refiller // nil: none
	end      []func()

	draw *rand.Rand
	zipf []float64 // sums
	out  []byte
	last time.Time
}

func newWarmer(policy, file string, refills bool, seed uint64) (*warmer, error) {
	n := &warmer{store: &link{gone: map[uint64]bool{}}, draw: rand.New(rand.NewPCG(seed, 4)),
		out: make([]byte, refillBatch*rowBytes), last: time.Now()}
	cache, end, err := newCache(refillCache, rowBytes, policy)
	if err != nil {
		return nil, err
	}
	n.cache, n.end = cache, append(n.end, end)
	if n.table, err = table.NewTable(n.store, n.cache, table.TableConfig{Timeout: time.Second}); err != nil {
		return nil, err
	}
	sum := 0.0
	for i := range refillHot {
		sum += math.Pow(float64(i+1), -refillSkew)
		n.zipf = append(n.zipf, sum)
	}
	if !refills {
		return n, nil
	}
	n.refiller = divide.NewRefiller(divide.RefillConfig{Table: n.table, RowBytes: rowBytes, Rows: n.cache.Rows,
		Most: refillCache, Name: "rows", File: file})
	n.table.Watch(n.refiller.Gathered)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { n.refiller.Run(ctx) })
	n.end = append(n.end, func() { stop(); running.Wait() })
	return n, nil
}

func (n *warmer) close() {
	for _, end := range slices.Backward(n.end) {
		end()
	}
}

// key draws one of a hot set, or one that nobody asks for again.
func (n *warmer) key(set uint64) uint64 {
	if n.draw.IntN(refillOnce) == 0 {
		return 1<<40 + n.draw.Uint64N(1<<40)
	}
	i, _ := slices.BinarySearch(n.zipf, n.draw.Float64()*n.zipf[refillHot-1])
	return set<<32 + uint64(i) + 1
}

// stretch is a time with one hot set.
type stretch struct {
	shares    []float64 // of hits, per half second
	latencies []float64 // milliseconds of batches
	rows      int64     // that the link moved
	ahead     divide.RefillStats
}

// serve has batches come for some time. One that comes while another is served waits.
func (n *warmer) serve(ctx context.Context, set uint64, lasts time.Duration) *stretch {
	out, moved := &stretch{}, n.store.rows
	keys := make([]uint64, refillBatch)
	for end := n.last.Add(lasts); n.last.Before(end) && ctx.Err() == nil; {
		hits, lookups := 0, 0
		for half := n.last.Add(time.Second / 2); n.last.Before(half); n.last = n.last.Add(refillEvery) {
			time.Sleep(time.Until(n.last))
			for i := range keys {
				keys[i] = n.key(set)
			}
			g := n.table.Gather(ctx, keys, n.out)
			hits, lookups = hits+g.Hits, lookups+len(keys)
			out.latencies = append(out.latencies, float64(time.Since(n.last))/1e6)
		}
		out.shares = append(out.shares, float64(hits)/float64(lookups))
	}
	n.store.mu.Lock()
	out.rows = n.store.rows - moved
	n.store.mu.Unlock()
	if n.refiller != nil {
		out.ahead = n.refiller.Stats()
	}
	return out
}

// steady is the share of hits of the last 20 s.
func (s *stretch) steady() float64 { return mean(s.shares[max(0, len(s.shares)-40):]) }

func mean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(max(len(v), 1))
}

// warming sums up a stretch, given the steady share of hits.
func (s *stretch) warming(steady float64) Warming {
	w := Warming{Seconds: math.Inf(1), Mean: mean(s.latencies), Rows: s.rows, Ahead: s.ahead.Fetched, Bytes: s.ahead.Bytes}
	sorted := slices.Sorted(slices.Values(s.latencies))
	w.P99 = sorted[len(sorted)*99/100]
	for i, share := range s.shares {
		if share >= 0.95*steady {
			w.Seconds = float64(i+1) / 2
			break
		}
	}
	return w
}

// pair runs a node with refills and one without, at the same time and with the same requests.
func pair(run func(refills bool) (steady float64, s *stretch, err error)) (r Refill, err error) {
	var both sync.WaitGroup
	var stretches [2]*stretch
	var errs [2]error
	for i, refills := range []bool{true, false} {
		both.Go(func() {
			var steady float64
			if steady, stretches[i], errs[i] = run(refills); !refills {
				r.Steady = steady
			}
		})
	}
	both.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return r, err
	}
	r.With, r.None = stretches[0].warming(r.Steady), stretches[1].warming(r.Steady)
	return r, nil
}

// restarts has nodes restart that were warm.
func restarts(ctx context.Context, policy, dir string, warm, after time.Duration, seed uint64) (Refill, error) {
	r, err := pair(func(refills bool) (float64, *stretch, error) {
		file := filepath.Join(dir, fmt.Sprint(policy, refills))
		n, err := newWarmer(policy, file, refills, seed)
		if err != nil {
			return 0, nil, err
		}
		steady := n.serve(ctx, 1, warm).steady()
		n.close()
		if n, err = newWarmer(policy, file, refills, seed+1); err != nil {
			return 0, nil, err
		}
		defer n.close()
		return steady, n.serve(ctx, 1, after), ctx.Err()
	})
	r.After, r.Policy = "restart", policy
	return r, err
}

// returns has a hot set come back after another one.
func returns(ctx context.Context, policy string, first, second, after time.Duration, seed uint64) (Refill, error) {
	r, err := pair(func(refills bool) (float64, *stretch, error) {
		n, err := newWarmer(policy, "", refills, seed)
		if err != nil {
			return 0, nil, err
		}
		defer n.close()
		steady := n.serve(ctx, 1, first).steady()
		n.serve(ctx, 2, second)
		return steady, n.serve(ctx, 1, after), ctx.Err()
	})
	r.After, r.Policy = "shift back", policy
	return r, err
}

// refills measures both, in real time.
func (o *Options) refills(ctx context.Context, p *printer) ([]Refill, error) {
	dir, err := os.MkdirTemp("", "grebe-refill")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	p.printf("%.0f look-ups/s of %d rows, Zipf %.1f, a cache of %d, a link of %.0f MB/s; "+
		"time until 95 %% of the steady hit rate\n\n", refillBatch/refillEvery.Seconds(), refillHot, refillSkew, refillCache,
		refillLink/1e6)
	p.printf("%-10s %-8s %7s %18s %22s %22s %12s\n", "after", "policy", "steady", "with and without s", "mean ms",
		"P99 ms", "rows ahead")
	var out []Refill
	for _, policy := range []string{"lru", "default"} {
		r, err := restarts(ctx, policy, dir, 40*time.Second, 20*time.Second, o.Seed)
		if err != nil {
			return nil, err
		}
		p.refill(&r)
		out = append(out, r)
	}
	r, err := returns(ctx, "lru", 70*time.Second, 130*time.Second, 20*time.Second, o.Seed)
	if err != nil {
		return nil, err
	}
	p.refill(&r)
	return append(out, r), nil
}

func (p *printer) refill(r *Refill) {
	p.printf("%-10s %-8s %6.1f%% %8.1f %9.1f %11.3f %10.3f %11.3f %10.3f %12d\n", r.After, r.Policy, 100*r.Steady,
		r.With.Seconds, r.None.Seconds, r.With.Mean, r.None.Mean, r.With.P99, r.None.P99, r.With.Ahead)
}

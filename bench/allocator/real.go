package allocator

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"grebe/alloc"
	"grebe/app/divide"
	"grebe/bench/allocator/smart"
	"grebe/bench/report"
	"grebe/compute"
	"grebe/embed"
	"grebe/kv"
	"grebe/plan"
	"grebe/pool"
	"grebe/workload/regime"
)

// Real is a small workload served in real time on this machine's memory, through the caches of the server.
type Real struct {
	Controller string  `json:"controller"`
	P99        float64 `json:"p99"` // milliseconds
	Mean       float64 `json:"mean"`
	KVHit      float64 `json:"kv_hit"`
	RowHit     float64 `json:"row_hit"`
	Alpha      float64 `json:"alpha"` // at the end
	Requests   int     `json:"requests"`
}

const (
	realPool    = 192 << 20
	realPage    = 32 << 10
	realRow     = 512
	realSpeed   = 5.0 // seconds of the workload per second
	realEpochs  = 20
	realWarm    = 4
	realEvent   = 1.0 // microseconds of computing per event that is not cached
	realMissing = 1.0 // microseconds to fetch a row
)

// realSpec has hot users in few epochs and in many: what is best changes half-way.
func realSpec() regime.Spec {
	s := regime.Spec{
		Name: "real", Seed: 9001, Rate: 16, Base: 0.2, Lift: 0.5, MinEvents: 1000, MaxEvents: 3000, Gap: 3, Spread: 0.3,
		Session:   20,
		NewEvents: 4, Candidates: 20, Tables: 2, Grains: 400_000, Grain: 1, Skew: 1.05, Hot: make([]float64, realEpochs),
	}
	for i := range s.Hot {
		s.Hot[i] = 0.2
		if i >= (realEpochs+realWarm)/2 {
			s.Hot[i] = 0.5
		}
	}
	return s
}

// slowStore has every row, each after a while.
type slowStore struct{ embed.Store }

func (slowStore) RowBytes() int { return realRow }

func (slowStore) Gather(_ context.Context, keys []uint64, rows []byte, found []bool) error {
	spin(int(realMissing * float64(len(keys))))
	for i, k := range keys {
		binary.LittleEndian.PutUint64(rows[i*realRow:], k)
		found[i] = true
	}
	return nil
}

// realNode serves one request after the other.
type realNode struct {
	spec    regime.Spec
	stream  *regime.Stream
	store   *kv.Store
	table   *embed.Table
	divider *divide.Divider
	grains  []int32
	keys    []uint64
	out     []byte
	hits    int
	got     embed.Gathered
	looked  int
	rowHits int
}

func realRuns(ctx context.Context) ([]Real, error) {
	policy, err := smart.TrainedPolicy()
	if err != nil {
		return nil, err
	}
	var out []Real
	for _, c := range []struct {
		name       string
		controller alloc.Controller
		alpha      float64
	}{
		{"static 0.1", alloc.Static(0.1), 0.1}, {"static 0.5", alloc.Static(0.5), 0.5},
		{"static 0.9", alloc.Static(0.9), 0.9},
		{"smart", smart.New(policy, smart.Config{SLO: SLO}), start}, {"climb", newClimb(), start},
	} {
		r, err := realRun(ctx, c.controller, c.alpha)
		if err != nil {
			return nil, err
		}
		r.Controller = c.name
		out = append(out, *r)
	}
	return out, nil
}

func realRun(ctx context.Context, c alloc.Controller, alpha float64) (_ *Real, err error) {
	p, err := pool.New(realPool, realPage)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	n := &realNode{spec: realSpec()}
	n.store = kv.New(compute.Shape{Layers: 2, Heads: 2, KVHeads: 2, HeadDim: 64, Hidden: 128, KV: compute.BF16}, p)
	defer n.store.Close()
	p.SetBoundary(alloc.MinShare)
	rows, err := embed.NewCache(p.For(pool.Embeddings),
		embed.Config{Rows: realPool / 12 / realRow, MaxRows: realPool / realRow, RowBytes: realRow, Policy: "lru"})
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	if n.table, err = embed.NewTable(slowStore{}, rows, embed.TableConfig{}); err != nil {
		return nil, err
	}
	n.divider, err = divide.New(divide.Config{Pool: p, Rows: rows, KV: n.store, Controller: c,
		SLO: SLO * time.Millisecond}, alpha)
	if err != nil {
		return nil, err
	}
	if n.stream, err = regime.NewStream(n.spec); err != nil {
		return nil, err
	}
	return n.run(ctx, p)
}

func (n *realNode) run(ctx context.Context, p *pool.Pool) (*Real, error) {
	begin := time.Now()
	epoch := 0
	var lat []float64
	for r, ok := n.stream.Next(); ok; r, ok = n.stream.Next() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		due := begin.Add(time.Duration(r.At / realSpeed * float64(time.Second)))
		for int(r.At/regime.EpochSeconds) > epoch {
			epoch++
			n.divider.Step()
			if epoch == realWarm {
				n.hits, n.looked, n.rowHits = 0, 0, 0
			}
		}
		for time.Now().Before(due) {
			if !n.divider.Fill() {
				time.Sleep(time.Until(due))
			}
		}
		if err := n.serve(ctx, &r, due); err != nil {
			return nil, err
		}
		if epoch >= realWarm {
			lat = append(lat, float64(time.Since(due).Microseconds())/1e3)
		}
	}
	slices.Sort(lat)
	return &Real{
		P99: report.Percentile(lat, 99), Mean: average(lat), Requests: len(lat), Alpha: p.Boundary(),
		KVHit: float64(n.hits) / float64(len(lat)), RowHit: float64(n.rowHits) / float64(max(n.looked, 1)),
	}, nil
}

func (n *realNode) serve(ctx context.Context, r *regime.Request, due time.Time) error {
	var id [8]byte
	binary.LittleEndian.PutUint64(id[:], r.User)
	key := kv.KeyOf(plan.Key{}, nil, string(id[:]))
	e, _ := n.store.Get(key)
	cached := 0
	if e != nil {
		cached = e.Len()
		n.hits++
	}
	n.grains = n.stream.AppendRows(n.grains[:0], r, cached)
	n.keys = n.keys[:0]
	for _, g := range n.grains {
		n.keys = append(n.keys, (uint64(g)+1)*0x9E3779B97F4A7C15)
	}
	n.out = slices.Grow(n.out[:0], len(n.keys)*realRow)[:len(n.keys)*realRow]
	n.got = n.table.Gather(ctx, n.keys, n.out)
	n.looked += len(n.keys)
	n.rowHits += n.got.Hits
	n.divider.Gathered(n.keys, n.got.Hits, time.Duration(n.got.Asked)*time.Microsecond)
	computed := time.Now()
	spin(int(realEvent * float64(r.Events-cached+n.spec.Candidates)))
	longer, err := n.store.Reserve(kv.Chain, r.Events, e)
	if e != nil {
		e.Release()
	}
	if err != nil {
		return err
	}
	n.store.Publish(plan.User, key, make([]int32, r.Events), longer)
	bytes := int64(r.Events) * 1024
	longer.Release()
	now := time.Now()
	n.divider.Done(divide.Request{
		User: r.User, Events: r.Events, KVBytes: bytes, KVHit: cached > 0, Saved: time.Duration(r.Events) * time.Microsecond,
		Computing: now.Sub(computed), Latency: now.Sub(due),
	})
	return nil
}

// Package divide keeps a pool divided between embeddings and KV as a controller wants it. Requests report what they
// were like. At the end of an epoch the controller decides, and one that watches (alloc.Watcher) after every part of it.
// The boundary then moves and both caches follow: KV evicts what it owns too much of, embeddings take pages or give theirs
// back. New capacity for embeddings is filled in the background, as fast as a governor allows beside demand. Every decision
// is logged with its reasons and counted.
//
// What more memory would have saved is estimated by shadows of both caches (alloc.Shadow), which see one row in 64 and
// every user.
//
// A Divider is safe for concurrent use. Its lock is held while its counts change: never while latencies are sorted, the
// controller decides or learns, pages are moved or rows copied.
//
// Lock order: Divider.turn, then moves, then mu.
package divide

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"grebe/alloc"
	"grebe/pool"
)

// Rows is a cache of embedding rows on the pool's pages: embed.Cache.
type Rows interface {
	RowBytes() int
	SlabBytes() int
	Slabs() (now, least, most int)
	Grow(slabs int) (int, error)
	Shrink(slabs int) int
	Rehome(rows int) (moved int, done bool)
}

// KV is the cache of KV on the pool's pages: kv.Store.
type KV interface {
	// Trim evicts until KV owns no more than it may. False when the rest is in use.
	Trim() bool
}

// Config says what is divided, and how. Pool, Rows, KV and Controller are needed.
type Config struct {
	Pool       *pool.Pool
	Rows       Rows
	KV         KV
	Controller alloc.Controller
	SLO        time.Duration // 30 ms
	Link       float64       // bytes per second at which rows can be fetched, until it was measured; 1e9
	Name       string        // of the model whose memory it is, for metrics
	Above      int64         // bytes of KV that lie elsewhere, before what the pool has
	Share      float64       // of what demand leaves of the link, for filling new capacity; 0.5
	Log        *slog.Logger  // nil: nothing is logged
	Now        func() time.Time
}

// Divider divides one pool.
type Divider struct {
	cfg   Config
	start time.Time

	turn  sync.Mutex // one decision at a time; guards the controller
	spare []float64  // latencies of the last epoch, to be overwritten

	mu       sync.Mutex
	governor alloc.Governor
	rows, kv *alloc.Shadow
	seen     *visits // when users came last
	epoch    epoch
	part     part // of the epoch, as it was at the last glance
	last     alloc.Decision
	lastP99  float64
	lastLate float64
	saves    float64   // milliseconds that a cached row saves: what the last epoch's missed ones took
	filling  bool      // new capacity is not filled yet
	fetched  time.Time // end of the last fetch

	moves sync.Mutex // one move or filling at a time
	count struct{ decisions, recoveries, moved, filled int64 }
}

// epoch is what requests told since the last decision of an epoch.
type epoch struct {
	part
	latencies []float64 // milliseconds, of the first mostSamples
	late      int
	gains     alloc.Gains // but for those since the last glance
}

// part counts from the beginning of an epoch, or what happened since there was another.
type part struct {
	began               time.Time
	requests            int
	hot, kvHits         int
	lookups, lookupHits int
	events              int
	fetching, computing float64 // milliseconds
	linked              float64 // in which something was fetched
}

// since returns what was counted after before was.
func (p part) since(before part) part {
	return part{
		began: before.began, requests: p.requests - before.requests, hot: p.hot - before.hot, kvHits: p.kvHits - before.kvHits,
		lookups: p.lookups - before.lookups, lookupHits: p.lookupHits - before.lookupHits, events: p.events - before.events,
		fetching: p.fetching - before.fetching, computing: p.computing - before.computing, linked: p.linked - before.linked,
	}
}

const (
	watchRows    = 64
	shadowRows   = 1 << 16
	shadowUsers  = 1 << 14
	mostUsers    = 1 << 17 // whose last visit is remembered
	hotWithin    = time.Minute
	mostSamples  = 1 << 16 // latencies of an epoch
	fillRows     = 256     // rows copied at a time
	fillPause    = 2 * time.Millisecond
	defaultSLO   = 30 * time.Millisecond
	defaultLink  = 1e9
	defaultShare = 0.5
)

// New divides the pool at alpha, and moves nothing before the first Step.
func New(cfg Config, alpha float64) (*Divider, error) {
	if cfg.Pool == nil || cfg.Rows == nil || cfg.KV == nil || cfg.Controller == nil {
		return nil, errors.New("divide: a pool, both caches and a controller are needed")
	}
	if cfg.SLO <= 0 {
		cfg.SLO = defaultSLO
	}
	if cfg.Link <= 0 {
		cfg.Link = defaultLink
	}
	if cfg.Share <= 0 {
		cfg.Share = defaultShare
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	d := &Divider{cfg: cfg, start: cfg.Now(), seen: newVisits(mostUsers)}
	d.governor = alloc.Governor{Link: cfg.Link, Share: cfg.Share}
	d.saves = 1e3 * float64(cfg.Rows.RowBytes()) / cfg.Link
	d.rows, d.kv = alloc.NewShadow(watchRows, shadowRows), alloc.NewShadow(1, shadowUsers)
	d.epoch.began, d.part.began = d.start, d.start
	d.last = alloc.Decision{From: alpha, To: alloc.Clip(alpha)}
	d.apply(d.last.To)
	return d, nil
}

// Request is what one request was like.
type Request struct {
	User      uint64 // hash of the user's name; 0: none
	Events    int    // of the history
	KVBytes   int64  // that the user's KV takes
	KVHit     bool
	Saved     time.Duration // computing that a hit in KV saves, or saved
	Computing time.Duration // its part of a batch's
	Latency   time.Duration
}

// Done notes a request that was answered.
func (d *Divider) Done(r Request) {
	now := d.cfg.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	e := &d.epoch
	e.events += r.Events
	e.computing += ms(r.Computing)
	if r.KVHit {
		e.kvHits++
	}
	if r.Latency > d.cfg.SLO {
		e.late++
	}
	e.requests++
	if len(e.latencies) < mostSamples {
		e.latencies = append(e.latencies, ms(r.Latency))
	}
	if r.User == 0 {
		return
	}
	if d.seen.note(r.User, now) {
		e.hot++
	}
	d.kv.Use(r.User, r.KVBytes, ms(r.Saved))
}

// Gathered notes rows that were looked up, by hashes of their keys, how many were cached, and how long the others took.
func (d *Divider) Gathered(keys []uint64, hits int, fetching time.Duration) {
	now := d.cfg.Now()
	row := int64(d.cfg.Rows.RowBytes())
	d.mu.Lock()
	defer d.mu.Unlock()
	e := &d.epoch
	e.lookups += len(keys)
	e.lookupHits += hits
	e.fetching += ms(fetching)
	if fetching > 0 { // requests fetch side by side, and the link is as busy as if one did
		e.linked += ms(min(fetching, max(now.Sub(d.fetched), 0)))
		d.fetched = now
	}
	d.governor.Demand(now.Sub(d.start).Seconds(), int64(len(keys)-hits)*row)
	for _, k := range keys {
		if d.rows.Watches(k) {
			d.rows.Use(k, row, d.saves)
		}
	}
}

func ms(t time.Duration) float64 { return float64(t) / float64(time.Millisecond) }

// Step ends an epoch: it decides and moves.
func (d *Divider) Step() alloc.Decision {
	d.turn.Lock()
	defer d.turn.Unlock()
	o := d.observe()
	dec := d.cfg.Controller.Decide(&o)
	d.mu.Lock()
	d.note(dec)
	d.lastP99, d.lastLate = o.P99, o.Late
	d.mu.Unlock()
	level := slog.LevelInfo
	if o.Requests == 0 && dec.From == dec.To {
		level = slog.LevelDebug // nobody came
	}
	d.explain(level, dec, &o)
	d.apply(dec.To) // also for what was in use the last time
	if l, ok := d.cfg.Controller.(interface{ Learn() }); ok {
		l.Learn()
	}
	return dec
}

// Glance shows the last part of the epoch to a controller that watches, and moves if that wants it. It reports whether it moved.
func (d *Divider) Glance() bool {
	w, ok := d.cfg.Controller.(alloc.Watcher)
	if !ok {
		return false
	}
	d.turn.Lock()
	defer d.turn.Unlock()
	o := d.glimpse()
	dec, moves := w.Glance(&o)
	if !moves {
		return false
	}
	d.mu.Lock()
	d.note(dec)
	d.mu.Unlock()
	d.explain(slog.LevelInfo, dec, &o)
	d.apply(dec.To)
	return true
}

// glimpse sums up what came since the last glance.
func (d *Divider) glimpse() alloc.Observation {
	now := d.cfg.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	gains := alloc.Gains{Emb: d.rows.Take(), KV: d.kv.Take()}
	d.epoch.gains = d.epoch.gains.Plus(&gains)
	o := d.describe(d.epoch.since(d.part), now)
	o.Gains, o.P99, o.Late = gains, d.lastP99, d.lastLate
	d.part = d.epoch.part
	d.part.began = now
	return o
}

// note keeps the books of decisions. Called with the lock held.
func (d *Divider) note(dec alloc.Decision) {
	d.last = dec
	d.count.decisions++
	if dec.Recovery {
		d.count.recoveries++
	}
}

// explain logs a decision and what it was made from.
func (d *Divider) explain(level slog.Level, dec alloc.Decision, o *alloc.Observation) {
	d.cfg.Log.Log(context.Background(), level, "pool: "+dec.String(), "model", d.cfg.Name,
		"hot", round(o.Hot), "kv_hits", round(o.KVHit), "row_hits", round(o.EmbHit), "events", math.Round(o.Events),
		"late", round(o.Late), "p99_ms", round(o.P99), "requests", o.Requests)
}

func round(x float64) float64 { return math.Round(x*1e4) / 1e4 }

// observe sums the epoch up and begins the next. Called with turn held.
func (d *Divider) observe() alloc.Observation {
	now := d.cfg.Now()
	o, latencies := d.cut(now)
	if len(latencies) > 0 {
		slices.Sort(latencies)
		o.P99 = latencies[(len(latencies)*99+99)/100-1]
	}
	d.spare = latencies[:0]
	return o
}

// cut ends the epoch's counts and begins the next. It returns the latencies as they came, and P99 as of the last epoch.
func (d *Divider) cut(now time.Time) (o alloc.Observation, latencies []float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := &d.epoch
	o = d.describe(e.part, now)
	rest := alloc.Gains{Emb: d.rows.Take(), KV: d.kv.Take()}
	o.Gains = e.gains.Plus(&rest)
	o.Late, o.P99 = float64(e.late)/float64(max(e.requests, 1)), d.lastP99
	if misses := e.lookups - e.lookupHits; misses > 0 && e.fetching > 0 {
		d.saves = e.fetching / float64(misses)
	}
	latencies = e.latencies
	*e = epoch{part: part{began: now}, latencies: d.spare}
	d.part = e.part
	return o, latencies
}

// describe says what a part of an epoch was like, but for latencies and gains. Called with the lock held.
func (d *Divider) describe(p part, now time.Time) alloc.Observation {
	n := float64(max(p.requests, 1))
	passed := max(ms(now.Sub(p.began)), 1)
	return alloc.Observation{
		State: alloc.State{
			Hot: float64(p.hot) / n, KVHit: float64(p.kvHits) / n, EmbHit: float64(p.lookupHits) / float64(max(p.lookups, 1)),
			Events: float64(p.events) / n, Alpha: d.last.To,
		},
		Requests: p.requests, LinkLoad: p.linked / passed, GPULoad: p.computing / passed,
	}
}

// apply moves the boundary and has both sides follow.
func (d *Divider) apply(alpha float64) {
	d.moves.Lock()
	defer d.moves.Unlock()
	pages := d.cfg.Pool.SetBoundary(alpha)
	books := d.cfg.Pool.For(pool.Embeddings).Stats()
	slab := d.cfg.Rows.SlabBytes()
	now, _, _ := d.cfg.Rows.Slabs()
	want := pages * books.Page / slab
	moved := 0
	switch {
	case want < now:
		moved = d.cfg.Rows.Shrink(now - want)
	case want > now:
		d.cfg.KV.Trim()
		moved, _ = d.cfg.Rows.Grow(want - now) // the rest when KV has freed it
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count.moved += int64(moved) * int64(slab)
	d.filling = d.filling || want > now
	kv := d.cfg.Pool.For(pool.KV).Stats().Total
	d.rows.Resize(books.Total, books.Total+kv)
	d.kv.Resize(d.cfg.Above+kv, books.Total+kv)
}

// Fill copies rows to new capacity, as many as the governor allows now. False when there is nothing left to do.
func (d *Divider) Fill() bool {
	d.moves.Lock()
	defer d.moves.Unlock()
	d.mu.Lock()
	row := int64(d.cfg.Rows.RowBytes())
	granted := d.governor.Grant(d.cfg.Now().Sub(d.start).Seconds(), fillRows*row)
	filling := d.filling
	d.mu.Unlock()
	if !filling {
		return false
	}
	rows := int(granted / row)
	if rows == 0 {
		return true
	}
	moved, done := d.cfg.Rows.Rehome(rows)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.governor.Spend(int64(moved) * row)
	d.count.filled += int64(moved) * row
	d.filling = !done
	return !done
}

// Run makes a Step per epoch, Glances within it, and fills in between, until ctx is done.
func (d *Divider) Run(ctx context.Context) {
	parts := time.NewTicker(alloc.Epoch * time.Second / alloc.Glances)
	defer parts.Stop()
	fills := time.NewTicker(fillPause)
	defer fills.Stop()
	for n := 1; ; {
		select {
		case <-ctx.Done():
			return
		case <-parts.C:
			moved := d.Glance()
			if n++; n > alloc.Glances {
				n = 1
				d.Step()
				moved = true
			}
			if moved {
				fills.Reset(fillPause)
			}
		case <-fills.C:
			if !d.Fill() {
				fills.Stop()
			}
		}
	}
}

// Describe implements prometheus.Collector.
func (d *Divider) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(d, ch) }

var (
	boundaryDesc = prometheus.NewDesc("grebe_pool_boundary", "Share of the pool that embeddings may own.", []string{"model"}, nil)
	decisionDesc = prometheus.NewDesc("grebe_pool_decisions_total", "Decisions about the boundary.", []string{"model", "kind"}, nil)
	changeDesc   = prometheus.NewDesc("grebe_pool_change",
		"Change of the share that the last decision made, by the part that wanted it.", []string{"model", "part"}, nil)
	movedDesc  = prometheus.NewDesc("grebe_pool_moved_bytes_total", "Bytes of pages that changed sides.", []string{"model"}, nil)
	filledDesc = prometheus.NewDesc("grebe_pool_filled_bytes_total",
		"Bytes of rows copied to new capacity in the background.", []string{"model"}, nil)
)

// Collect implements prometheus.Collector.
func (d *Divider) Collect(ch chan<- prometheus.Metric) {
	d.mu.Lock()
	last, count := d.last, d.count
	d.mu.Unlock()
	gauge := func(desc *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, append([]string{d.cfg.Name}, labels...)...)
	}
	total := func(desc *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(v), append([]string{d.cfg.Name}, labels...)...)
	}
	gauge(boundaryDesc, last.To)
	gauge(changeDesc, last.Base, "policy")
	gauge(changeDesc, last.Residual, "adapter")
	gauge(changeDesc, last.To-last.From, "all")
	total(decisionDesc, count.decisions-count.recoveries, "usual")
	total(decisionDesc, count.recoveries, "recovery")
	total(movedDesc, count.moved)
	total(filledDesc, count.filled)
}

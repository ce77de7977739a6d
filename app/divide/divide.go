// Package divide keeps a pool divided between embeddings and KV as a controller decides. Requests report their
// statistics. The controller decides at the end of each epoch; an alloc.Watcher also after each part of one. The
// boundary then moves and both caches follow: KV evicts what exceeds its part, embeddings take pages or give them back.
// Rows that have a new place then are moved there in the background; Config.Grown hears when that is done, and a
// Refiller fetches others. Every decision is logged with its reasons, and counted.
//
// Shadows of both caches (alloc.Shadow) estimate what more memory would have saved. They see one row in 64, and every
// user.
//
// A Divider is safe for concurrent use. It holds mu only while its counts change: never while latencies are sorted, the
// controller decides or learns, pages move or rows are copied.
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

	"grebe/alloc"
	"grebe/pool"
)

// Rows is the cache of embedding rows on the pool's pages: embed.Cache.
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
	// Trim evicts until KV is within its part. It returns false if the rest is in use.
	Trim() bool
}

// Config configures a Divider. Pool, Rows, KV and Controller are required.
type Config struct {
	Pool       *pool.Pool
	Rows       Rows
	KV         KV
	Controller alloc.Controller
	SLO        time.Duration  // 30 ms
	Grown      func(rows int) // called when there is room for so many more rows; may be nil
	Name       string         // name of the model that owns the memory, for metrics
	Memory     string         // "host" or "device", for metrics; host
	// Found returns how many rows were looked up since it was called before, and how many of them were cached. It is
	// called once a decision, by one goroutine at a time. nil: Gathered counts them.
	Found func() (lookups, hits int)
	Above int64        // bytes of KV in a faster tier, which fills before the pool
	Log   *slog.Logger // nil: nothing is logged
	Now   func() time.Time
}

// Divider divides one pool.
type Divider struct {
	cfg   Config
	start time.Time

	turn  sync.Mutex // one decision at a time; guards the controller
	spare []float64  // latencies of the last epoch, reused

	mu       sync.Mutex
	rows, kv *alloc.Shadow
	seen     *visits // users' last visits
	epoch    epoch
	part     part // counts of the epoch at the last glance
	last     alloc.Decision
	lastP99  float64
	lastLate float64
	saves    float64   // milliseconds that a cached row saves: what fetching one took in the last epoch
	filling  bool      // rows are not yet in their new places
	grown    int       // rows that there is room for since then
	fetched  time.Time // end of the last fetch

	moves sync.Mutex // one move or filling at a time
	count struct{ decisions, recoveries, moved, filled, moves int64 }
	took  time.Duration     // of all moves
	state alloc.Observation // of the last epoch with requests
}

// epoch counts the requests since the last decision at the end of an epoch.
type epoch struct {
	part
	latencies []float64 // milliseconds, of the first mostSamples requests
	late      int
	gains     alloc.Gains // without those since the last glance
}

// part counts the requests of an epoch since its beginning, or since an earlier part.
type part struct {
	began               time.Time
	requests            int
	hot, kvHits         int
	lookups, lookupHits int
	fetched             int // rows
	events              int
	fetching, computing float64 // milliseconds
	linked              float64 // milliseconds in which the link was busy
}

// since returns the counts of p that came after before.
func (p part) since(before part) part {
	return part{
		began: before.began, requests: p.requests - before.requests, hot: p.hot - before.hot,
		kvHits:  p.kvHits - before.kvHits,
		lookups: p.lookups - before.lookups, lookupHits: p.lookupHits - before.lookupHits, events: p.events - before.events,
		fetched: p.fetched - before.fetched, linked: p.linked - before.linked,
		fetching: p.fetching - before.fetching, computing: p.computing - before.computing,
	}
}

const (
	watchRows    = 64
	shadowRows   = 1 << 16
	shadowUsers  = 1 << 14
	mostUsers    = 1 << 17 // users whose last visit is remembered
	hotWithin    = time.Minute
	mostSamples  = 1 << 16 // latencies kept per epoch
	fillRows     = 256     // rows copied at a time
	fillPause    = 2 * time.Millisecond
	defaultSLO   = 30 * time.Millisecond
	defaultShare = 0.5
)

// New makes a Divider with the boundary at alpha. It moves nothing before the first Step.
func New(cfg Config, alpha float64) (*Divider, error) {
	if cfg.Pool == nil || cfg.Rows == nil || cfg.KV == nil || cfg.Controller == nil {
		return nil, errors.New("divide: a pool, both caches and a controller are needed")
	}
	if cfg.SLO <= 0 {
		cfg.SLO = defaultSLO
	}
	if cfg.Grown == nil {
		cfg.Grown = func(int) {}
	}
	if cfg.Memory == "" {
		cfg.Memory = "host"
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	d := &Divider{cfg: cfg, start: cfg.Now(), seen: newVisits(mostUsers)}
	d.saves = 1e3 * float64(cfg.Rows.RowBytes()) / unmeasured
	d.rows, d.kv = alloc.NewShadow(watchRows, shadowRows), alloc.NewShadow(1, shadowUsers)
	d.epoch.began, d.part.began = d.start, d.start
	d.last = alloc.Decision{From: alpha, To: alloc.Clip(alpha)}
	d.apply(d.last.To)
	return d, nil
}

// Request describes one answered request.
type Request struct {
	User      uint64 // hash of the user's name; 0: none
	Events    int    // in the history
	KVBytes   int64  // size of the user's KV
	KVHit     bool
	Saved     time.Duration // computing that a KV hit saves, or saved
	Computing time.Duration // its share of a batch's computing
	Latency   time.Duration
}

// Done counts an answered request.
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

// Gathered counts rows that were looked up, by the hashes of their keys: how many were cached, and how long it took to
// fetch the others.
func (d *Divider) Gathered(keys []uint64, hits int, fetching time.Duration) {
	d.Looked(keys)
	d.mu.Lock()
	d.found(len(keys), hits)
	d.mu.Unlock()
	d.Fetched(len(keys)-hits, fetching)
}

// Looked shows the ghost of rows the hashes of keys that were looked up.
func (d *Divider) Looked(keys []uint64) {
	row := int64(d.cfg.Rows.RowBytes())
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, k := range keys {
		if d.rows.Watches(k) {
			d.rows.Use(k, row, d.saves)
		}
	}
}

// found counts rows that were looked up: how many there were, and how many were cached. The caller holds mu.
func (d *Divider) found(lookups, hits int) {
	d.epoch.lookups += lookups
	d.epoch.lookupHits += hits
}

// Fetched counts rows that were not cached, and how long it took to fetch them.
func (d *Divider) Fetched(rows int, took time.Duration) {
	now := d.cfg.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	e := &d.epoch
	e.fetched += rows
	e.fetching += ms(took)
	if took > 0 { // concurrent fetches occupy the link only once
		e.linked += ms(min(took, max(now.Sub(d.fetched), 0)))
		d.fetched = now
	}
}

// ask counts the rows that were found since it asked before. The caller holds turn.
func (d *Divider) ask() {
	if d.cfg.Found == nil {
		return
	}
	lookups, hits := d.cfg.Found()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.found(lookups, hits)
}

func ms(t time.Duration) float64 { return float64(t) / float64(time.Millisecond) }

// Step ends an epoch: it asks the controller and moves the boundary.
func (d *Divider) Step() alloc.Decision {
	d.turn.Lock()
	defer d.turn.Unlock()
	o := d.observe()
	dec := d.cfg.Controller.Decide(&o)
	d.mu.Lock()
	d.note(dec)
	d.lastP99, d.lastLate = o.P99, o.Late
	if o.Requests > 0 {
		d.state = o
	}
	d.mu.Unlock()
	level := slog.LevelInfo
	if o.Requests == 0 && dec.From == dec.To {
		level = slog.LevelDebug // no requests
	}
	d.explain(level, dec, &o)
	d.apply(dec.To) // even without a change: something may have been in use the last time
	if l, ok := d.cfg.Controller.(interface{ Learn() }); ok {
		l.Learn()
	}
	return dec
}

// Glance shows a controller that watches the latest part of the epoch, and moves the boundary if it wants to. It
// reports whether it moved.
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

// glimpse sums up the requests since the last glance.
func (d *Divider) glimpse() alloc.Observation {
	d.ask()
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

// note counts a decision. The caller holds mu.
func (d *Divider) note(dec alloc.Decision) {
	d.last = dec
	d.count.decisions++
	if dec.Recovery {
		d.count.recoveries++
	}
}

// explain logs a decision and the observation it was based on.
func (d *Divider) explain(level slog.Level, dec alloc.Decision, o *alloc.Observation) {
	d.cfg.Log.Log(context.Background(), level, "pool: "+dec.String(), "model", d.cfg.Name,
		"hot", round(o.Hot), "kv_hits", round(o.KVHit), "row_hits", round(o.EmbHit), "events", math.Round(o.Events),
		"late", round(o.Late), "p99_ms", round(o.P99), "requests", o.Requests)
}

func round(x float64) float64 { return math.Round(x*1e4) / 1e4 }

// observe sums up the epoch and begins the next. The caller holds turn.
func (d *Divider) observe() alloc.Observation {
	d.ask()
	now := d.cfg.Now()
	o, latencies := d.cut(now)
	if len(latencies) > 0 {
		slices.Sort(latencies)
		o.P99 = latencies[(len(latencies)*99+99)/100-1]
	}
	d.spare = latencies[:0]
	return o
}

// cut ends the epoch's counts and begins the next. It returns the latencies unsorted, and in o the P99 of the previous
// epoch.
func (d *Divider) cut(now time.Time) (o alloc.Observation, latencies []float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := &d.epoch
	o = d.describe(e.part, now)
	rest := alloc.Gains{Emb: d.rows.Take(), KV: d.kv.Take()}
	o.Gains = e.gains.Plus(&rest)
	o.Late, o.P99 = float64(e.late)/float64(max(e.requests, 1)), d.lastP99
	if e.fetched > 0 && e.fetching > 0 {
		d.saves = e.fetching / float64(e.fetched)
	}
	latencies = e.latencies
	*e = epoch{part: part{began: now}, latencies: d.spare}
	d.part = e.part
	return o, latencies
}

// describe returns the observation of a part of an epoch, without latencies and gains. The caller holds mu.
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

// apply moves the boundary and makes both caches follow.
func (d *Divider) apply(alpha float64) {
	d.moves.Lock()
	defer d.moves.Unlock()
	begin := d.cfg.Now()
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
		moved, _ = d.cfg.Rows.Grow(want - now) // the rest follows when KV has freed it
	}
	d.mu.Lock()
	if moved > 0 {
		d.count.moved += int64(moved) * int64(slab)
		d.count.moves++
		d.took += d.cfg.Now().Sub(begin)
	}
	if want > now {
		d.filling = true
		d.grown += moved * slab / d.cfg.Rows.RowBytes()
	}
	d.mu.Unlock()
	kv := d.cfg.Pool.For(pool.KV).Stats().Total
	for !d.resize(books.Total, kv) {
	}
}

// resize has the shadows follow the boundary. It returns false if it is to be called again.
func (d *Divider) resize(rows, kv int64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	first, second := d.rows.Resize(rows, rows+kv), d.kv.Resize(d.cfg.Above+kv, rows+kv)
	return first && second
}

// Fill moves up to fillRows rows to new capacity. It returns false when nothing is left to do.
func (d *Divider) Fill() bool {
	d.moves.Lock()
	defer d.moves.Unlock()
	d.mu.Lock()
	filling := d.filling
	d.mu.Unlock()
	if !filling {
		return false
	}
	moved, done := d.cfg.Rows.Rehome(fillRows)
	d.mu.Lock()
	d.count.filled += int64(moved) * int64(d.cfg.Rows.RowBytes())
	d.filling = !done
	grown := d.grown
	if done {
		d.grown = 0
	}
	d.mu.Unlock()
	if done && grown > 0 {
		d.cfg.Grown(grown)
	}
	return !done
}

// Run calls Step once per epoch, Glance within it, and Fill in between, until ctx ends.
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

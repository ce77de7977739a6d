package divide

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"grebe/alloc"
	"grebe/embed"
	"grebe/internal/durable"
)

// Table is one with a cache, into which rows are fetched ahead of requests: embed.Table.
type Table interface {
	Refill(ctx context.Context, hashes []uint64, shares []float32) embed.Refilled
	Cached(hash uint64) bool
}

// RefillConfig configures a Refiller. Table, RowBytes, Rows and Most are required.
type RefillConfig struct {
	Table    Table
	RowBytes int
	Rows     func() int // that the cache holds now
	Most     int        // rows that it may hold
	Name     string     // of the table
	File     string     // where the hottest rows are listed for the next start; "": nowhere
	Share    float64    // share of the bandwidth that requests leave free; 0.5
	Log      *slog.Logger
	Now      func() time.Time
}

// RefillStats counts rows that were asked for ahead of requests.
type RefillStats struct {
	Fetched, Gone, Failed int64 // gone: the store does not have them
	Bytes                 int64
}

// Refiller fetches rows of a table into its cache in the background: after a start those that were hottest before it,
// rows for new capacity, and rows that come back after they had been out of use. alloc.Refill chooses the rows. It uses
// a share of the bandwidth that requests leave free; the speed of the link is measured from the fetches themselves.
//
// A Refiller is safe for concurrent use. mu is a leaf, and not held during a fetch.
type Refiller struct {
	cfg     RefillConfig
	start   time.Time
	trouble *durable.Trouble

	mu       sync.Mutex
	plan     *alloc.Refill
	pace     alloc.Pace
	governor alloc.Governor
	active   bool
	failures int       // in a row
	hold     time.Time // nothing is fetched before
	stats    RefillStats

	wanted []alloc.Wanted // of the goroutine in Run
	hashes []uint64
	shares []float32
}

const (
	mostKnown    = 1 << 20 // rows whose uses are remembered, 16 bytes each
	fetchRows    = 256     // most rows of a fetch
	fetchLasts   = 500e-6  // seconds of the link that a fetch takes, if that is more than leastFetch rows
	leastFetch   = 8
	unmeasured   = 16e6 // bytes per second of a link before the first fetch
	lookPause    = 100 * time.Millisecond
	saveEvery    = 5 * time.Minute
	failurePause = time.Second
	longestPause = 30 * time.Second
)

// NewRefiller makes a Refiller. It fetches nothing before Run.
func NewRefiller(cfg RefillConfig) *Refiller {
	if cfg.Share <= 0 {
		cfg.Share = defaultShare
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	r := &Refiller{cfg: cfg, start: cfg.Now(), plan: alloc.NewRefill(min(2*cfg.Most, mostKnown))}
	r.governor = alloc.Governor{Link: unmeasured, Share: cfg.Share}
	r.trouble = durable.NewTrouble(cfg.Log, "the list of hot rows cannot be written: a restart begins with an older one")
	r.wanted = make([]alloc.Wanted, 0, fetchRows)
	return r
}

func (r *Refiller) seconds() float64 { return r.cfg.Now().Sub(r.start).Seconds() }

// Gathered counts a batch of look-ups.
func (r *Refiller) Gathered(b embed.Batch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.seconds()
	r.plan.Gathered(now, b.Hashes, b.Missed)
	bytes := int64(len(b.Missed)) * int64(r.cfg.RowBytes)
	r.pace.Note(now, bytes, b.Took.Seconds())
	r.governor.Demand(now, bytes)
}

// Grown says that the cache has room for so many more rows.
func (r *Refiller) Grown(rows int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.plan.Grown(rows)
}

// Run fetches rows until ctx ends. It begins with those that File lists, and lists the hottest rows there now and then
// and at the end.
func (r *Refiller) Run(ctx context.Context) {
	r.load()
	saves := time.NewTicker(saveEvery)
	defer saves.Stop()
	turns := time.NewTimer(0)
	defer turns.Stop()
	for {
		select {
		case <-ctx.Done():
			r.save()
			return
		case <-saves.C:
			r.save()
		case <-turns.C:
			pause := lookPause
			if r.fetch(ctx) {
				pause = fillPause
			}
			turns.Reset(pause)
		}
	}
}

// fetch fetches a few rows, if some are wanted and the governor allows it. It returns false if none are wanted.
func (r *Refiller) fetch(ctx context.Context) bool {
	if !r.choose() {
		return false
	}
	if len(r.wanted) == 0 {
		return true
	}
	r.hashes, r.shares = r.hashes[:0], r.shares[:0]
	for _, w := range r.wanted {
		r.hashes, r.shares = append(r.hashes, w.Key), append(r.shares, w.Share)
	}
	got := r.cfg.Table.Refill(ctx, r.hashes, r.shares)
	r.fetched(&got)
	return true
}

// choose sets the rows to fetch now. It returns false if none are wanted.
func (r *Refiller) choose() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.seconds()
	r.wanted = r.wanted[:0]
	r.plan.Cached(r.cfg.Rows())
	wants := r.plan.Wants(now)
	r.active = wants || r.plan.Returning()
	if !wants || r.cfg.Now().Before(r.hold) {
		return false
	}
	if rate := r.pace.Rate(); rate > 0 {
		r.governor.Link = rate
	}
	row := float64(r.cfg.RowBytes)
	most := min(max(r.governor.Link*fetchLasts/row, leastFetch), fetchRows)
	n := int(r.governor.Grant(now, int64(most*row))) / r.cfg.RowBytes
	r.wanted = r.plan.Next(r.wanted, n, r.cfg.Table.Cached)
	return true
}

// fetched counts what became of a fetch.
func (r *Refiller) fetched(got *embed.Refilled) {
	r.mu.Lock()
	defer r.mu.Unlock()
	bytes := int64(got.Found) * int64(r.cfg.RowBytes)
	r.pace.Note(r.seconds(), bytes, got.Took.Seconds())
	r.governor.Spend(int64(got.Asked) * int64(r.cfg.RowBytes))
	for _, h := range got.Gone {
		r.plan.Forget(h)
	}
	failed := got.Asked - got.Found - len(got.Gone)
	s := &r.stats
	s.Fetched, s.Gone, s.Failed = s.Fetched+int64(got.Found), s.Gone+int64(len(got.Gone)), s.Failed+int64(failed)
	s.Bytes += bytes
	if got.Err == nil {
		r.failures = 0
		return
	}
	r.plan.Failed(failed)
	r.hold = r.cfg.Now().Add(min(failurePause<<min(r.failures, 8), longestPause))
	r.failures++
}

// Stats returns the counters.
func (r *Refiller) Stats() RefillStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats
}

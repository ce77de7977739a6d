package reuse

import (
	"context"
	"errors"
	"sync"
	"time"

	"grebe/dispatch/loading"
	"grebe/kv"
	"grebe/plan"
	"grebe/schedule"
)

// load reads entries from disk for a request, concurrently with it, and pins them. A load may outlive a request that
// does not wait for it, but by at most one read. The cache owns its goroutine (Settle).
type load struct {
	*loading.Loading
	cache *Cache

	mu    sync.Mutex
	pins  []*kv.Entry
	freed bool // the request has ended: later entries are released at once
}

// wanted is an entry on disk that replaces some parts of a job.
type wanted struct {
	key    plan.Key
	tokens int
	parts  []int
}

// maxReaders limits the requests for which entries are read at once. Others wait their turn as long as they need the
// entries. So a hung disk blocks no more than this many goroutines.
const maxReaders = 32

// startLoad begins to read entries. The caller MUST release the load.
func (c *Cache) startLoad(want []wanted) *load {
	tokens := 0
	for i := range want {
		tokens += want[i].tokens
	}
	l := &load{Loading: loading.New(tokens, &c.loads.pace), cache: c}
	if c.opt.Record.On() {
		l.Record(c.opt.Record.Sub("load"))
	}
	if !c.loads.start(func() { l.run(want) }) {
		l.End()
	}
	return l
}

// loads are the loads of a cache.
type loads struct {
	pace    loading.Pace  // measured time of reads for blended prompts
	disk    drift         // measured time of all reads
	host    drift         // measured time of copies from the host's memory to the device's
	readers chan struct{} // holds a token for each active reader

	ctx  context.Context // ends when no more reads are wanted
	stop context.CancelFunc

	mu      sync.Mutex
	settled bool
	wg      sync.WaitGroup
}

// drift is a schedule.Drift of transfers that requests share.
type drift struct {
	mu    sync.Mutex
	core  schedule.Drift
	start time.Time
}

// note adds a transfer that began at a time, and whether it ended.
func (d *drift) note(began time.Time, estimate float64, ended bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	took := float64(time.Since(began)) / float64(time.Millisecond)
	d.core.Observe(took, estimate, ended, time.Since(d.start))
}

func (d *drift) factor() float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.core.Factor(time.Since(d.start))
}

// read loads an entry from disk into memory, unless ctx ends first, and measures that.
func (c *Cache) read(ctx context.Context, key plan.Key) plan.Tier {
	store, cost := c.opt.Store, &c.costs.Transfer[plan.Disk]
	e, _ := store.Lookup(key)
	began := time.Now()
	at := store.Fetch(ctx, key)
	if e.Tier == plan.Disk && (at != plan.Missing || ctx.Err() != nil) {
		c.loads.disk.note(began, cost.Entry+float64(e.Tokens)*cost.Token, at != plan.Missing)
	}
	return at
}

// inMemory returns what get finds in memory. It measures that if get copied an entry from the host's memory to the
// device's.
func (c *Cache) inMemory(get func() (*kv.Entry, plan.Tier)) (*kv.Entry, plan.Tier) {
	if c.home != plan.Device {
		return get() // the device reads the host's memory: nothing is copied
	}
	began := time.Now()
	e, at := get()
	if e != nil && at == plan.Host && e.Tier() == plan.Device {
		c.loads.host.note(began, float64(e.Len())*c.costs.Transfer[plan.Host].Token, true)
	}
	return e, at
}

// get returns an entry in memory with a reference, and the tier where it was.
func (c *Cache) get(key plan.Key) (*kv.Entry, plan.Tier) {
	return c.inMemory(func() (*kv.Entry, plan.Tier) { return c.opt.Store.Get(key) })
}

// getPrefix returns the part of a user's entry that is a prefix of tokens, as Store.GetPrefix does.
func (c *Cache) getPrefix(key plan.Key, tokens []int32) (*kv.Entry, plan.Tier) {
	return c.inMemory(func() (*kv.Entry, plan.Tier) { return c.opt.Store.GetPrefix(key, tokens) })
}

func (l *loads) init() {
	l.disk.start = time.Now()
	l.host.start = l.disk.start
	l.readers = make(chan struct{}, maxReaders)
	l.ctx, l.stop = context.WithCancel(context.Background())
}

// start runs a load. It returns false if the cache is settled.
func (l *loads) start(run func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.settled {
		return false
	}
	l.wg.Go(run)
	return true
}

// run reads all entries, one after the other. A part whose entry does not arrive is computed.
func (l *load) run(want []wanted) {
	defer l.End()
	select {
	case l.cache.loads.readers <- struct{}{}:
		defer func() { <-l.cache.loads.readers }()
	case <-l.Stopped():
		return
	case <-l.cache.loads.ctx.Done():
		return
	}
	for i := range want {
		if w := &want[i]; !l.bring(w) {
			return
		}
	}
}

// bring reads one entry, unless it is in memory already, and reports whether more is wanted.
func (l *load) bring(w *wanted) bool {
	if e, _ := l.cache.get(w.key); e != nil {
		if !l.pin(e) {
			return false
		}
		l.Here(w.tokens, e, w.parts)
		return true
	}
	if !l.Next(w.tokens) {
		return false
	}
	e := l.cache.fetch(l.cache.loads.ctx, w.key)
	if e != nil && !l.pin(e) {
		return false
	}
	l.Came(e, w.parts)
	return true
}

// pin keeps an entry until the request ends. If it has ended, pin releases the entry and returns false.
func (l *load) pin(e *kv.Entry) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.freed {
		e.Release()
		return false
	}
	l.pins = append(l.pins, e)
	return true
}

// release ends the load: it releases the entries and stops further reads. It does not wait. No job may use the entries
// any more.
func (l *load) release() {
	l.Stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.freed = true
	for _, e := range l.pins {
		e.Release()
	}
	l.pins = nil
}

// fetch loads a block or a page into memory and returns it with a reference, or nil if that fails.
func (c *Cache) fetch(ctx context.Context, key plan.Key) *kv.Entry {
	if c.read(ctx, key) == plan.Missing {
		c.noteFull()
		return nil
	}
	e, _ := c.get(key) // nil: it was evicted at once
	return e
}

// settleWithin is how long Settle waits for a running read.
const settleWithin = 10 * time.Second

// errHangs means that a disk does not answer.
var errHangs = errors.New("reuse: a read from disk hangs: it keeps its memory and is abandoned")

// Settle ends the reads for requests. It returns when no read is running, or with an error if one hangs. A current or
// later request computes what it would have read.
func (c *Cache) Settle() error {
	l := &c.loads
	l.mu.Lock()
	l.settled = true
	l.mu.Unlock()
	hangs := time.AfterFunc(settleWithin, l.stop)
	l.wg.Wait()
	if hangs.Stop() && l.ctx.Err() == nil {
		return nil
	}
	return errHangs
}

package reuse

import (
	"context"
	"errors"
	"sync"
	"time"

	"grebe/dispatch/loading"
	"grebe/kv"
	"grebe/plan"
)

// load reads entries from below memory for a request, beside it, and pins them. It outlives a request that does not wait for it, and
// then by one read at most: the cache owns its goroutine (Settle).
type load struct {
	*loading.Loading
	cache *Cache

	mu    sync.Mutex
	pins  []*kv.Entry
	freed bool // by the request: what still comes is let go
}

// wanted is an entry below memory that is to stand in for some parts of a job.
type wanted struct {
	key    plan.Key
	tokens int
	parts  []int
}

// maxReaders bounds the requests for which entries are read at a time. The others wait for their turns while they are wanted: a disk that hangs
// holds no more goroutines than these.
const maxReaders = 32

// startLoad begins to read entries. The caller MUST release what comes.
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

// loads are those of a cache.
type loads struct {
	pace    loading.Pace  // at which they read
	readers chan struct{} // holds one for each that does

	ctx  context.Context // ends when nobody waits for a read any more
	stop context.CancelFunc

	mu      sync.Mutex
	settled bool
	wg      sync.WaitGroup
}

func (l *loads) init() {
	l.readers = make(chan struct{}, maxReaders)
	l.ctx, l.stop = context.WithCancel(context.Background())
}

// start runs a load, and reports whether there are any more.
func (l *loads) start(run func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.settled {
		return false
	}
	l.wg.Go(run)
	return true
}

// run reads all, one after the other: a part of a job whose entry does not come is computed.
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

// bring reads one entry, unless somebody else brought it, and reports whether more is wanted.
func (l *load) bring(w *wanted) bool {
	store := l.cache.opt.Store
	if e, _ := store.Get(w.key); e != nil {
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

// pin keeps an entry until the request has ended; false: it has, and the entry is let go.
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

// release ends the load: what was read is let go, and no more is read. It does not wait. No job may use what came any more.
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

// fetch brings a block or a page up into memory and returns it with a reference; nil when it does not come.
func (c *Cache) fetch(ctx context.Context, key plan.Key) *kv.Entry {
	store := c.opt.Store
	if store.Fetch(ctx, key) == plan.Missing {
		c.noteFull()
		return nil
	}
	e, _ := store.Get(key) // nil: it had to make room at once
	return e
}

// settleWithin is how long a read may take that is under way when a cache is settled.
const settleWithin = 10 * time.Second

// errHangs says that a disk does not answer.
var errHangs = errors.New("reuse: a read from below memory does not end: it is left to itself, with the memory that it reads into")

// Settle ends what reads from below memory for requests: it returns when nothing is read any more, or with an error when the rest hangs. A request
// that comes later, or is under way, computes what it finds there.
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

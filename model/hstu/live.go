package hstu

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"grebe/compute"
)

// live is an index of items whose rows come from a table that changes. What was retrieved from is a base, which has the
// vectors of all items, and a small index of those that have changed since. Retrieve reads changed rows once, when they
// are asked for first. When there are many, a goroutine reads their part of the base again, or all of it.
//
// Where the store does not answer, items keep the vectors that they had, Stale says so, and both try again. Retrieve
// does so once a second: requests do not all wait for a store that is away.
type live struct {
	m      *Model
	dev    compute.Device
	source changing
	warn   func(text string)
	turn   chan struct{} // held by who replaces what is retrieved from
	now    atomic.Pointer[view]

	mu      sync.Mutex
	seq     uint64           // of the last change
	changed map[int32]uint64 // the last change of items that the base has as they were, also while it is read again
	all     uint64           // the last change of all items that the base does not have; 0: none
	pause   time.Time        // until then no request reads changed items: the store has just failed

	wake chan struct{}
	stop context.CancelFunc
	ends func() // the reports of changes
	done sync.WaitGroup
}

// changing is a RowSource that reports changes.
type changing interface {
	RowSource
	// Read is Gather for distinct rows, which no count of look-ups has. Where the store does not answer it returns an
	// error and how many of the first rows it read; the others are default rows.
	Read(rows []int32, out []float32) (read int, err error)
	// Listen has changed called with rows that have changed, nil: all may have, until stop returns.
	Listen(changed func(rows []int32)) (stop func())
}

// view is what is retrieved from. It never changes.
type view struct {
	base    *index
	over    *index    // nil: no items
	items   []int32   // of over, ascending; the base has older vectors of them
	vectors []float32 // of these
	seq     uint64    // of the last change that over or base has
}

const (
	mostChanged = 4096 // items that have changed before all are read again
	foldChanged = 1024 // items that have changed before their blocks are read again

	firstRetry = time.Second
	lastRetry  = time.Minute

	tellAgain = time.Hour // before the same cause of a failure is told again

	mostRetries = 5 // of a read, before the base is read from its start again

	rest = 9 // times as long as it read the base again, the goroutine does not
)

// newLive reads all items. The store need not answer: default rows stand in then, until it does.
func newLive(ctx context.Context, dev compute.Device, m *Model, warn func(text string)) (*live, error) {
	source, ok := m.content.item.source.(changing)
	if !ok {
		return nil, errors.New("retrieval wants the rows of items from a table that reports changes")
	}
	x := &live{m: m, dev: dev, source: source, turn: make(chan struct{}, 1), changed: map[int32]uint64{},
		wake: make(chan struct{}, 1), warn: warn}
	x.ends = source.Listen(x.change)
	failed := false
	base, err := newIndex(dev, m, m.cfg.Items, func(first int, to []float32) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return m.readVectors(first, to, func(rows []int32, out []float32) error {
			_, err := source.Read(rows, out)
			failed = failed || err != nil
			if errors.Is(err, errOutage) {
				return nil
			}
			return err
		})
	})
	if err != nil {
		x.ends()
		return nil, err
	}
	x.now.Store(&view{base: base})
	if failed {
		x.change(nil)
	}
	ctx, x.stop = context.WithCancel(context.Background())
	x.done.Go(func() { x.run(ctx) })
	return x, nil
}

func (x *live) close() {
	x.ends()
	x.stop()
	x.done.Wait()
}

// change notes that rows have changed, nil: all.
func (x *live) change(rows []int32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.seq++
	if rows == nil {
		x.all = x.seq
	}
	for _, row := range rows {
		if int(row) >= x.m.cfg.Items {
			continue
		}
		if _, had := x.changed[row]; had || len(x.changed) < mostChanged {
			x.changed[row] = x.seq
		} else {
			x.all = x.seq
		}
	}
	if x.all > 0 || len(x.changed) > foldChanged {
		select {
		case x.wake <- struct{}{}:
		default:
		}
	}
}

// behind reports whether changes are not in the view.
func (x *live) behind(v *view) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.all > 0 || x.seq > v.seq
}

// paused reports whether requests do not read changed items now.
func (x *live) paused(now time.Time) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return now.Before(x.pause)
}

// Stale reports whether items are retrieved by older rows than their table has, because they are being read or the
// table's store does not answer.
func (m *Model) Stale() bool { return m.live != nil && m.live.behind(m.live.now.Load()) }

// retrieve is Model.Retrieve for the user's vector.
func (x *live) retrieve(ctx context.Context, user []float32, n int, without []int32,
	eligible func(item int32) bool) (found []Found, broken int, err error) {
	v := x.now.Load()
	if x.behind(v) && !x.paused(time.Now()) {
		if !x.take(ctx) {
			return nil, 0, ctx.Err()
		}
		if v = x.now.Load(); !x.paused(time.Now()) { // nor after the one before
			v, err = x.refresh(v.base, false)
		}
		if <-x.turn; err != nil {
			return nil, 0, err
		}
	}
	if v.over == nil {
		return v.base.retrieve(ctx, user, n, without, eligible)
	}
	older := slices.Concat(without, v.items)
	slices.Sort(older)
	found, broken, err = v.base.retrieve(ctx, user, n, slices.Compact(older), eligible)
	if err != nil {
		return nil, 0, err
	}
	newer, more, err := v.over.retrieve(ctx, user, n, nil, func(i int32) bool {
		_, out := slices.BinarySearch(without, v.items[i])
		return !out && (eligible == nil || eligible(v.items[i]))
	})
	if err != nil {
		return nil, 0, err
	}
	for _, f := range newer {
		found = append(found, Found{v.items[f.Item], f.Score})
	}
	slices.SortFunc(found, func(a, b Found) int {
		if worse(b, a) {
			return -1
		}
		return 1
	})
	return found[:min(n, len(found))], broken + more, nil
}

// refresh reads the items that have changed and returns what is retrieved from. If the store does not answer, that is
// an error if there must be an answer, and else as it was. The caller has the turn.
func (x *live) refresh(base *index, must bool) (*view, error) {
	was := x.now.Load()
	x.mu.Lock()
	v := &view{base: base, seq: x.seq, items: slices.Sorted(maps.Keys(x.changed))}
	var newer []int32
	for _, item := range v.items {
		if _, had := slices.BinarySearch(was.items, item); !had || x.changed[item] > was.seq {
			newer = append(newer, item)
		}
	}
	x.mu.Unlock()
	if !must && was.seq == v.seq {
		return was, nil
	}
	if len(v.items) > 0 {
		err := x.read(v, was, newer)
		if errors.Is(err, errOutage) && !must {
			x.mu.Lock()
			x.pause = time.Now().Add(firstRetry)
			x.mu.Unlock()
			return was, nil
		}
		if err == nil {
			v.over, err = newIndex(x.dev, x.m, len(v.items), func(first int, to []float32) error {
				copy(to, v.vectors[first*x.m.cfg.Hidden:])
				return nil
			})
		}
		if err != nil {
			return nil, err
		}
	}
	x.now.Store(v)
	return v, nil
}

// read fills in the vectors of a view's items: the newer ones from the table, and others from the view before.
func (x *live) read(v, was *view, newer []int32) error {
	width := x.m.cfg.Hidden
	fresh := make([]float32, len(newer)*width)
	if len(newer) > 0 {
		err := x.m.vectorsOf(newer, fresh, func(rows []int32, out []float32) error {
			_, err := x.source.Read(rows, out)
			return err
		})
		if err != nil {
			return err
		}
	}
	v.vectors = make([]float32, 0, len(v.items)*width)
	for _, item := range v.items {
		if len(newer) > 0 && newer[0] == item {
			v.vectors = append(v.vectors, fresh[:width]...)
			newer, fresh = newer[1:], fresh[width:]
			continue
		}
		at, _ := slices.BinarySearch(was.items, item)
		v.vectors = append(v.vectors, was.vectors[at*width:(at+1)*width]...)
	}
	return nil
}

// run reads parts of the base again, or all of it, until ctx ends.
func (x *live) run(ctx context.Context) {
	retry, told := firstRetry, map[string]time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-x.wake:
		}
		begin := time.Now()
		for ctx.Err() == nil {
			err := x.fold(ctx)
			if err == nil {
				break
			}
			if ctx.Err() == nil {
				x.tell(err, told, time.Now())
			}
			wait(ctx, retry)
			retry, begin = min(2*retry, lastRetry), time.Now()
		}
		retry = firstRetry
		wait(ctx, min(rest*time.Since(begin), lastRetry))
	}
}

// tell says why the base is not read again, each cause once an hour. told is when each was said.
func (x *live) tell(err error, told map[string]time.Time, now time.Time) {
	why := "reading them fails"
	switch {
	case errors.Is(err, errOutage):
		why = "the store of their table does not answer"
	case errors.Is(err, compute.ErrNoMemory):
		why = "the device has no memory for them"
	}
	if at, ok := told[why]; x.warn == nil || ok && now.Sub(at) < tellAgain {
		return
	}
	told[why] = now
	x.warn(fmt.Sprintf("changed items cannot be read for retrieval: %s (%v); items keep older vectors until another try "+
		"succeeds", why, err))
}

// wait waits, unless ctx ends before.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// fold has the base have all changes so far.
func (x *live) fold(ctx context.Context) error {
	x.mu.Lock()
	seq, all, items := x.seq, x.all > 0, slices.Sorted(maps.Keys(x.changed))
	x.mu.Unlock()
	read := func(first int, to []float32) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return x.m.readVectors(first, to, func(rows []int32, out []float32) error { return x.insist(ctx, rows, out) })
	}
	base, err := x.again(ctx, all, items, read)
	if err != nil || !x.take(ctx) {
		return errors.Join(err, ctx.Err())
	}
	defer func() { <-x.turn }()
	x.mu.Lock()
	was, wasAll := maps.Clone(x.changed), x.all
	maps.DeleteFunc(x.changed, func(_ int32, at uint64) bool { return at <= seq })
	if x.all <= seq {
		x.all = 0
	}
	x.mu.Unlock()
	if _, err = x.refresh(base, true); err != nil { // the base stays, so that it needs these changes
		x.mu.Lock()
		for item, at := range was {
			x.changed[item] = max(at, x.changed[item])
		}
		x.all = max(x.all, wasAll)
		x.mu.Unlock()
	}
	return err
}

// insist reads rows, and those that the store did not give again and again.
func (x *live) insist(ctx context.Context, rows []int32, out []float32) error {
	retry, width := firstRetry, x.source.Dim()
	for tries := 0; ; tries++ {
		read, err := x.source.Read(rows, out)
		if !errors.Is(err, errOutage) || tries == mostRetries {
			return err
		}
		if rows, out = rows[read:], out[read*width:]; read > 0 {
			retry, tries = firstRetry, 0
		}
		if wait(ctx, retry); ctx.Err() != nil {
			return ctx.Err()
		}
		retry = min(2*retry, lastRetry)
	}
}

// take waits for the turn. It returns false when ctx ends.
func (x *live) take(ctx context.Context) bool {
	select {
	case x.turn <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// again returns the base with the blocks of some items, or all blocks, read again. Each block is used at once: only one
// is in memory twice.
func (x *live) again(ctx context.Context, all bool, items []int32,
	read func(first int, to []float32) error) (*index, error) {
	base := x.now.Load().base
	if base.vectors != nil {
		return newIndex(x.dev, x.m, base.items, read)
	}
	for i, b := range base.blocks {
		first := i * indexRows
		at, _ := slices.BinarySearch(items, int32(first))
		if !all && (at == len(items) || int(items[at]) >= first+b.out) {
			continue
		}
		block, err := newBlock(x.dev, base.width, first, b.out, read)
		if err != nil || !x.take(ctx) {
			return nil, errors.Join(err, ctx.Err())
		}
		v, next := *x.now.Load(), *base
		next.blocks = slices.Clone(base.blocks)
		next.blocks[i] = block
		base, v.base = &next, &next
		x.now.Store(&v)
		<-x.turn
	}
	return base, nil
}

package cuda

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"grebe/compute"
	"grebe/compute/cuda/driver"
	"grebe/compute/cuda/rows"
	"grebe/evict"
)

// rowCache is a cache of a table's rows in the GPU's memory. The host decides (evict.Directory) and the GPU carries it
// out (package rows) in the same order: both happen with mu held, and streams wait for the cache's last use by another.
//
// A batch's fetch holds no lock. Until it ends the batch counts as a flight, which hears of rows that change meanwhile:
// those are used, but not cached.
type rowCache struct {
	d     *device
	made  int64 // how many were made before
	table int   // rows
	width int   // values
	dt    compute.DType
	stage int // rows that a batch fetches at once

	rowBytes, page int

	mu      sync.Mutex // before memory.mu
	rows    *rows.Cache
	dir     *evict.Directory
	pages   []compute.Block
	stream  *driver.Stream // of changes to pages
	last    *driver.Event  // behind the last use
	flights map[*lookup]bool
	stats   compute.RowStats

	wanted chan prefetch // by the one goroutine that prefetches
	stop   chan struct{} // closed when it shall end
	ended  sync.WaitGroup
}

// rowCachesMade counts caches, which are locked in the order in which they were made.
var rowCachesMade atomic.Int64

// prefetch are rows that a batch will need.
type prefetch struct {
	rows []int32
	from compute.RowSource
}

const (
	rowPage  = 1 << 20 // bytes of a page, less for rows that do not fill it
	rowStage = 1 << 14 // rows
	rowSlots = 1 << 26 // that package rows can name
	rowMode  = evict.Mode(2)

	rowsAhead = 4 // calls of Prefetch that wait
)

// RowCache implements compute.RowCacher.
func (d *device) RowCache(table, width int, dt compute.DType, most int64) (compute.RowCache, error) {
	c, err := d.rowCache(table, width, dt, most, rowStage)
	if err != nil {
		return nil, fmt.Errorf("cuda: a cache of rows: %w", err)
	}
	return c, nil
}

func (d *device) rowCache(table, width int, dt compute.DType, most int64, stage int) (*rowCache, error) {
	bytes, pageRows := 4*width, evict.SlabSlots
	if dt == compute.BF16 {
		bytes = 2 * width
	}
	if table < 1 || bytes < 16 || bytes%16 != 0 || dt != compute.F32 && dt != compute.BF16 {
		return nil, fmt.Errorf("%d rows of %d numbers of %v: want a multiple of 16 bytes of f32 or bf16", table, width, dt)
	}
	for 2*pageRows*bytes <= rowPage {
		pageRows *= 2
	}
	stage = min(stage, table)
	pages := min(int(most/int64(pageRows*bytes)), (rowSlots-stage)/pageRows-1)
	if pages < 1 {
		return nil, fmt.Errorf("%d bytes: want at least a page of %d", most, pageRows*bytes)
	}
	c := &rowCache{d: d, made: rowCachesMade.Add(1), table: table, width: width, dt: dt, stage: stage,
		rowBytes: bytes, page: pageRows * bytes, flights: map[*lookup]bool{}}
	defer d.c.Leave()
	err := d.c.Enter()
	if err == nil {
		err = c.open(rows.Spec{Rows: table, RowBytes: bytes, Pages: pages, PageRows: pageRows, Stage: stage})
	}
	if err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *rowCache) open(spec rows.Spec) (err error) {
	if c.stream, err = c.d.c.NewStream(); err != nil {
		return err
	}
	if c.last, err = c.d.c.NewEvent(false); err != nil {
		return err
	}
	if c.rows, err = rows.New(c.d.c, []rows.Spec{spec}, rows.BF16{Rows: c.dt == compute.BF16}); err != nil {
		return err
	}
	if err = c.rows.Forget(c.stream, 0); err != nil {
		return err
	}
	c.dir = evict.NewDirectory(spec.Rows, spec.Pages, spec.PageRows, rowMode)
	if err = c.last.Record(c.stream); err != nil {
		return err
	}
	c.wanted, c.stop = make(chan prefetch, rowsAhead), make(chan struct{})
	c.ended.Go(c.prefetches)
	return nil
}

// Prefetch implements compute.RowCache.
func (c *rowCache) Prefetch(list []int32, from compute.RowSource) {
	select {
	case c.wanted <- prefetch{list, from}:
	default:
	}
}

// prefetches runs until the cache is closed. What fails is left to the batches: they fetch what is lacking.
func (c *rowCache) prefetches() {
	var l *lookup
	defer func() { l.close(c.d) }()
	for {
		select {
		case <-c.stop:
			return
		case w := <-c.wanted:
			l = c.prefetch(l, w)
		}
	}
}

// prefetch fetches rows with a look-up of its own, which it returns.
func (c *rowCache) prefetch(l *lookup, w prefetch) *lookup {
	defer c.d.c.Leave()
	if c.d.c.Enter() != nil || c.stream.Sync() != nil { // pinned memory is used again
		return l
	}
	if l == nil {
		var err error
		if l, err = c.newLookup(c.stage); err != nil {
			return nil
		}
	}
	for len(w.rows) > 0 {
		n := min(len(w.rows), c.stage)
		l.distinct(w.rows[:n])
		if l.ahead(w.from) != nil || c.stream.Sync() != nil {
			return l
		}
		w.rows = w.rows[n:]
	}
	return l
}

func (c *rowCache) PageBytes() int { return c.page }

// inTurn runs f, which puts changes into the cache's stream, behind all uses so far.
func (c *rowCache) inTurn(f func() error) error {
	defer c.d.c.Leave()
	err := c.d.c.Enter()
	if err == nil {
		err = c.stream.Wait(c.last)
	}
	if err == nil {
		err = f()
	}
	if err == nil {
		err = c.last.Record(c.stream)
	}
	if err != nil {
		_ = c.stream.Sync() // nobody would wait for what is under way
		c.forget()
		return fmt.Errorf("cuda: pages of a cache of rows: %w", err)
	}
	return nil
}

// Grow implements compute.RowCache.
func (c *rowCache) Grow(pages []compute.Block) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	err = c.inTurn(func() error {
		for _, b := range pages {
			if b.Size < c.page || b.Addr == 0 {
				return fmt.Errorf("a page of %d bytes, want %d of the GPU's", b.Size, c.page)
			}
			page, ok := c.dir.Open()
			if !ok {
				return nil
			}
			if err := c.rows.SetPage(c.stream, 0, page, driver.Ptr(b.Addr)); err != nil {
				c.dir.Shut()
				return err
			}
			c.pages = append(c.pages, b)
			n++
		}
		return nil
	})
	return n, err
}

// Shrink implements compute.RowCache.
func (c *rowCache) Shrink(n int) ([]compute.Block, error) {
	c.mu.Lock()
	n = min(n, len(c.pages))
	keep := len(c.pages) - n
	err := c.inTurn(func() (err error) {
		for range n {
			page, _ := c.dir.Shut()
			if e := c.rows.SetPage(c.stream, 0, page, 0); err == nil {
				err = e
			}
		}
		return err
	})
	gone := append([]compute.Block(nil), c.pages[keep:]...)
	c.pages = c.pages[:keep]
	c.mu.Unlock()
	defer c.d.c.Leave()
	return gone, errors.Join(err, c.d.c.Enter(), c.last.Sync())
}

// Changed implements compute.RowCache.
func (c *rowCache) Changed(rows []int32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if rows == nil {
		c.forget()
		return
	}
	for _, row := range rows {
		if row < 0 || int(row) >= c.table {
			continue
		}
		c.dir.Remove(uint32(row))
		for l := range c.flights {
			l.changed[row] = true
		}
	}
}

// forget empties the directory. The GPU's entries are not touched: a row that the directory does not have is fetched,
// which replaces its entry.
func (c *rowCache) forget() {
	open, _ := c.dir.Pages()
	for range open {
		c.dir.Shut()
	}
	for range open {
		c.dir.Open()
	}
	for l := range c.flights {
		l.stale = true
	}
}

// Stats implements compute.RowCache.
func (c *rowCache) Stats() compute.RowStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Bytes = int64(len(c.pages)) * int64(c.page)
	s.Rows = len(c.pages) * c.page / c.rowBytes
	return s
}

// Close implements compute.RowCache.
func (c *rowCache) Close() error {
	defer c.d.c.Leave()
	return errors.Join(c.d.c.Enter(), c.close())
}

func (c *rowCache) close() error {
	if c.stop != nil {
		close(c.stop)
		c.ended.Wait()
	}
	var err error
	if c.last != nil {
		err = errors.Join(c.last.Sync(), c.last.Close())
	}
	if c.stream != nil {
		err = errors.Join(err, c.stream.Sync())
	}
	if c.rows != nil {
		err = errors.Join(err, c.rows.Close())
	}
	if c.stream != nil {
		err = errors.Join(err, c.stream.Close())
	}
	return err
}

var _ compute.RowCacher = (*device)(nil)

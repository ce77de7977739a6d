package cuda

import (
	"cmp"
	"fmt"
	"slices"

	"grebe/compute"
	"grebe/compute/cuda/driver"
	"grebe/compute/cuda/rows"
	"grebe/evict"
	"grebe/internal/contain"
	"grebe/internal/offheap"
)

// lookup takes a part's rows from a cache to where Sum reads them. It is a runner's.
type lookup struct {
	of     *rowCache
	ids    *driver.Host // of the batch's rows
	staged *driver.Host // fetched rows
	moves  *driver.Host // of plan
	plan   *rows.Plan
	jobs   *rows.Jobs

	part  *compute.SumPart // of the batch
	out   driver.Ptr       // of its rows
	taken bool             // beside others
	short bool             // rows were evicted since they were looked up
	err   error            // of its fetch

	places  []int32 // hash table of distinct rows: their places in rows, −1: none
	rows    []int32 // distinct
	at      []int32 // of each: which of the fetched ones, −1: not fetched
	slots   []int32 // of each, −1: it is not cached
	lacking []int32 // places of rows that are neither cached nor fetched
	asked   []int32 // these rows
	known   []bool  // of the fetched ones: it may be cached
	sent    []uint32

	// While it is a flight, guarded by the cache.
	changed map[int32]bool
	stale   bool // all have changed
}

// besideRows is the least rows of a batch for which parts are looked up beside each other: fewer take less time than
// to start it.
const besideRows = 64

// takeCached puts the look-ups of parts that come from caches into the stream. What the host does for a part, it does
// beside the others.
func (r *runner) takeCached(parts []compute.SumPart) error {
	s := &r.sums
	s.beside = s.beside[:0]
	for i := range parts {
		p := &parts[i]
		if p.Cached == nil {
			continue
		}
		if err := r.openLookup(i, p); err != nil {
			return err
		}
		if l := s.cached[i]; len(p.Rows) >= besideRows && !slices.ContainsFunc(s.beside, l.shares) {
			s.beside = append(s.beside, l)
		}
	}
	if len(s.beside) > 1 {
		if err := r.takeBeside(s.beside); err != nil {
			return err
		}
	}
	for i := range parts {
		if l := s.cached[i]; parts[i].Cached != nil && !l.taken {
			if err := l.take(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// openLookup makes a look-up of a part's rows and their index for sum.cu.
func (r *runner) openLookup(part int, p *compute.SumPart) error {
	s, c := &r.sums, p.Cached.(*rowCache)
	if err := s.room(r.dev, part); err != nil {
		return err
	}
	if l := s.cached[part]; l == nil || l.of != c {
		l.close(r.dev)
		var err error
		if s.cached[part], err = c.newLookup(s.rows); err != nil {
			return err
		}
	}
	index := offheap.Slice[int32](s.index.Bytes[4*part*s.rows:], s.rows)
	l := s.cached[part]
	l.part, l.out, l.taken = p, s.vectors[part], false
	ids := offheap.Slice[uint32](l.ids.Bytes, len(p.Rows))
	for i, row := range p.Rows {
		if ids[i] = uint32(row); row < 0 {
			ids[i] = evict.NoRow
			continue
		}
		index[i] = int32(i)
	}
	return nil
}

// takeBeside takes the parts of look-ups of different caches, but for those whose rows do not fit into a stage. No
// cache is locked while rows are fetched. All are when it is decided what stays, so that no row of a part leaves until
// the GPU has been told to gather it. They are locked in the order in which they were made.
func (r *runner) takeBeside(list []*lookup) error {
	slices.SortFunc(list, func(a, b *lookup) int { return cmp.Compare(a.of.made, b.of.made) })
	locked := false
	lock := func() {
		for _, l := range list {
			l.of.mu.Lock()
		}
		locked = true
	}
	unlock := func() {
		for _, l := range list {
			l.of.mu.Unlock()
		}
		locked = false
	}
	defer func() {
		if !locked {
			lock()
		}
		for _, l := range list {
			l.arrive()
		}
		unlock()
	}()
	each(list, (*lookup).prepare)
	for lacking := true; lacking; {
		for _, l := range list {
			if l.err != nil {
				return l.err
			}
		}
		lock()
		each(list, func(l *lookup) { l.short = l.taken && l.lacks() }) // others may have evicted rows since
		lacking = slices.ContainsFunc(list, func(l *lookup) bool { return l.short })
		if lacking {
			unlock()
			each(list, (*lookup).catchUp)
		}
	}
	each(list, func(l *lookup) {
		if l.taken {
			l.decide()
		}
	})
	r.sums.fills = true
	for _, l := range list {
		if !l.taken {
			continue
		}
		if err := l.launch(r, 0, len(l.part.Rows)); err != nil {
			_ = r.stream.Sync() // others do not wait for what is under way
			for _, l := range list {
				l.of.forget()
			}
			return err
		}
	}
	return nil
}

// each calls f for all look-ups beside each other.
func each(list []*lookup, f func(l *lookup)) {
	var g contain.Group
	for _, l := range list[1:] {
		g.Go(func() { f(l) })
	}
	defer g.Wait()
	f(list[0])
}

// prepare lists the rows and fetches those that the cache lacks, unless they need more than a stage.
func (l *lookup) prepare() {
	l.err = nil
	l.taken = l.distinct(l.part.Rows) <= l.of.stage
	l.catchUp()
}

// catchUp locks the cache and completes a look-up, which is a flight from then on.
func (l *lookup) catchUp() {
	if !l.taken {
		return
	}
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	if !l.of.flights[l] {
		l.depart()
	}
	l.err = l.complete()
}

// shares reports whether two look-ups are of one cache.
func (l *lookup) shares(o *lookup) bool { return l.of == o.of }

func (c *rowCache) newLookup(rowsAtOnce int) (l *lookup, err error) {
	l = &lookup{of: c, changed: map[int32]bool{}}
	defer func() {
		if err != nil {
			l.close(c.d)
			l = nil
		}
	}()
	if l.ids, err = c.d.c.AllocHost(4 * rowsAtOnce); err != nil {
		return l, err
	}
	most := min(c.stage, rowsAtOnce)
	if l.staged, err = c.d.c.AllocHost(c.rowBytes * most); err != nil {
		return l, err
	}
	if l.moves, err = c.d.c.AllocHost(16 * most); err != nil {
		return l, err
	}
	l.plan = rows.NewPlan(l.moves)
	l.jobs, err = c.rows.NewJobs(1)
	return l, err
}

func (l *lookup) close(d *device) {
	if l == nil {
		return
	}
	defer d.c.Leave()
	_ = d.c.Enter()
	for _, h := range []*driver.Host{l.ids, l.staged, l.moves} {
		_ = d.c.FreeHost(h) // fails with a lost GPU only
	}
	if l.jobs != nil {
		_ = l.of.rows.CloseJobs(l.jobs)
	}
}

// take gathers the rows of all rows of the batch. More distinct ones than the stage has room for take several rounds.
func (l *lookup) take(r *runner) error {
	n := len(l.part.Rows)
	step := n
	if l.distinct(l.part.Rows) > l.of.stage {
		step = l.of.stage
	}
	for first := 0; first < n; first += step {
		end := min(first+step, n)
		if step < n {
			l.distinct(l.part.Rows[first:end])
		}
		if first > 0 {
			if err := r.stream.Sync(); err != nil { // pinned memory is used again
				return err
			}
		}
		if err := l.round(r, first, end); err != nil {
			return err
		}
	}
	return nil
}

// distinct lists rows that are not negative, each once, and returns how many these are.
func (l *lookup) distinct(list []int32) int {
	size := 4
	for size < 2*len(list) {
		size *= 2
	}
	if len(l.places) != size {
		l.places = make([]int32, size)
	}
	for i := range l.places {
		l.places[i] = -1
	}
	l.rows, l.at = l.rows[:0], l.at[:0]
	for _, row := range list {
		if row < 0 {
			continue
		}
		at := int(uint32(row)*0x9E3779B1) & (size - 1)
		for l.places[at] >= 0 && l.rows[l.places[at]] != row {
			at = (at + 1) & (size - 1)
		}
		if l.places[at] < 0 {
			l.places[at] = int32(len(l.rows))
			l.rows, l.at = append(l.rows, row), append(l.at, -1)
		}
	}
	return len(l.rows)
}

// round fetches what the cache lacks of the distinct rows, until it lacks none, and gathers rows first to end of the
// batch. While a fetch is under way others may evict rows that were cached.
func (l *lookup) round(r *runner, first, end int) error {
	c := l.of
	c.mu.Lock()
	defer c.mu.Unlock()
	l.depart()
	defer l.arrive()
	if err := l.complete(); err != nil {
		return err
	}
	l.decide()
	r.sums.fills = true
	if err := l.launch(r, first, end); err != nil {
		_ = r.stream.Sync() // others do not wait for what is under way
		c.forget()
		return err
	}
	return nil
}

// complete fetches rows until the cache lacks none that was not fetched.
func (l *lookup) complete() error {
	for l.lacks() {
		if err := l.fetch(l.part.Source); err != nil {
			return err
		}
	}
	return nil
}

// depart makes the look-up one of its cache's flights until arrive is called.
func (l *lookup) depart() {
	l.known = l.known[:0]
	l.of.flights[l] = true
}

func (l *lookup) arrive() {
	delete(l.of.flights, l)
	clear(l.changed)
	l.stale = false
}

// ahead caches the distinct rows, those that it lacks, for a batch that comes later.
func (l *lookup) ahead(source compute.RowSource) error {
	c := l.of
	c.mu.Lock()
	defer c.mu.Unlock()
	l.depart()
	defer l.arrive()
	if !l.lacks() {
		return nil
	}
	if err := l.fetch(source); err != nil {
		return err
	}
	l.lacks() // others may have cached some since
	l.sent = l.sent[:0]
	for range l.known {
		l.sent = append(l.sent, evict.NoRow)
	}
	for i, at := range l.at {
		if at >= 0 && l.slots[i] < 0 {
			l.sent[at] = uint32(l.rows[i])
			c.stats.Prefetched++
		}
	}
	l.choose()
	err := l.stage(c.stream)
	if err == nil {
		err = c.rows.Place(c.stream, 0, l.plan)
	}
	if err == nil {
		err = c.last.Record(c.stream)
	}
	if err != nil {
		_ = c.stream.Sync()
		c.forget()
	}
	return err
}

// lacks lists the rows that are neither cached nor fetched.
func (l *lookup) lacks() bool {
	l.lacking, l.asked, l.slots = l.lacking[:0], l.asked[:0], l.slots[:0]
	for i, row := range l.rows {
		slot, ok := l.of.dir.Slot(uint32(row))
		if !ok {
			slot = -1
			if l.at[i] < 0 {
				l.lacking, l.asked = append(l.lacking, int32(i)), append(l.asked, row)
			}
		}
		l.slots = append(l.slots, int32(slot))
	}
	return len(l.asked) > 0
}

// fetch gets the rows that are lacking, behind those that were fetched before. The cache is not locked meanwhile.
func (l *lookup) fetch(source compute.RowSource) error {
	l.of.mu.Unlock()
	defer l.of.mu.Lock()
	n, bytes := len(l.known), l.of.rowBytes
	l.known = append(l.known, make([]bool, len(l.asked))...)
	to := l.staged.Bytes[bytes*n:][:bytes*len(l.asked)]
	if err := source.Fetch(l.asked, to, l.known[n:]); err != nil {
		return fmt.Errorf("fetch %d rows: %w", len(l.asked), err)
	}
	for i, place := range l.lacking {
		l.at[place] = int32(n + i)
	}
	return nil
}

// decide records the uses and chooses which of the fetched rows are cached, and where. Nobody has changed the directory
// since lacks.
func (l *lookup) decide() {
	c := l.of
	l.sent = l.sent[:0]
	for range l.known {
		l.sent = append(l.sent, evict.NoRow) // others may have cached a row since
	}
	for i, row := range l.rows {
		if slot := l.slots[i]; slot >= 0 {
			c.dir.UseSlot(int(slot))
			c.stats.Hits++
		} else {
			c.dir.Use(uint32(row))
			c.stats.Misses++
			l.sent[l.at[i]] = uint32(row)
		}
	}
	l.choose()
}

// choose decides which of the rows to be sent are cached.
func (l *lookup) choose() {
	c := l.of
	c.stats.Fetched += int64(c.rowBytes * len(l.sent))
	l.plan.Reset()
	for at, row := range l.sent {
		if row == evict.NoRow || !l.known[at] || l.stale || l.changed[int32(row)] {
			continue
		}
		slot, evicted, ok := c.dir.Place(row)
		if !ok {
			c.stats.Declined++
			continue
		}
		if evicted != evict.NoRow {
			c.stats.Evictions++
		}
		l.plan.Add(row, slot, at, evicted)
	}
}

// stage has the GPU fetch the rows to be sent, behind what others did with the cache.
func (l *lookup) stage(s *driver.Stream) error {
	c := l.of
	if err := s.Wait(c.last); err != nil {
		return err
	}
	if err := c.d.memory.await(s); err != nil { // pages may have been copied from
		return err
	}
	if len(l.sent) == 0 {
		return nil
	}
	if err := c.last.Sync(); err != nil { // the list of the fetch before
		return err
	}
	return c.rows.Fetch(s, 0, l.sent, l.staged.Ptr)
}

// launch has the GPU do what was decided.
func (l *lookup) launch(r *runner, first, end int) error {
	c, s, stride := l.of, r.stream, 4*r.sums.stride
	if err := l.stage(s); err != nil {
		return err
	}
	job := rows.Job{IDs: l.ids.Ptr.At(4 * first), Count: end - first, Out: l.out.At(first * stride), Stride: stride}
	if err := c.rows.Set(s, l.jobs, job); err != nil {
		return err
	}
	if err := c.rows.Gather(s, l.jobs); err != nil {
		return err
	}
	// Nothing has to forget the stage: the host has a row fetched again unless the directory has it.
	if err := c.rows.Place(s, 0, l.plan); err != nil {
		return err
	}
	return c.last.Record(s)
}

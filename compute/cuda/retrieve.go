package cuda

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"

	"grebe/compute"
	"grebe/compute/cuda/driver"
	"grebe/internal/offheap"
)

// Sizes that kernels/retrieve.cu has, too.
const (
	retrieveTile   = 32 // items of a warp
	retrieveGroup  = 8  // tiles that lie together
	retrieveChunk  = 64 // dimensions of a stage
	retrieveWarps  = 8  // of a block
	retrieveStage  = retrieveTile * (2*retrieveChunk + 16)
	retrieveList   = 16384
	retrieveOwn    = 10240 // keys of a list in places of blocks
	retrieveShared = compute.MaxHits + retrieveOwn
	retrieveRoom   = retrieveList - retrieveShared // for keys that blocks have no place for
	retrieveStatic = 10 << 10                      // most shared memory besides queries and stages
	retrieveSort   = 1024                          // threads that find the best of a list
)

// retrieveAsk is Ask of the kernel, retrieveState its State and retrieveCounts its Counts.
type retrieveAsk struct {
	after            uint64
	without, allowed driver.Ptr
	withouts, k      int32
}

type retrieveState struct {
	bound        [compute.MaxQueries]uint64
	kept, broken [compute.MaxQueries]uint32
	listed       [compute.MaxQueries]uint32
	failed       uint32
	unsure       uint32
	_            [14]uint32
}

type retrieveCounts struct{ added, broken [compute.MaxQueries]uint32 }

// retrieveParts is how many parts a search is cut into at most, as long as no list overflows.
const retrieveParts = 40

// retrieved is what kernels write: one block of memory on the GPU, and one of the host's that it is copied to.
type retrieved struct {
	state  retrieveState
	counts [retrieveParts]retrieveCounts
	best   [compute.MaxQueries][compute.MaxHits]compute.Hit
}

const (
	stateBytes   = int(unsafe.Sizeof(retrieveState{}))
	countsBytes  = int(unsafe.Sizeof(retrieveCounts{}))
	resultsBytes = int(unsafe.Sizeof(retrieved{}))
	bestAt       = int(unsafe.Offsetof(retrieved{}.best))
)

// retrieval is what searches of Vectors need, one at a time.
type retrieval struct {
	mu     sync.Mutex
	stream *driver.Stream
	done   *driver.Event
	args   *driver.Args
	out    *driver.Host // a retrieved
	outDev driver.Ptr
	lists  driver.Ptr
	owns   driver.Ptr   // [compute.MaxQueries][blocks]: keys in places of blocks
	in     *driver.Host // what queries are: asks, vectors, items that are left out or allowed
	inDev  driver.Ptr
	room   int // bytes of in
}

// vectors are items' vectors on the GPU.
type vectors struct {
	d            *device
	data         driver.Ptr // [items][chunks·retrieveChunk] of BF16
	items, width int
	chunks       int
	most         int // queries of a launch
}

func (d *device) Vectors(items, width int, read func(first int, to []float32) error) (compute.Vectors, error) {
	if items < 1 || items > math.MaxInt32-retrieveTile*retrieveGroup || width < 1 {
		return nil, fmt.Errorf("cuda: vectors of %d items with %d values", items, width)
	}
	v := &vectors{d: d, items: items, width: width, chunks: (width + retrieveChunk - 1) / retrieveChunk}
	for v.most = compute.MaxQueries; v.stages(v.most) < 2; v.most /= 2 {
		if v.most == 16 {
			return nil, compute.ErrNoVectors
		}
	}
	if err := v.compile(); err != nil {
		return nil, fmt.Errorf("cuda: vectors of %d items: %w", items, err)
	}
	p, err := v.load(read)
	if err != nil {
		return nil, fmt.Errorf("cuda: vectors of %d items: %w", items, err)
	}
	v.data = p
	freeWith(d, v, p)
	return v, nil
}

// loadBytes of vectors are read at a time.
const loadBytes = 64 << 20

// load copies all vectors to the GPU. They are read some at a time and rounded on all cores.
func (v *vectors) load(read func(first int, to []float32) error) (driver.Ptr, error) {
	d, stride := v.d, 2*retrieveChunk*v.chunks
	defer d.c.Leave()
	if err := d.c.Enter(); err != nil {
		return 0, err
	}
	p, err := d.alloc(v.items * stride)
	if err != nil {
		return 0, err
	}
	step := min(v.items, max(1, loadBytes/stride))
	rows := make([]float32, step*v.width)
	for from := 0; from < v.items && err == nil; from += step {
		n := min(step, v.items-from)
		if err = read(from, rows[:n*v.width]); err == nil {
			err = d.send(p.At(from*stride), n, stride, func(i int, to []byte) {
				for c, x := range rows[i*v.width:][:v.width] {
					*(*uint16)(unsafe.Pointer(&to[2*c])) = toBF16(x)
				}
			})
		}
	}
	if err != nil {
		d.free(p)
		return 0, err
	}
	return p, nil
}

// stages returns how many stages of a warp's ring there is room for beside the queries, up to 6.
func (v *vectors) stages(queries int) int {
	room := v.d.c.Info().SharedMemory - retrieveStatic - queries*(2*retrieveChunk*v.chunks+16)
	return min(6, max(0, room)/(retrieveWarps*retrieveStage))
}

// kernels returns the kernels of searches of up to so many queries.
func (v *vectors) kernels(queries int) (scan, best *driver.Function, err error) {
	defines := []string{fmt.Sprintf("QUERIES=%d", queries), fmt.Sprintf("STAGES=%d", v.stages(queries))}
	if scan, err = v.d.kernel("retrieve.cu", "retrieve_scan", defines...); err == nil {
		best, err = v.d.kernel("retrieve.cu", "retrieve_best", defines...)
	}
	return scan, best, err
}

// compile has the kernels ready before the first search.
func (v *vectors) compile() error {
	defer v.d.c.Leave()
	err := v.d.c.Enter()
	for n := 16; n <= v.most && err == nil; n *= 2 {
		_, _, err = v.kernels(n)
	}
	return err
}

func (v *vectors) Bytes() int64 { return int64(v.items) * int64(v.chunks) * 2 * retrieveChunk }

func (v *vectors) Best(queries []compute.Query) error {
	if len(queries) < 1 || len(queries) > compute.MaxQueries {
		return fmt.Errorf("cuda: %d queries, want 1 to %d", len(queries), compute.MaxQueries)
	}
	for i := range queries {
		if err := queries[i].Validate(v.items, v.width); err != nil {
			return err
		}
	}
	r := &v.d.retrieval
	r.mu.Lock()
	defer r.mu.Unlock()
	defer v.d.c.Leave()
	if err := v.d.c.Enter(); err != nil {
		return fmt.Errorf("cuda: retrieve: %w", err)
	}
	for some := range slices.Chunk(queries, v.most) {
		s := &retrieveScan{v: v, r: r, queries: some}
		err := s.run()
		if r.stream != nil && err != nil {
			_ = r.stream.Sync() // nothing may use the memory any more
		}
		if err != nil {
			return fmt.Errorf("cuda: retrieve: %w", err)
		}
	}
	runtime.KeepAlive(v) // whose collection frees the vectors
	return nil
}

// open makes what does not depend on queries.
func (r *retrieval) open(d *device) (err error) {
	if r.stream == nil {
		if r.stream, err = d.c.NewStream(); err != nil {
			return err
		}
	}
	if r.done == nil {
		if r.done, err = d.c.NewEvent(false); err != nil {
			return err
		}
	}
	if r.args == nil {
		if r.args, err = driver.NewArgs(); err != nil {
			return err
		}
	}
	if r.out == nil {
		if r.out, err = d.c.AllocHost(resultsBytes); err != nil {
			return err
		}
	}
	if r.outDev == 0 {
		if r.outDev, err = d.alloc(resultsBytes); err != nil {
			return err
		}
	}
	if r.lists == 0 {
		if r.lists, err = d.alloc(8 * retrieveList * compute.MaxQueries); err != nil {
			return err
		}
	}
	if r.owns == 0 {
		r.owns, err = d.alloc(4 * d.c.Info().Processors * compute.MaxQueries)
	}
	return err
}

// ready makes room for n bytes of queries.
func (r *retrieval) ready(d *device, n int) (err error) {
	if n <= r.room {
		return nil
	}
	d.free(r.inDev)
	err = d.c.FreeHost(r.in)
	r.in, r.inDev, r.room = nil, 0, 0
	if err != nil {
		return err
	}
	n += n / 4
	if r.in, err = d.c.AllocHost(n); err != nil {
		return err
	}
	if r.inDev, err = d.alloc(n); err == nil {
		r.room = n
	}
	return err
}

// close gives back what is not the device's memory.
func (r *retrieval) close(d *device) error {
	var err error
	if r.args != nil {
		r.args.Free()
	}
	if r.done != nil {
		err = r.done.Close()
	}
	if r.stream != nil {
		err = errors.Join(err, r.stream.Close())
	}
	return errors.Join(err, d.c.FreeHost(r.out), d.c.FreeHost(r.in))
}

// retrieveScan is one search.
type retrieveScan struct {
	v          *vectors
	r          *retrieval
	queries    []compute.Query
	scan, best *driver.Function
	launch     driver.Launch
	asked      driver.Ptr // the queries' vectors
	groups     int        // of tiles
	step       int        // from one group to the next
	k          int        // the most of any query
}

func (s *retrieveScan) run() error {
	if err := s.prepare(); err != nil {
		return err
	}
	err := s.search(retrieveShare)
	if err == nil && s.results().state.unsure != 0 {
		err = s.search(1) // which is sure
	}
	if err == nil {
		s.take()
	}
	return err
}

// search finds the best with bounds at a share of k at most.
func (s *retrieveScan) search(share int) error {
	if err := s.upload(); err != nil {
		return err
	}
	failed, err := s.quick(retrievePlan(s.groups*retrieveGroup, s.k, share))
	if err == nil && failed >= 0 {
		err = s.careful(failed)
	}
	return err
}

func (s *retrieveScan) prepare() (err error) {
	d, wide := s.v.d, 16
	for wide < len(s.queries) {
		wide *= 2
	}
	if err := s.r.open(d); err != nil {
		return err
	}
	if s.scan, s.best, err = s.v.kernels(wide); err != nil {
		return err
	}
	s.launch = driver.Launch{Grid: [3]int{d.c.Info().Processors}, Block: [3]int{32 * retrieveWarps},
		Shared: wide*(2*retrieveChunk*s.v.chunks+16) + retrieveWarps*s.v.stages(wide)*retrieveStage}
	items := retrieveTile * retrieveGroup
	s.groups = (s.v.items + items - 1) / items
	s.step = coprime(s.groups)
	for i := range s.queries {
		s.k = max(s.k, s.queries[i].K)
	}
	return s.scan.AllowShared(s.launch.Shared)
}

// coprime returns a number near the golden section of n that has no divisor in common with it: its first multiples,
// modulo n, are spread over all of n.
func coprime(n int) int {
	for step := max(1, int(float64(n)*0.6180339887)); ; step++ {
		a, b := n, step
		for b != 0 {
			a, b = b, a%b
		}
		if a == 1 {
			return step
		}
	}
}

// upload copies the queries to the GPU and clears what the kernels count in.
func (s *retrieveScan) upload() error {
	const asks = compute.MaxQueries * int(unsafe.Sizeof(retrieveAsk{}))
	wide, stride := s.v.most, 2*retrieveChunk*s.v.chunks
	size := asks + wide*stride
	for i := range s.queries {
		size += 4 * (len(s.queries[i].Without) + len(s.queries[i].Allowed))
	}
	if err := s.r.ready(s.v.d, size); err != nil {
		return err
	}
	in := s.r.in.Bytes
	clear(in[:asks+wide*stride])
	list, at := offheap.Slice[retrieveAsk](in, compute.MaxQueries), asks+wide*stride
	s.asked = s.r.inDev.At(asks)
	for i := range s.queries {
		q := &s.queries[i]
		to := offheap.Slice[uint16](in[asks+i*stride:], len(q.Vector))
		for c, x := range q.Vector {
			to[c] = toBF16(x)
		}
		a := &list[i]
		a.k, a.after = int32(q.K), math.MaxUint64
		if q.After != nil {
			a.after = keyOf(*q.After)
		}
		if n := len(q.Without); n > 0 {
			a.without, a.withouts = s.r.inDev.At(at), int32(n)
			copy(offheap.Slice[int32](in[at:], n), q.Without)
			at += 4 * n
		}
		if n := len(q.Allowed); n > 0 {
			a.allowed = s.r.inDev.At(at)
			copy(offheap.Slice[uint32](in[at:], n), q.Allowed)
			at += 4 * n
		}
	}
	if err := s.r.stream.Copy(s.r.inDev, s.r.in.Ptr, at); err != nil {
		return err
	}
	if err := s.r.stream.Fill(s.r.outDev, 0, stateBytes+retrieveParts*countsBytes); err != nil {
		return err
	}
	return s.r.stream.Fill(s.r.lists, 0, 8*retrieveList*len(s.queries)) // where the first part has no key
}

const (
	retrieveExpected = 3 * retrieveList / 8 // keys that a part may list, give or take 1/√place of them
	retrieveShare    = 4                    // of the places of an answer: what bounds are at the first of
	retrievePlace    = 64                   // bounds are at no earlier place, unless the answer ends there
)

// retrievePlan returns where the parts of a search for k items begin, their end, and which share of k the place of
// bounds is: 1, or at most what is asked for. Parts grow by one factor, as fast as their lists can be expected to take.
// Bounds at a share of k let them grow faster; but then parts have to grow so much that all items can be expected to
// have more than k keys above the bound.
func retrievePlan(end, k, most int) (begins []int, share int) {
	first := min(end, retrieveList/retrieveTile)
	plan := func(place int) (parts int, growth float64) {
		factor := 1 + float64(retrieveExpected)/float64(max(place, retrievePlace))
		whole := float64(end) / float64(first)
		parts = int(math.Ceil(math.Log(whole) / math.Log(factor)))
		return parts, math.Pow(whole, 1/float64(max(parts, 1)))
	}
	share = most
	parts, growth := plan(max(k/share, min(k, retrievePlace)))
	if growth < float64(2*share) {
		share = 1
		parts, growth = plan(k)
	}
	begins = []int{0, first}
	for i := 1; i < parts; i++ {
		begins = append(begins, int(float64(first)*math.Pow(growth, float64(i))))
	}
	if parts > 0 {
		begins = append(begins, end)
	}
	return begins, share
}

// quick launches all parts without waiting in between. It returns where the part began whose lists overflowed, −1
// where none did.
func (s *retrieveScan) quick(begins []int, share int) (failed int, err error) {
	for i, from := range begins[:len(begins)-1] {
		if err := s.part(i+1, i, from, begins[i+1], share, i == 0); err != nil {
			return 0, err
		}
	}
	if err := s.wait(); err != nil {
		return 0, err
	}
	if n := s.results().state.failed; n > 0 {
		return begins[n-1], nil
	}
	return -1, nil
}

// careful goes on from a part whose lists overflowed, in pieces. One that overflows again is done again in smaller
// ones: the smallest have no more items than a list has room for.
func (s *retrieveScan) careful(from int) error {
	const least = retrieveRoom / retrieveTile
	end, size := s.groups*retrieveGroup, least
	for from < end {
		to := min(end, from+size)
		if err := s.r.stream.Fill(s.r.outDev.At(int(unsafe.Offsetof(retrieveState{}.failed))), 0, 4); err != nil {
			return err
		}
		if err := s.r.stream.Fill(s.r.outDev.At(stateBytes), 0, countsBytes); err != nil {
			return err
		}
		if err := s.part(1, 0, from, to, 1, false); err != nil {
			return err
		}
		if err := s.wait(); err != nil {
			return err
		}
		most := slices.Max(s.results().state.listed[:len(s.queries)])
		switch {
		case s.results().state.failed > 0 && size <= least:
			return errors.New("a list overflowed that has room for all")
		case s.results().state.failed > 0:
			size = max(least, size/2)
			continue
		case most < retrieveList/4:
			size *= 2
		}
		from = to
	}
	return nil
}

// part launches the kernels of a part, which counts in a slot.
func (s *retrieveScan) part(number, slot, from, to, share int, dense bool) error {
	size := 0
	if dense {
		size = (to - from) * retrieveTile
	}
	blocks, err := s.read(slot, from, to, size)
	if err != nil {
		return err
	}
	return s.choose(number, slot, size, blocks, share, to == s.groups*retrieveGroup)
}

func (s *retrieveScan) counts(slot int) driver.Ptr {
	return s.r.outDev.At(stateBytes + slot*countsBytes)
}

// read launches the scan of a part and returns its blocks. A size that is not 0 is that of dense lists.
func (s *retrieveScan) read(slot, from, to, size int) (blocks int, err error) {
	a := s.r.args.Reset().Ptr(s.v.data).Ptr(s.asked).Ptr(s.r.inDev).Ptr(s.r.outDev).Ptr(s.r.lists).Ptr(s.r.owns)
	a.Ptr(s.counts(slot))
	a.Int(s.v.items).Int(s.v.chunks).Int(len(s.queries)).Int(s.groups).Int(s.step).Int(from).Int(to).Int(size)
	l := s.launch
	l.Grid[0] = min(l.Grid[0], (to-from+retrieveWarps-1)/retrieveWarps)
	return l.Grid[0], s.scan.Launch(s.r.stream, l, a)
}

// choose launches what keeps the best of the lists, and writes the hits behind the last part.
func (s *retrieveScan) choose(number, slot, size, blocks, share int, last bool) error {
	hits := driver.Ptr(0)
	if last {
		hits = s.r.outDev.At(bestAt)
	}
	a := s.r.args.Reset().Ptr(s.r.inDev).Ptr(s.r.outDev).Ptr(s.counts(slot)).Ptr(s.r.lists).Ptr(s.r.owns).Ptr(hits)
	a.Int(number).Int(size).Int(blocks).Int(share)
	return s.best.Launch(s.r.stream, driver.Launch{Grid: [3]int{len(s.queries)}, Block: [3]int{retrieveSort}}, a)
}

// retrievePolls is how long results are polled for: a thread that sleeps takes 0.15 ms to wake up.
const retrievePolls = 4 * time.Millisecond

// wait waits for the results.
func (s *retrieveScan) wait() error {
	n := bestAt + 8*compute.MaxHits*len(s.queries)
	if err := s.r.stream.Copy(s.r.out.Ptr, s.r.outDev, n); err != nil {
		return err
	}
	if err := s.r.done.Record(s.r.stream); err != nil {
		return err
	}
	for begin := time.Now(); time.Since(begin) < retrievePolls; {
		if done, err := s.r.done.Done(); done || err != nil {
			return err
		}
	}
	return s.r.done.Sync()
}

func (s *retrieveScan) results() *retrieved {
	return (*retrieved)(unsafe.Pointer(&s.r.out.Bytes[0]))
}

// take hands the results to the queries.
func (s *retrieveScan) take() {
	r := s.results()
	for i := range s.queries {
		q := &s.queries[i]
		q.Broken, q.Hits = int(r.state.broken[i]), append(q.Hits[:0], r.best[i][:r.state.kept[i]]...)
	}
}

// keyOf is key_of of the kernel: larger keys are better.
func keyOf(h compute.Hit) uint64 {
	b := math.Float32bits(h.Score)
	if h.Score == 0 {
		b = 0
	}
	if b>>31 == 1 {
		b = ^b
	} else {
		b |= 1 << 31
	}
	return uint64(b)<<32 | uint64(^uint32(h.Item))
}

var _ compute.Retriever = (*device)(nil)

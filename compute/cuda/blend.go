package cuda

import (
	"errors"
	"fmt"

	"grebe/compute"
	"grebe/compute/cuda/attend"
	"grebe/compute/cuda/driver"
	"grebe/internal/offheap"
)

// A batch that goes on with some of its rows runs in parts: what was recorded up to a layer that follows Keep is put
// into the stream, and the rest is recorded as a batch of the rows that are left. Their keys and values go to their
// tokens' places; all others are gathered from the chunks, where Place put them, unless it put them into attention's
// scratch.
//
// Place runs in a stream of its own, whose blocks are short and give way to those of the batch. Where it is followed by
// Received, it waits for the attention of which that adds up what was received: while the host chooses rows, the GPU
// has nothing else to do. What stands in goes straight to attention's scratch where it can, see goStraight. Chunks in
// the host's memory come in parts, a few layers first, and a layer waits for its own part, see tensor.beforeLeft: they
// are fetched by copies, in another stream ahead of it, see fetching. The host's way to the GPU is one: what the batch
// itself sends there would wait behind these copies. So the first part's begin behind what Received sends, and the
// others' behind the tables of the batch that goes on.

// placing is what Place needs.
type placing struct {
	stream   *driver.Stream
	done     []*driver.Event // by part of the layers: they are in place
	sent     *driver.Event   // the runs have left the host
	attended *driver.Event   // the attention that Received is asked about is computed
	args     *driver.Args
	place    *driver.Function
	angles   *driver.Function
	from     int  // first layer that was placed in this batch and not gone on with yet; −1: none
	first    int  // layer from which on runs are placed
	late     int  // last parts of the layers that are not in the stream yet
	busy     bool // something was placed that nobody has waited for

	host      *driver.Host // the runs, and how far K is turned
	dev       driver.Ptr
	cos, sin  driver.Ptr
	room      int // runs
	count     int
	short     int // the first of them, of few tokens
	angleRoom int // parts

	fetch fetching

	straight bool    // the runs go to attention's scratch
	to       run     // the beginning of that
	slots    []int32 // there, of the segments' first tokens
	held     []bool  // by row of the batch: what stands in for it is there, in all layers to come; empty: nothing is
}

// run is tokens that lie together in two chunks, as place.cu has it.
type run struct {
	from, to             uint64
	fromRoom, toRoom     int32
	fromToken, toToken   int32
	tokens, turned, part int32
	straight             int32 // to is attention's scratch, toRoom and toToken are in slots
}

const runBytes = 48

// placedParts are the first layers of the parts in which layers are placed.
var placedParts = [...]int{0, 3, 9, 18}

// placedWith returns the part of a layer.
func placedWith(layer int) int {
	p := len(placedParts) - 1
	for layer < placedParts[p] {
		p--
	}
	return p
}

// firstLayer returns the first layer whose attention is among the recorded operations; −1: there is none.
func (r *runner) firstLayer() int {
	for i := range r.ops {
		if k := r.ops[i].kind; k == opQKV || k == opUVQK || k == opAttend {
			return r.ops[i].layer
		}
	}
	return -1
}

// layers goes through the layers whose attention is among the recorded operations.
func (r *runner) layers() func(yield func(int) bool) {
	return func(yield func(int) bool) {
		for i := range r.ops {
			if k := r.ops[i].kind; (k == opQKV || k == opUVQK) && !yield(r.ops[i].layer) {
				return
			}
		}
	}
}

// goOn is called before a layer is recorded: a batch whose rows were dropped, or got K and V from elsewhere, goes on
// as one of the rows that are left.
func (r *runner) goOn(layer int) {
	if r.err != nil || !r.kept && (r.placing.from < 0 || layer < r.placing.from) {
		return
	}
	if !r.dropped {
		r.ids = r.ids[:0]
		for i := range r.batch.Tokens {
			r.ids = append(r.ids, int32(i))
		}
	}
	if err := r.batch.CheckKept(&r.shape, r.ids); err != nil {
		r.fail(err)
		return
	}
	if r.search.spec != nil {
		r.fail(errors.Join(compute.ErrNoSearch, errors.New("cuda: searches do not go on with some of a prompt's rows")))
		return
	}
	r.placing.from = -1
	if err := r.flushed(); err != nil {
		r.fail(fmt.Errorf("cuda: %w", err))
		return
	}
	r.lefts = append(r.lefts[:0], r.ids...)
	if r.left, r.kept = r.lefts, false; r.left == nil {
		r.left = []int32{} // none, and not all
	}
}

// flushed is flush from outside of the context. Nothing is recorded afterwards.
func (r *runner) flushed() error {
	defer r.dev.c.Leave()
	err := r.dev.c.Enter()
	if err == nil {
		err = r.placing.open(r)
	}
	if err == nil {
		err = r.flush()
	}
	r.ops = r.ops[:0]
	return err
}

// Start puts what was recorded so far into the stream, so that the GPU computes while the host goes about something
// else.
func (r *runner) Start() {
	if r.err != nil || r.ran || r.dropped || len(r.ops) == 0 {
		return
	}
	r.brief = true
	err := r.flushed()
	r.brief = false
	if err != nil {
		r.err = fmt.Errorf("cuda: start: %w", err)
		r.giveUp()
	}
}

func (r *runner) Received(out []float32) error {
	layer := r.attended
	switch {
	case layer < 0 || r.dropped || r.ran || r.shape.Pointwise != nil:
		r.fail(errors.New("cuda: no attention of all rows was just computed"))
	case len(out) != len(r.batch.Tokens):
		r.fail(fmt.Errorf("cuda: attention received by %d rows into %d values", len(r.batch.Tokens), len(out)))
	}
	if r.err != nil {
		r.giveUp()
		return r.err
	}
	if len(out) == 0 {
		return nil
	}
	if err := r.receive(layer, out); err != nil {
		r.err = fmt.Errorf("cuda: attention received: %w", err)
		r.giveUp()
	}
	return r.err
}

func (r *runner) receive(layer int, out []float32) error {
	if err := r.flushed(); err != nil {
		return err
	}
	defer r.dev.c.Leave()
	if err := r.dev.c.Enter(); err != nil {
		return err
	}
	p := &r.placing
	beside := p.first > layer // the sums read nothing of what is placed
	if beside {
		if err := p.attended.Record(r.stream); err != nil {
			return err
		}
	}
	from, err := r.att.receive(layer)
	if err != nil {
		return err
	}
	r.busy = true
	if !beside {
		if err := p.attended.Record(r.stream); err != nil {
			return err
		}
	}
	if err := p.follow(r); err != nil {
		return err
	}
	n := r.att.sums()
	if err := r.ioBytes(8 * n); err != nil {
		return err
	}
	if err := r.stream.Copy(r.io.Ptr, from, 8*n); err != nil {
		return err
	}
	if err := r.waitAmid(); err != nil {
		return err
	}
	r.att.received(offheap.Slice[uint64](r.io.Bytes, n), out)
	return nil
}

// share turns a sum over rows and heads in fixed point into a mean over heads.
func share(sum uint64, heads int) float32 {
	return float32(float64(sum) / (1 << attend.Fraction) / float64(heads))
}

func (t *tensor) receive(layer int) (driver.Ptr, error) {
	return t.now.Receive(t.r.stream, layer, t.r.bufs.q, t.r.bufs.attCols)
}

func (t *tensor) sums() int {
	_, n := t.now.Slots()
	return n
}

func (t *tensor) received(sums []uint64, out []float32) {
	slots, _ := t.now.Slots()
	for row, slot := range slots {
		out[row] = share(sums[slot], t.r.shape.Heads)
	}
}

func (a *direct) receive(layer int) (driver.Ptr, error) {
	r, s := a.r, &a.r.shape
	if a.receives == nil {
		f, err := r.dev.kernel("received_direct.cu", "received_direct", fmt.Sprintf("Q=%d", r.bufs.queryFormat()),
			fmt.Sprintf("KV=%d", s.KV),
			fmt.Sprintf("HEADS=%d", s.Heads), fmt.Sprintf("KV_HEADS=%d", s.KVHeads), fmt.Sprintf("DIM=%d", s.HeadDim))
		if err != nil {
			return 0, err
		}
		a.receives = f
	}
	n := a.sums()
	if err := r.resultBytes(8 * n); err != nil {
		return 0, err
	}
	if err := r.stream.Fill(r.result, 0, 8*n); err != nil {
		return 0, err
	}
	args := r.args.Reset().Ptr(r.result).Ptr(r.bufs.q).Ptr(r.tables.sights()).Ptr(r.tables.spanTable()).Ptr(
		r.tables.trueRows())
	return r.result, a.receives.Launch(r.stream, driver.Launch{Grid: [3]int{n, (s.Heads + 3) / 4}, Block: [3]int{128}},
		args.Int(r.bufs.attCols).Int(layer).Float(a.scale))
}

func (a *direct) sums() int { return len(a.r.batch.Tokens) }

func (a *direct) received(sums []uint64, out []float32) {
	for row := range out {
		out[row] = share(sums[row], a.r.shape.Heads)
	}
}

func (r *runner) Place(from int, parts []compute.Part) {
	if r.err != nil {
		return
	}
	err := r.batch.CheckParts(&r.shape, parts)
	for i := range parts {
		if parts[i].From.Addr == 0 && err == nil {
			err = fmt.Errorf("part %d is not in the device's memory", i)
		}
	}
	if from < 0 || from > r.shape.Layers || r.ran {
		err = fmt.Errorf("layers of %d from %d on, or results were taken", r.shape.Layers, from)
	}
	if err == nil && len(parts) > 0 && from < r.shape.Layers {
		err = r.placeAll(from, parts)
	}
	if err != nil {
		r.fail(fmt.Errorf("cuda: place: %w", err))
	}
}

func (r *runner) placeAll(from int, parts []compute.Part) error {
	defer r.dev.c.Leave()
	if err := r.dev.c.Enter(); err != nil {
		return err
	}
	p := &r.placing
	if !r.begun {
		if err := r.wait(); err != nil { // for a batch whose results nobody took
			return err
		}
	}
	if err := p.open(r); err != nil {
		return err
	}
	if err := p.launch(r, len(placedParts)); err != nil { // what was to be placed before
		return err
	}
	if err := p.fetch.choose(r, parts, !p.busy); err != nil {
		return err
	}
	if err := p.goStraight(r, from); err != nil {
		return err
	}
	if err := p.fill(r, parts); err != nil {
		return err
	}
	if p.from < 0 || from < p.from {
		p.from = from
	}
	p.busy = true
	return p.send(r, from, len(parts))
}

// open makes what is needed, the first time, or nothing.
func (p *placing) open(r *runner) error {
	if p.angles != nil {
		return nil
	}
	err := p.make(r)
	if err != nil {
		p.close(r.dev)
	}
	return err
}

func (p *placing) make(r *runner) (err error) {
	c, s := r.dev.c, &r.shape
	if p.stream, err = c.NewStream(); err != nil {
		return err
	}
	if p.args, err = driver.NewArgs(); err != nil {
		return err
	}
	if p.sent, err = c.NewEvent(false); err != nil {
		return err
	}
	if p.attended, err = c.NewEvent(false); err != nil {
		return err
	}
	for range placedParts {
		e, err := c.NewEvent(false)
		if err != nil {
			return err
		}
		p.done = append(p.done, e)
		if err := e.Record(p.stream); err != nil {
			return err
		}
	}
	if err := p.fetch.open(r); err != nil {
		return err
	}
	if s.KV != compute.FP8 { // of which nothing is placed: CheckParts
		defines := []string{fmt.Sprintf("KV=%d", s.KV), fmt.Sprintf("KV_HEADS=%d", s.KVHeads),
			fmt.Sprintf("DIM=%d", s.HeadDim)}
		if p.place, err = r.dev.kernel("place.cu", "place", defines...); err != nil {
			return err
		}
	}
	p.angles, err = r.dev.kernel("angles.cu", "angles")
	return err
}

// fill writes the runs of parts, cut where chunks end, behind how far each part is turned.
func (p *placing) fill(r *runner, parts []compute.Part) error {
	if err := p.sent.Sync(); err != nil {
		return err
	}
	runs, alone := 0, p.straight && len(p.held) == 0 // the scratch has nothing of the batch yet
	if alone {
		runs = cachedRuns(r.batch)
	}
	for i := range parts {
		runs += 1 + len(r.batch.Segments[parts[i].Segment].Chunks) + parts[i].Tokens/longRun
	}
	if err := p.grow(r, runs, len(parts)); err != nil {
		return err
	}
	head := offheap.Slice[int32](p.host.Bytes, 4)
	head[0] = int32(len(parts))
	turns := offheap.Slice[int32](p.host.Bytes[turnsAt:], len(parts))
	all := offheap.Slice[run](p.host.Bytes[p.runsAt():], p.room)
	p.list(r.batch, parts, turns, all, alone)
	return nil
}

// list writes the runs of parts to all and how far these are turned to turns; alone: the batch's cached tokens as well.
func (p *placing) list(b *compute.Batch, parts []compute.Part, turns []int32, all []run, alone bool) {
	p.count = 0
	for _, short := range []bool{true, false} {
		for i := range parts {
			part := &parts[i]
			g := &b.Segments[part.Segment]
			if turns[i] = int32(part.Turn); part.Tokens <= shortRun != short {
				continue
			}
			if p.straight {
				p.add(all, &part.From, part.First, p.slotsOf(part.Segment, part.At, part.Tokens, part.Turn, i))
				continue
			}
			p.cut(all, g, part, int32(i))
		}
		if short {
			p.short = p.count
		}
	}
	if alone {
		p.addCached(all, b)
	}
	if p.straight {
		p.hold(b, parts)
	}
}

// shortRun tokens are placed by a warp for all heads; longRun is the most of a head that one takes at a time.
const shortRun, longRun = 4, 32

// cut appends the runs of a part to all.
func (p *placing) cut(all []run, g *compute.Segment, part *compute.Part, number int32) {
	start, end := 0, part.At+part.Tokens // of the chunk; of the part
	for c := range g.Chunks {
		ch := &g.Chunks[c]
		from, to := max(start, part.At), min(start+ch.Tokens, end)
		if from < to {
			p.add(all, &part.From, part.First+from-part.At,
				run{to: ch.Addr, toRoom: int32(ch.Tokens), toToken: int32(from - start), tokens: int32(to - from),
					turned: turned(part.Turn), part: number})
		}
		start += ch.Tokens
	}
}

// turned says as place.cu has it whether K is.
func turned(turn int) int32 {
	if turn != 0 {
		return 1
	}
	return 0
}

// add appends a run of a chunk's tokens, from one of them on, to all, cut so that none is long.
func (p *placing) add(all []run, chunk *compute.Chunk, first int, w run) {
	w.from, w.fromRoom, w.fromToken = p.fetch.locate(chunk), int32(chunk.Tokens), int32(first)
	for left := w.tokens; left > 0; left -= w.tokens {
		w.tokens = min(left, longRun)
		all[p.count] = w
		p.count++
		w.fromToken += w.tokens
		w.toToken += w.tokens
	}
}

// turnsAt is behind the number of parts.
const turnsAt = 64

func (p *placing) runsAt() int { return (turnsAt + 4*p.angleRoom + 63) &^ 63 }

// grow makes room for runs and parts.
func (p *placing) grow(r *runner, runs, parts int) error {
	if runs <= p.room && parts <= p.angleRoom {
		return nil
	}
	if err := p.stream.Sync(); err != nil {
		return err
	}
	p.free(r.dev)
	runs, parts = runs+runs/4+64, parts+parts/4+64
	p.room, p.angleRoom = runs, parts
	bytes, angles := p.runsAt()+runs*runBytes, 4*parts*r.shape.HeadDim/2
	p.room, p.angleRoom = 0, 0
	var err error
	if p.host, err = r.dev.c.AllocHost(bytes); err != nil {
		return err
	}
	for _, w := range []buffer{{&p.dev, bytes}, {&p.cos, angles}, {&p.sin, angles}} {
		if *w.to, err = r.dev.alloc(w.bytes); err != nil {
			return err
		}
	}
	p.room, p.angleRoom = runs, parts
	return nil
}

// send puts the copy of the runs, and how far K is turned, into the stream of its own.
func (p *placing) send(r *runner, from, parts int) error {
	half, s := r.shape.HeadDim/2, p.stream
	p.first, p.late = from, len(placedParts)
	if err := r.dev.memory.await(s); err != nil {
		return err
	}
	if err := s.Copy(p.dev, p.host.Ptr, p.runsAt()+p.count*runBytes); err != nil {
		return err
	}
	if err := p.sent.Record(s); err != nil {
		return err
	}
	return p.angles.Launch(s, driver.Launch{Grid: [3]int{(parts*half + 255) / 256}, Block: [3]int{256}},
		p.args.Reset().Ptr(p.cos).Ptr(p.sin).Ptr(p.dev.At(turnsAt)).Ptr(r.bufs.frequencies).Ptr(p.dev).Int(half).Float(1))
}

// launch puts the parts up to one that are not there yet into the stream: those that are fetched one by one, others
// together.
func (p *placing) launch(r *runner, end int) error {
	s := p.stream
	for len(placedParts)-p.late < end {
		i := len(placedParts) - p.late
		n := 1
		if p.together() {
			n = end - i
		}
		first, _ := placedLayers(i, p.first, r.shape.Layers)
		if _, end := placedLayers(i+n-1, p.first, r.shape.Layers); first < end {
			if err := p.fetch.start(r, i, first, end); err != nil {
				return err
			}
			if err := p.fetch.await(s, i); err != nil {
				return err
			}
			a := p.args.Reset().Ptr(p.dev.At(p.runsAt())).Int(p.count).Int(p.short).Ptr(p.cos).Ptr(p.sin)
			l := driver.Launch{Grid: [3]int{p.blocks(r, end-first)}, Block: [3]int{256}}
			if err := p.place.Launch(s, l, a.Int(first).Int(end-first)); err != nil {
				return err
			}
		}
		for ; n > 0; n-- {
			if err := p.done[len(placedParts)-p.late].Record(s); err != nil {
				return err
			}
			p.late--
		}
	}
	return nil
}

// together reports whether all parts are placed by one launch: layers then wait once.
func (p *placing) together() bool { return !p.fetch.active }

// blocks returns how many place.cu takes for so many layers: its warps have two runs of a head each. It is odd, so that
// one of them is of keys, which take longer, and one of values.
func (p *placing) blocks(r *runner, layers int) int {
	runs := (p.short + 2*r.shape.KVHeads*(p.count-p.short)) * layers
	return (runs+15)/16 | 1
}

// follow has parts placed behind attention: beside the end of the kernel that adds up what was received, and while rows
// are chosen, when the GPU has nothing else to do. What is fetched from the host's memory comes in parts, the first of
// which need not wait.
func (p *placing) follow(r *runner) error {
	if p.fetch.active {
		return p.launch(r, placedWith(p.first)+1)
	}
	if err := p.stream.Wait(p.attended); err != nil {
		return err
	}
	return p.launch(r, len(placedParts))
}

// placedLayers returns the layers of a part that are from on.
func placedLayers(part, from, layers int) (first, end int) {
	end = layers
	if part+1 < len(placedParts) {
		end = min(end, placedParts[part+1])
	}
	return max(placedParts[part], from), end
}

// await makes a stream wait for all that was placed.
func (p *placing) await(s *driver.Stream) error {
	if len(p.done) == 0 {
		return nil
	}
	return s.Wait(p.done[len(p.done)-1])
}

// placed makes the results wait for what was placed. It is called inside the context.
func (r *runner) placed() error {
	if !r.placing.busy {
		return nil
	}
	r.busy = true
	if err := r.placing.launch(r, len(placedParts)); err != nil {
		return err
	}
	if err := r.placing.await(r.stream); err != nil {
		return err
	}
	r.placing.busy = false
	return nil
}

// free gives the memory back.
func (p *placing) free(d *device) {
	for _, q := range []*driver.Ptr{&p.dev, &p.cos, &p.sin} {
		d.free(*q)
		*q = 0
	}
	_ = d.c.FreeHost(p.host) // fails with a lost GPU only
	p.host = nil
}

func (p *placing) close(d *device) {
	if p.stream == nil {
		return
	}
	_ = errors.Join(p.stream.Sync(), p.stream.Close()) // fail with a lost GPU only
	p.fetch.close(d)
	for _, e := range []*driver.Event{p.sent, p.attended} {
		if e != nil {
			_ = e.Close()
		}
	}
	for _, e := range p.done {
		_ = e.Close()
	}
	p.free(d)
	if p.args != nil {
		p.args.Free()
	}
	*p = placing{from: -1}
}

var (
	_ compute.Blender = (*runner)(nil)
	_ compute.Starter = (*runner)(nil)
)

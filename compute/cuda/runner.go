package cuda

import (
	"errors"
	"fmt"
	"slices"

	"grebe/compute"
	"grebe/compute/cuda/driver"
	"grebe/compute/cuda/product"
	"grebe/internal/offheap"
)

// runner records the operations of a batch and runs them when a result is asked for.
type runner struct {
	dev   *device
	shape compute.Shape
	max   int // rows that a batch may have

	err     error  // the first failure since Begin
	batches uint64 // that were begun
	batch   *compute.Batch
	ops     []op
	keep    []int32 // rows of x that go on after Keep
	place   []int32 // row of x for each row of the batch, −1 when dropped
	rows    int     // of x as recorded so far
	kept    bool    // Keep is among ops
	ran     bool    // the last ops were started
	busy    bool    // and may still run
	counted bool    // as time in which the GPU is busy

	// Of a batch that goes on with some rows, in several parts.
	begun    bool    // some ops were started
	filled   bool    // the tables are
	dropped  bool    // Keep was called
	ids      []int32 // rows of the batch that Keep left
	left     []int32 // those that the recorded ops begin with; nil: all
	lefts    []int32 // memory for left
	base     bool    // they begin with the second one of bufs.x
	attended int     // layer of Attend, if that was recorded last; −1
	placing  placing

	capturing bool // operations are recorded as a graph
	alone     bool // the next kernel starts when all before it in the stream has ended: that is no kernel
	ahead     bool // the first operations are in the stream already, up to the first product
	brief     bool // what is started is few layers: plans have to be made soon rather than well

	stream *driver.Stream
	done   *driver.Event
	near   *driver.Event // the last layer of a batch begins
	sent   *driver.Event // the tables have left the host
	args   *driver.Args
	bufs   buffers
	tables tables
	att    attention
	graphs graphs
	calls  map[fusedKey]*product.Call // nil where a product is not fused
	sums   sums
	io     *driver.Host // small inputs and outputs of results
	result driver.Ptr   // of Project
	room   int          // bytes of result
	search searching

	normTo   [compute.FP8 + 1]*driver.Function // by the format of the result
	logitsOf [formats]*driver.Function         // by that of the table
	scaled   *driver.Function                  // of results of products of FP8
	lacks    pending                           // of x, while operations are put into the stream
}

// opKind is an operation of compute.Runner.
type opKind uint8

const (
	opEmbed opKind = iota
	opQKV
	opAttend
	opKeep
	opOutput
	opFFN
	opSum
	opUVQK
	opMix
)

// op is a recorded operation. Two batches whose ops are equal run the same kernels on the same
// weights.
type op struct {
	kind         opKind
	layer        int
	table        *table
	w, down      *linear
	norm         *vector
	bias         *vector
	downBias     *vector
	qNorm, kNorm *vector

	// Of layers of HSTU.
	shift   *vector
	part    int     // of Sum
	scale   float32 // of Sum
	perHead bool
}

var errNoBatch = errors.New("cuda: no batch was begun")

func checkShape(s *compute.Shape, maxRows int) error {
	if s.Pointwise != nil && maxRows > 0 {
		return s.CheckPointwise()
	}
	if s.Heads < 1 || s.KVHeads < 1 || s.Heads%s.KVHeads != 0 || s.HeadDim < 2 || s.HeadDim%2 != 0 ||
		s.Hidden < 1 || s.Inter < 1 || s.Layers < 1 || len(s.Rope.InvFreq) != s.HeadDim/2 ||
		s.KV != compute.F32 && s.KV != compute.BF16 && s.KV != compute.FP8 || maxRows < 1 {
		return fmt.Errorf("cuda: cannot run shape %+v with batches of %d rows", *s, maxRows)
	}
	return nil
}

func (d *device) Open(s compute.Shape, maxRows int) (compute.Runner, error) {
	if err := checkShape(&s, maxRows); err != nil {
		return nil, err
	}
	s.Rope.InvFreq = slices.Clone(s.Rope.InvFreq)
	r := &runner{dev: d, shape: s, max: maxRows, err: errNoBatch}
	defer d.c.Leave()
	err := d.c.Enter()
	if err == nil {
		err = r.open()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cuda: a runner of %d rows: %w", maxRows, err), r.close())
	}
	return r, nil
}

func (r *runner) open() (err error) {
	c := r.dev.c
	if r.stream, err = c.NewUrgentStream(); err != nil {
		return err
	}
	if r.done, err = c.NewEvent(false); err != nil {
		return err
	}
	if r.sent, err = c.NewEvent(false); err != nil {
		return err
	}
	if r.near, err = c.NewEvent(false); err != nil {
		return err
	}
	if r.args, err = driver.NewArgs(); err != nil {
		return err
	}
	r.tables.pointwise = r.shape.Pointwise
	if err = r.tables.open(r.dev, bucket(r.max)); err != nil {
		return err
	}
	return r.bufs.open(r.dev, &r.shape, bucket(r.max))
}

func (r *runner) Close() error {
	defer r.dev.c.Leave()
	return errors.Join(r.dev.c.Enter(), r.close())
}

// close gives back what open took, as far as it came.
func (r *runner) close() error {
	c := r.dev.c
	var err error
	if r.stream != nil {
		err = r.stream.Sync()
	}
	r.rests()
	r.placing.close(r.dev)
	r.graphs.drop()
	if r.att != nil {
		r.att.close()
	}
	r.search.close(r.dev)
	r.tables.close(r.dev)
	r.bufs.close(r.dev)
	r.sums.close(r.dev)
	r.dev.free(r.result)
	if r.io != nil {
		err = errors.Join(err, c.FreeHost(r.io))
	}
	if r.args != nil {
		r.args.Free()
	}
	for _, e := range []*driver.Event{r.done, r.sent, r.near} {
		if e != nil {
			err = errors.Join(err, e.Close())
		}
	}
	if r.stream != nil {
		err = errors.Join(err, r.stream.Close())
	}
	return err
}

func (r *runner) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *runner) Begin(b *compute.Batch) error {
	r.giveUp()
	r.batches++
	r.ops, r.rows, r.kept, r.ran = r.ops[:0], 0, false, false
	r.begun, r.filled, r.dropped, r.left, r.base, r.attended, r.placing.from = false, false, false, nil, false, -1, -1
	r.placing.held = r.placing.held[:0]
	r.batch = b
	r.err = r.begin(b)
	if r.err == nil {
		r.rows = len(b.Tokens)
	}
	return r.err
}

func (r *runner) begin(b *compute.Batch) error {
	if err := b.Validate(&r.shape); err != nil {
		return err
	}
	if len(b.Tokens) > r.max {
		return fmt.Errorf("cuda: batch of %d rows, at most %d", len(b.Tokens), r.max)
	}
	for i := range b.Segments {
		for c := range b.Segments[i].Chunks {
			if b.Segments[i].Chunks[c].Addr == 0 {
				return fmt.Errorf("cuda: segment %d chunk %d is not in the device's memory", i, c)
			}
		}
	}
	if err := r.dev.c.Lost(); err != nil {
		return fmt.Errorf("cuda: the GPU was lost: %w", err)
	}
	return nil
}

func (r *runner) Embed(t compute.Table) {
	if r.err != nil {
		return
	}
	tab, ok := t.(*table)
	if !ok || tab.cols != r.shape.Hidden {
		r.fail(fmt.Errorf("cuda: embedding table does not fit a hidden size of %d", r.shape.Hidden))
		return
	}
	for i, id := range r.batch.Tokens {
		if id < 0 || int(id) >= tab.rows {
			r.fail(fmt.Errorf("cuda: token %d of the batch is %d, outside the table of %d", i, id, tab.rows))
			return
		}
	}
	r.record(op{kind: opEmbed, table: tab})
}

func (r *runner) record(o op) {
	if r.ran {
		r.fail(errors.New("cuda: an operation after a result was taken"))
	}
	if r.err == nil {
		r.ops, r.attended = append(r.ops, o), -1
	}
}

// weights returns the matrix behind l when it has the wanted shape.
func (r *runner) weights(what string, l compute.Linear, out, in int, gated bool) *linear {
	w, ok := l.(*linear)
	if !ok || w.out != out || w.in != in || w.gated != gated {
		r.fail(fmt.Errorf("cuda: %s does not have the shape %d×%d", what, out, in))
		return nil
	}
	return w
}

// values returns v as this device's; nil stays nil.
func (r *runner) values(what string, v compute.Vector, n int) *vector {
	if v == nil {
		return nil
	}
	f, ok := v.(*vector)
	if !ok || f.n != n {
		r.fail(fmt.Errorf("cuda: %s does not have %d values", what, n))
		return nil
	}
	return f
}

func (r *runner) QKV(layer int, w *compute.AttentionWeights) {
	s := &r.shape
	width := (s.Heads + 2*s.KVHeads) * s.HeadDim
	o := op{kind: opQKV, layer: layer,
		w:     r.weights("QKV", w.QKV, width, s.Hidden, false),
		norm:  r.values("the norm before QKV", w.Norm, s.Hidden),
		bias:  r.values("the bias of QKV", w.QKVBias, width),
		qNorm: r.values("the norm of queries", w.QNorm, s.HeadDim),
		kNorm: r.values("the norm of keys", w.KNorm, s.HeadDim)}
	if s.Pointwise != nil {
		r.fail(errors.New("cuda: QKV is an operation of decoders, and the shape is HSTU's"))
	}
	if layer < 0 || layer >= s.Layers {
		r.fail(fmt.Errorf("cuda: layer %d of %d", layer, s.Layers))
	}
	r.goOn(layer)
	r.record(o)
}

func (r *runner) Attend(layer int) {
	r.record(op{kind: opAttend, layer: layer})
	r.attended = layer
}

func (r *runner) Keep(rows []int32) {
	if r.err != nil {
		return
	}
	last := int32(-1)
	for _, row := range rows {
		if row <= last || r.at(row) < 0 {
			r.fail(fmt.Errorf("cuda: Keep of row %d after %d, of %d rows", row, last, r.rows))
			return
		}
		last = row
	}
	again := r.kept
	if again && r.ops[len(r.ops)-1].kind != opKeep {
		r.fail(errors.New("cuda: Keep called twice in a layer"))
		return
	}
	before := r.keep
	r.keep = r.keep[:0]
	for _, row := range rows { // ascending, so that none of before is overwritten ahead of its turn
		from := r.at(row)
		if again {
			from = before[from]
		}
		r.keep = append(r.keep, from)
	}
	r.place = slices.Grow(r.place[:0], len(r.batch.Tokens))[:len(r.batch.Tokens)]
	for i := range r.place {
		r.place[i] = -1
	}
	for i, row := range rows {
		r.place[row] = int32(i)
	}
	r.ids = append(r.ids[:0], rows...)
	r.kept, r.dropped, r.rows = true, true, len(rows)
	if !again {
		r.record(op{kind: opKeep})
	}
}

func (r *runner) Output(w *compute.AttentionWeights) {
	s := &r.shape
	r.record(op{kind: opOutput,
		w:    r.weights("the output projection", w.Out, s.Hidden, s.Heads*s.HeadDim, false),
		bias: r.values("the bias of the output projection", w.OutBias, s.Hidden)})
}

func (r *runner) FFN(w *compute.FFNWeights) {
	s := &r.shape
	r.record(op{kind: opFFN,
		w:        r.weights("gate and up", w.GateUp, 2*s.Inter, s.Hidden, true),
		down:     r.weights("down", w.Down, s.Hidden, s.Inter, false),
		norm:     r.values("the norm before the feed-forward layer", w.Norm, s.Hidden),
		bias:     r.values("the bias of gate and up", w.GateUpBias, 2*s.Inter),
		downBias: r.values("the bias of down", w.DownBias, s.Hidden)})
}

// at returns the row of x that holds row id of the batch, −1 when it was dropped or never was.
func (r *runner) at(id int32) int32 {
	switch {
	case id < 0 || int(id) >= len(r.batch.Tokens):
		return -1
	case r.dropped:
		return r.place[id]
	}
	return id
}

// checkRows fails when one of the rows is not in x.
func (r *runner) checkRows(rows []int32) {
	for _, id := range rows {
		if r.err == nil && r.at(id) < 0 {
			r.fail(fmt.Errorf("cuda: row %d: no such row", id))
		}
	}
}

// finish runs what was recorded and then get, which puts the work for a result into the stream, and
// waits for both.
func (r *runner) finish(get func(r *runner) error) error {
	if r.err != nil {
		r.giveUp()
		return r.err
	}
	defer r.dev.c.Leave()
	err := r.dev.c.Enter()
	if err == nil {
		err = r.start()
	}
	if err == nil {
		err = r.placed()
	}
	if err == nil && get != nil {
		r.busy = true
		err = get(r)
	}
	if err == nil {
		err = r.wait()
	}
	if err == nil && r.att != nil {
		err = r.att.settle()
	}
	if err != nil {
		r.err = fmt.Errorf("cuda: %w", err)
		r.giveUp()
	}
	return r.err
}

// giveUp waits for what was started of a batch that failed, or whose results nobody took: its memory may be freed
// next. Errors are those of a lost GPU, and come back with the next result.
func (r *runner) giveUp() {
	copying := r.att != nil && r.att.copying()
	if !r.busy && !r.placing.busy && !copying && !r.sums.fills {
		return
	}
	defer r.rests()
	defer r.dev.c.Leave()
	if r.dev.c.Enter() != nil {
		return
	}
	_ = r.stream.Sync()
	if copying {
		_ = r.att.idle()
	}
	if r.placing.busy {
		r.placing.busy, r.placing.late = false, 0
		_ = errors.Join(r.placing.fetch.stream.Sync(), r.placing.stream.Sync())
	}
}

// ioBytes makes room for n bytes of small inputs and outputs.
func (r *runner) ioBytes(n int) error {
	if r.io != nil && len(r.io.Bytes) >= n {
		return nil
	}
	if r.io != nil {
		if err := r.dev.c.FreeHost(r.io); err != nil {
			return err
		}
	}
	var err error
	r.io, err = r.dev.c.AllocHost(max(n, 64<<10))
	return err
}

// ioInts returns n ints of the small inputs from byte at on.
func (r *runner) ioInts(at, n int) []int32 { return offheap.Slice[int32](r.io.Bytes[at:], n) }

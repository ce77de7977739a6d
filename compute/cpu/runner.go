package cpu

import (
	"errors"
	"fmt"
	"math"
	"runtime"

	"grebe/compute"
	"grebe/compute/cpu/attend"
	"grebe/compute/cpu/gemm"
	"grebe/compute/cpu/internal/team"
	"grebe/compute/internal/fp8"
	"grebe/internal/offheap"
)

// Rows per task of row-wise work, and per block of the feed-forward layer, whose activations stay
// in the second-level cache from one product to the next.
const (
	rowsPerTask = 16
	ffnBlock    = 512

	// Memory for more rows than this is given back after a batch that needed it.
	keptRows = 16384
)

// formats are those that weights are packed in.
var formats = [...]compute.DType{compute.F32, compute.BF16, compute.INT8}

// slot returns the place of a format.
func slot(dt compute.DType) int {
	if dt == compute.INT8 {
		return 2
	}
	return int(dt)
}

// runner holds the activations of one batch.
type runner struct {
	dev   *device
	shape compute.Shape
	max   int

	batch *compute.Batch
	err   error
	rows  int // rows in x
	// largest is the most rows of a batch since memory was last given back.
	largest int
	kept    bool    // Keep was called: place and ids are in use
	place   []int32 // row of x for each row of the batch, −1 when dropped
	ids     []int32 // row of the batch for each row of x
	// narrowed is the number of rows that attention was told to go on with; −1: all of the batch's.
	narrowed int
	attended int // layer whose queries and attention there are, or −1
	placed   placing

	blocks []*offheap.Block
	x      []float32 // hidden state [rows][Hidden]
	qkv    []float32 // [rows][Heads+2·KVHeads][HeadDim]
	q, o   []float32 // [rows][Heads·HeadDim]
	cos    []float32 // [rows][HeadDim/2]
	sin    []float32
	home   []home // where the K and V of a row go

	in    [len(formats)]*gemm.Rows // input of a product, by the slot of the weights' format: normed x, or attention
	inter [len(formats)]*gemm.Rows // silu(gate)·up, likewise
	att   *attend.Attention
	work  [][]float32 // one row of scratch per worker

	// Arguments of the job under way, and the jobs, made once so that a pass allocates nothing.
	arg                                              arguments
	embed, norm, angles, write, packO, logits, final *team.Job
	chosen                                           *team.Job
	stu                                              stuRun
}

type arguments struct {
	layer int
	first bool // rows that are the first of their chunks are written, or the others
	from  int  // first row
	count int
	table *table
	gain  vector
	dst   *gemm.Rows
	attn  *compute.AttentionWeights
	pairs []compute.Pair
	ids   []int32
	out   []float32
}

// home is where a row's K and V live: a chunk and the token's place in it.
type home struct {
	chunk *compute.Chunk
	token int
}

func (d *device) Open(s compute.Shape, maxRows int) (compute.Runner, error) {
	if s.Pointwise != nil {
		if err := s.CheckPointwise(); err != nil || maxRows < 1 {
			return nil, errors.Join(fmt.Errorf("cpu: cannot run HSTU with batches of %d rows", maxRows), err)
		}
	} else if s.Heads < 1 || s.KVHeads < 1 || s.Heads%s.KVHeads != 0 || s.HeadDim < 2 || s.HeadDim%2 != 0 ||
		s.Hidden < 1 || s.Inter < 1 || s.Layers < 1 || len(s.Rope.InvFreq) != s.HeadDim/2 ||
		s.KV != compute.F32 && s.KV != compute.BF16 && s.KV != compute.FP8 || maxRows < 1 {
		return nil, fmt.Errorf("cpu: cannot run shape %+v with batches of %d rows", s, maxRows)
	}
	r := &runner{dev: d, shape: s, max: maxRows, err: errors.New("cpu: no batch was begun")}
	half, width := s.HeadDim/2, (s.Heads+2*s.KVHeads)*s.HeadDim
	if s.Pointwise != nil {
		half, width = 1, 4*s.Heads*s.HeadDim // nothing is rotated, and u comes besides
	}
	for _, b := range []struct {
		dst *[]float32
		n   int
	}{
		{&r.x, s.Hidden}, {&r.qkv, width},
		{&r.q, s.Heads * s.HeadDim}, {&r.o, s.Heads * s.HeadDim}, {&r.cos, half}, {&r.sin, half},
	} {
		block, err := offheap.Alloc(maxRows * b.n * 4)
		if err != nil {
			r.free()
			return nil, fmt.Errorf("cpu: activations of %d rows: %w", maxRows, err)
		}
		r.blocks = append(r.blocks, block)
		*b.dst = offheap.Slice[float32](block.Bytes, maxRows*b.n)
	}
	for i, dt := range formats {
		r.in[i], r.inter[i] = gemm.NewRows(d.level, dt), gemm.NewRows(d.level, dt)
	}
	att, err := attend.New(s, d.level, d.team)
	if err != nil {
		r.free()
		return nil, fmt.Errorf("cpu: %w", err)
	}
	r.att = att
	for range d.team.Threads() {
		r.placed.rows = append(r.placed.rows, make([]float32, s.HeadDim))
		r.work = append(r.work, make([]float32, max(s.Hidden, s.Heads*s.HeadDim)))
	}
	r.jobs()
	return r, nil
}

func (r *runner) free() {
	for _, b := range r.blocks {
		b.Free()
	}
	r.blocks = nil
}

func (r *runner) Close() error {
	r.free()
	for i := range r.in {
		r.in[i].Free()
		r.inter[i].Free()
	}
	r.att.Close()
	return nil
}

func (r *runner) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// run splits count rows, starting at from, over the team.
func (r *runner) run(job *team.Job, from, count int) {
	r.arg.from, r.arg.count = from, count
	r.dev.team.Run((count+rowsPerTask-1)/rowsPerTask, job)
}

// each makes a job of a function of one row.
func (r *runner) each(f func(w, row int)) *team.Job {
	return &team.Job{Do: func(w, task int) {
		a := &r.arg
		for i := task * rowsPerTask; i < min(a.count, (task+1)*rowsPerTask); i++ {
			f(w, a.from+i)
		}
	}}
}

func (r *runner) jobs() {
	h, d := r.shape.Hidden, r.shape.HeadDim
	r.embed = r.each(func(_, i int) { r.dev.row(r.x[i*h:][:h], r.arg.table.t, int(r.batch.Tokens[i])) })
	r.norm = r.each(func(w, i int) {
		r.arg.dst.Set(i-r.arg.from, 0, r.normRow(w, i))
	})
	r.placed.job.Do = r.placePiece
	r.angles = r.each(func(_, i int) { r.angle(i) })
	r.write = r.each(func(w, i int) { r.writeKV(w, i) })
	r.packO = r.each(func(_, i int) {
		n := r.shape.Heads * d
		r.arg.dst.Set(i-r.arg.from, 0, r.o[i*n:][:n])
	})
	r.logits = &team.Job{Do: r.logitRow}
	r.stuJobs()
	r.chosen = r.each(func(w, i int) { r.arg.dst.Set(i, 0, r.normRow(w, r.at(r.arg.ids[i]))) })
	r.final = r.each(func(w, i int) {
		copy(r.arg.out[i*h:][:h], r.normRow(w, r.at(r.arg.ids[i])))
	})
}

// normRow returns row i of x, normed into the worker's scratch when there is a norm.
func (r *runner) normRow(w, i int) []float32 {
	x := r.x[i*r.shape.Hidden:][:r.shape.Hidden]
	if r.arg.gain == nil {
		return x
	}
	out := r.work[w][:r.shape.Hidden]
	r.dev.ops.RMSNorm(out, x, r.arg.gain, r.shape.Eps)
	return out
}

func (r *runner) Begin(b *compute.Batch) error {
	r.trim()
	r.err, r.kept, r.rows, r.largest = nil, false, 0, max(r.largest, len(b.Tokens))
	r.narrowed, r.attended = -1, -1
	r.placed.parts, r.placed.pieces, r.placed.next = nil, r.placed.pieces[:0], r.shape.Layers
	if err := b.ValidateHost(&r.shape); err != nil {
		r.err = err
		return err
	}
	if len(b.Tokens) > r.max {
		r.err = fmt.Errorf("cpu: batch of %d rows, at most %d", len(b.Tokens), r.max)
		return r.err
	}
	r.dev.mu.Lock()
	defer r.dev.mu.Unlock()
	r.batch, r.rows = b, len(b.Tokens)
	r.locate()
	if r.shape.Pointwise == nil {
		r.run(r.angles, 0, r.rows)
	}
	if err := r.att.Plan(b); err != nil {
		r.err = fmt.Errorf("cpu: %w", err)
	}
	return r.err
}

// trim gives back the memory of an exceptionally large batch.
func (r *runner) trim() {
	if r.largest <= keptRows {
		return
	}
	r.largest = 0
	for _, b := range r.blocks {
		b.Discard()
	}
	for i, dt := range formats {
		r.in[i].Free()
		r.in[i] = gemm.NewRows(r.dev.level, dt)
	}
}

// locate finds where the K and V of every row go.
func (r *runner) locate() {
	r.home = r.home[:0]
	for i := range r.batch.Segments {
		s := &r.batch.Segments[i]
		at, c := 0, 0 // first token of chunk c
		for t := s.Cached; t < s.Len; t++ {
			for t >= at+s.Chunks[c].Tokens {
				at += s.Chunks[c].Tokens
				c++
			}
			r.home = append(r.home, home{&s.Chunks[c], t - at})
		}
	}
}

func (r *runner) angle(i int) {
	half := r.shape.HeadDim / 2
	cos, sin := r.cos[i*half:][:half], r.sin[i*half:][:half]
	pos := float32(r.batch.Positions[i])
	for j, f := range r.shape.Rope.InvFreq {
		s, c := math.Sincos(float64(pos * f))
		cos[j] = float32(c) * r.shape.Rope.Scale
		sin[j] = float32(s) * r.shape.Rope.Scale
	}
}

func (r *runner) Embed(t compute.Table) {
	if r.err != nil {
		return
	}
	tab, ok := t.(*table)
	if !ok || tab.t.Cols != r.shape.Hidden {
		r.fail(fmt.Errorf("cpu: embedding table does not fit a hidden size of %d", r.shape.Hidden))
		return
	}
	for i, id := range r.batch.Tokens {
		if id < 0 || int(id) >= tab.t.Rows {
			r.fail(fmt.Errorf("cpu: token %d of the batch is %d, outside the table of %d", i, id, tab.t.Rows))
			return
		}
	}
	r.dev.mu.Lock()
	defer r.dev.mu.Unlock()
	r.arg.table = tab
	r.run(r.embed, 0, r.rows)
}

// weights returns the packed matrix behind l when it has the wanted shape.
func (r *runner) weights(what string, l compute.Linear, out, in int) *linear {
	w, ok := l.(*linear)
	if !ok || w.Out() != out || w.In() != in {
		r.fail(fmt.Errorf("cpu: %s does not have the shape %d×%d", what, out, in))
		return nil
	}
	return w
}

// ready prepares dst for count rows of depth k; false when there is no memory for them.
func (r *runner) ready(dst *gemm.Rows, count, k int) bool {
	if err := dst.Reset(count, k); err != nil {
		r.fail(fmt.Errorf("cpu: %w", err))
		return false
	}
	r.arg.dst = dst
	return true
}

// readyResults prepares dst for the results of a gated product.
func (r *runner) readyResults(dst *gemm.Rows, count, k int) bool {
	if err := dst.ResetResults(count, k); err != nil {
		r.fail(fmt.Errorf("cpu: %w", err))
		return false
	}
	return true
}

// values returns v's values; nil stays nil.
func (r *runner) values(what string, v compute.Vector, n int) vector {
	if v == nil {
		return nil
	}
	f, ok := v.(vector)
	if !ok || len(f) != n {
		r.fail(fmt.Errorf("cpu: %s does not have %d values", what, n))
		return nil
	}
	return f
}

// normed packs norm(x) of rows [from, from+count) as the input of a product with w; nil when there
// is no memory for it.
func (r *runner) normed(w *linear, gain vector, from, count int) *gemm.Rows {
	in := r.in[slot(w.dt)]
	if !r.ready(in, count, r.shape.Hidden) {
		return nil
	}
	r.arg.gain = gain
	r.run(r.norm, from, count)
	return in
}

func (r *runner) QKV(layer int, w *compute.AttentionWeights) {
	s := &r.shape
	width := (s.Heads + 2*s.KVHeads) * s.HeadDim
	m := r.weights("QKV", w.QKV, width, s.Hidden)
	gain := r.values("the norm before QKV", w.Norm, s.Hidden)
	bias := r.values("the bias of QKV", w.QKVBias, width)
	r.values("the norm of queries", w.QNorm, s.HeadDim)
	r.values("the norm of keys", w.KNorm, s.HeadDim)
	if layer < 0 || layer >= s.Layers || s.Pointwise != nil {
		r.fail(fmt.Errorf("cpu: layer %d of %d of a decoder", layer, s.Layers))
	}
	if r.attended = -1; r.err != nil || !r.narrow() {
		return
	}
	r.dev.mu.Lock()
	defer r.dev.mu.Unlock()
	if r.placeUpTo(layer + 1); r.rows == 0 {
		return
	}
	in := r.normed(m, gain, 0, r.rows)
	if in == nil {
		return
	}
	r.dev.mul.Store(r.qkv, width, in, m.w, bias)
	runtime.KeepAlive(m) // whose collection frees the weights
	r.arg.layer, r.arg.attn = layer, w
	r.arg.first = s.KV == compute.FP8 // those fix the scales of the others
	r.run(r.write, 0, r.rows)
	if r.arg.first {
		r.arg.first = false
		r.run(r.write, 0, r.rows)
	}
}

// writeKV norms and rotates the heads of row i of x, keeps its queries and writes its keys and values.
func (r *runner) writeKV(w, i int) {
	s, id := &r.shape, i
	if r.kept {
		id = int(r.ids[i])
	}
	if s.KV == compute.FP8 && (r.home[id].token == 0) != r.arg.first {
		return
	}
	d, half := s.HeadDim, s.HeadDim/2
	row := r.qkv[i*(s.Heads+2*s.KVHeads)*d:][:(s.Heads+2*s.KVHeads)*d]
	cos, sin := r.cos[id*half:][:half], r.sin[id*half:][:half]
	qnorm, _ := r.arg.attn.QNorm.(vector)
	knorm, _ := r.arg.attn.KNorm.(vector)
	for h := range s.Heads + s.KVHeads {
		v, gain := row[h*d:][:d], qnorm
		if h >= s.Heads {
			gain = knorm
		}
		if gain != nil {
			r.dev.ops.RMSNorm(v, v, gain, s.Eps)
		}
		r.dev.ops.Rotate(v, cos, sin)
	}
	copy(r.q[i*s.Heads*d:][:s.Heads*d], row)
	at := r.home[id]
	for h := range s.KVHeads {
		k, v := row[(s.Heads+h)*d:][:d], row[(s.Heads+s.KVHeads+h)*d:][:d]
		contain(k, v)
		r.store(at, 0, h, k)
		r.store(at, 1, h, v)
	}
}

// largestFinite is what bf16 has a finite number for.
const largestFinite = 3.38e38

// contain makes a value that is no finite number zeros, and its key NaN. Attention multiplies the values of keys that a
// row does not see by 0: a value that is no number would spread to these rows. A key that is no number reaches the rows
// that see it alone.
func contain(k, v []float32) {
	for _, x := range v {
		if !(x < largestFinite && x > -largestFinite) {
			clear(v)
			for i := range k {
				k[i] = float32(math.NaN())
			}
			return
		}
	}
}

// store writes one head of K (0) or V (1), rounded to the cache's format.
func (r *runner) store(at home, kv, head int, src []float32) {
	s := &r.shape
	layer := r.arg.layer
	if at.chunk.Transient {
		layer = 0
	}
	i := kv*s.KVHeads + head
	b := at.chunk.Bytes[s.TokenAt(layer, i, at.token, at.chunk.Tokens):][:s.HeadDim*s.KV.Size()]
	switch s.KV {
	case compute.F32:
		copy(view[float32](b), src)
	case compute.FP8:
		first := s.TokenAt(layer, i, 0, at.chunk.Tokens)
		storeScaled(b, src, &view[float32](at.chunk.Bytes[first-s.ScaleBytes():][:4])[0], at.token == 0)
	default:
		r.dev.ops.ToBF16(view[uint16](b), src)
	}
}

// storeScaled writes src as e4m3, with the scale of the chunk, which its first token fixes.
func storeScaled(b []byte, src []float32, scale *float32, first bool) {
	if first {
		*scale = fp8.Scale(fp8.Most(src))
	}
	inverse := 1 / *scale
	for i, v := range src {
		b[i] = fp8.Encode(v * inverse)
	}
}

func (r *runner) Attend(layer int) {
	if r.err != nil || r.rows == 0 {
		return
	}
	r.dev.mu.Lock()
	defer r.dev.mu.Unlock()
	r.att.Run(layer, r.q, r.o)
	r.attended = layer
}

func (r *runner) Output(w *compute.AttentionWeights) {
	s := &r.shape
	m := r.weights("the output projection", w.Out, s.Hidden, s.Heads*s.HeadDim)
	bias := r.values("the bias of the output projection", w.OutBias, s.Hidden)
	if r.err != nil || r.rows == 0 {
		return
	}
	r.dev.mu.Lock()
	defer r.dev.mu.Unlock()
	in := r.in[slot(m.dt)]
	if !r.ready(in, r.rows, s.Heads*s.HeadDim) {
		return
	}
	r.attended = -1
	r.run(r.packO, 0, r.rows)
	r.dev.mul.Add(r.x, s.Hidden, in, m.w, bias)
	runtime.KeepAlive(m)
}

func (r *runner) FFN(w *compute.FFNWeights) {
	s := &r.shape
	gu := r.weights("gate and up", w.GateUp, 2*s.Inter, s.Hidden)
	down := r.weights("down", w.Down, s.Hidden, s.Inter)
	gain := r.values("the norm before the feed-forward layer", w.Norm, s.Hidden)
	guBias := r.values("the bias of gate and up", w.GateUpBias, 2*s.Inter)
	downBias := r.values("the bias of down", w.DownBias, s.Hidden)
	if r.err != nil {
		return
	}
	r.dev.mu.Lock()
	defer r.dev.mu.Unlock()
	for from := 0; from < r.rows; from += ffnBlock {
		n := min(ffnBlock, r.rows-from)
		in, inter := r.normed(gu, gain, from, n), r.inter[slot(down.dt)]
		if in == nil || !r.readyResults(inter, n, s.Inter) {
			return
		}
		r.dev.mul.Gated(inter, in, gu.w, guBias)
		r.dev.mul.Add(r.x[from*s.Hidden:], s.Hidden, inter, down.w, downBias)
	}
	runtime.KeepAlive(gu)
	runtime.KeepAlive(down)
}

// at returns the row of x that holds row id of the batch, −1 when it was dropped or never was.
func (r *runner) at(id int32) int {
	switch {
	case id < 0 || int(id) >= len(r.batch.Tokens):
		return -1
	case r.kept:
		return int(r.place[id])
	}
	return int(id)
}

func (r *runner) Logits(norm compute.Vector, head compute.Table, pairs []compute.Pair, out []float32) error {
	gain := r.values("the final norm", norm, r.shape.Hidden)
	tab, ok := head.(*table)
	if !ok || tab.t.Cols != r.shape.Hidden || len(out) != len(pairs) {
		r.fail(fmt.Errorf("cpu: %d logits into %d values, with a table or norm that does not fit", len(pairs), len(out)))
	}
	for _, p := range pairs {
		if r.err != nil {
			break
		}
		if r.at(p.Row) < 0 || p.ID < 0 || int(p.ID) >= tab.t.Rows {
			r.fail(fmt.Errorf("cpu: logit %d of row %d: no such row or token", p.ID, p.Row))
		}
	}
	if r.err != nil || len(pairs) == 0 {
		return r.err
	}
	r.dev.mu.Lock()
	defer r.dev.mu.Unlock()
	r.placeUpTo(r.shape.Layers)
	r.arg.gain, r.arg.table, r.arg.pairs, r.arg.out = gain, tab, pairs, out
	r.arg.count = len(pairs)
	r.dev.team.Run((len(pairs)+pairsPerTask-1)/pairsPerTask, r.logits)
	return nil
}

// pairsPerTask logits are computed by one worker; a row is normed once for neighbours that share it.
const pairsPerTask = 256

func (r *runner) logitRow(w, task int) {
	a := &r.arg
	var x []float32
	last := int32(-1)
	for i := task * pairsPerTask; i < min(a.count, (task+1)*pairsPerTask); i++ {
		p := a.pairs[i]
		if p.Row != last {
			x, last = r.normRow(w, r.at(p.Row)), p.Row
		}
		a.out[i] = r.dev.dot(x, a.table.t, int(p.ID))
	}
}

func (r *runner) Project(norm compute.Vector, w compute.Linear, rows []int32, out []float32) error {
	gain := r.values("the final norm", norm, r.shape.Hidden)
	m, ok := w.(*linear)
	if !ok || m.In() != r.shape.Hidden || len(out) != len(rows)*m.Out() {
		r.fail(fmt.Errorf("cpu: projection of %d rows into %d values, with a matrix that does not fit", len(rows), len(out)))
	}
	r.checkRows(rows)
	if r.err != nil || len(rows) == 0 {
		return r.err
	}
	r.dev.mu.Lock()
	defer r.dev.mu.Unlock()
	r.placeUpTo(r.shape.Layers)
	in := r.in[slot(m.dt)]
	if !r.ready(in, len(rows), r.shape.Hidden) {
		return r.err
	}
	r.arg.gain, r.arg.ids = gain, rows
	r.run(r.chosen, 0, len(rows))
	r.dev.mul.Store(out, m.Out(), in, m.w, nil)
	runtime.KeepAlive(m)
	return nil
}

// checkRows fails when one of the rows is not in x.
func (r *runner) checkRows(rows []int32) {
	for _, id := range rows {
		if r.err == nil && r.at(id) < 0 {
			r.fail(fmt.Errorf("cpu: row %d: no such row", id))
		}
	}
}

func (r *runner) Hidden(norm compute.Vector, rows []int32, out []float32) error {
	gain := r.values("the final norm", norm, r.shape.Hidden)
	if len(out) != len(rows)*r.shape.Hidden {
		r.fail(fmt.Errorf("cpu: %d rows of %d into %d values", len(rows), r.shape.Hidden, len(out)))
	}
	r.checkRows(rows)
	if r.err != nil || len(rows) == 0 {
		return r.err
	}
	r.dev.mu.Lock()
	defer r.dev.mu.Unlock()
	r.placeUpTo(r.shape.Layers)
	r.arg.gain, r.arg.ids, r.arg.out = gain, rows, out
	r.run(r.final, 0, len(rows))
	return nil
}

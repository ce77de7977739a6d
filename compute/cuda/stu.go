package cuda

import (
	"errors"
	"fmt"

	"grebe/compute"
	"grebe/compute/cuda/driver"
	"grebe/internal/offheap"
)

// sums are the inputs of Sum: where each row's part lies in its table, and parts that come from the host. Their
// places depend on the runner only, as graphs need it.
type sums struct {
	rows    int // of a part: the runner's
	parts   int // of the batch
	index   *driver.Host
	indices driver.Ptr // [compute.MaxSumParts][rows]

	stride  int // columns of vectors
	host    [compute.MaxSumParts]*driver.Host
	vectors [compute.MaxSumParts]driver.Ptr // [rows][stride], for parts that have been vectors
	sent    [compute.MaxSumParts]bool       // of the batch: the part is vectors

	cached [compute.MaxSumParts]*lookup // for parts that have come from a cache of rows
	beside []*lookup                    // of the batch, those that are taken beside each other
	fills  bool                         // vectors of the batch are being filled from caches, ahead of its operations
}

func (s *sums) open(d *device, rows, stride int) error {
	if s.index != nil {
		return nil
	}
	s.rows, s.stride = rows, stride
	indices, err := d.alloc(4 * compute.MaxSumParts * rows)
	if err != nil {
		return err
	}
	if s.index, err = d.c.AllocHost(4 * compute.MaxSumParts * rows); err != nil {
		s.index = nil
		d.free(indices)
		return err
	}
	s.indices = indices
	return nil
}

// room makes room for vectors of a part. Columns beyond the model's stay zeros.
func (s *sums) room(d *device, part int) (err error) {
	if s.vectors[part] != 0 {
		return nil
	}
	p, err := d.alloc(4 * s.rows * s.stride)
	if err == nil {
		err = d.c.Zero(p, 4*s.rows*s.stride)
	}
	if err != nil {
		d.free(p)
		return err
	}
	s.vectors[part] = p
	return nil
}

// hostRoom makes room for vectors of a part that come from the host.
func (s *sums) hostRoom(d *device, part int) (err error) {
	if err = s.room(d, part); err != nil || s.host[part] != nil {
		return err
	}
	if s.host[part], err = d.c.AllocHost(4 * s.rows * s.stride); err != nil {
		return err
	}
	clear(s.host[part].Bytes)
	return nil
}

func (s *sums) close(d *device) {
	_ = d.c.FreeHost(s.index) // fails with a lost GPU only
	d.free(s.indices)
	for i := range s.host {
		_ = d.c.FreeHost(s.host[i])
		d.free(s.vectors[i])
		s.cached[i].close(d)
	}
}

// upload puts the copies to the GPU into the stream.
func (s *sums) upload(stream *driver.Stream, rows int) error {
	for i := range s.parts {
		if err := stream.Copy(s.indices.At(4*i*s.rows), s.index.Ptr.At(4*i*s.rows), 4*rows); err != nil {
			return err
		}
		if s.sent[i] {
			if err := stream.Copy(s.vectors[i], s.host[i].Ptr, 4*rows*s.stride); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *runner) Sum(parts []compute.SumPart) {
	if r.err != nil {
		return
	}
	if err := r.takeSum(parts); err != nil {
		r.fail(fmt.Errorf("cuda: sum: %w", err))
		return
	}
	for i := range parts {
		o := op{kind: opSum, part: i, scale: parts[i].Scale}
		if !r.sums.sent[i] && parts[i].Cached == nil {
			o.table = parts[i].Table.(*table)
		}
		r.record(o)
	}
}

// takeSum copies what the parts are to where the GPU finds it.
func (r *runner) takeSum(parts []compute.SumPart) error {
	if r.shape.Pointwise == nil {
		return errors.New("the shape is a decoder's")
	}
	if len(parts) < 1 || len(parts) > compute.MaxSumParts {
		return fmt.Errorf("%d parts, want 1 to %d", len(parts), compute.MaxSumParts)
	}
	for i := range parts {
		if err := r.checkPart(&parts[i]); err != nil {
			return err
		}
	}
	defer r.dev.c.Leave()
	if err := r.dev.c.Enter(); err != nil {
		return err
	}
	err := r.wait()
	if err == nil && r.sums.fills { // of a Sum before this one
		r.sums.fills, err = false, r.stream.Sync()
	}
	if err == nil {
		err = r.sums.open(r.dev, r.bufs.rows, r.bufs.hidden)
	}
	if err != nil {
		return err
	}
	s := &r.sums
	s.parts = len(parts)
	for i := range parts {
		p := &parts[i]
		to := offheap.Slice[int32](s.index.Bytes[4*i*s.rows:], s.rows)
		copy(to, p.Rows)
		if s.sent[i] = p.Vectors != nil && p.Cached == nil; !s.sent[i] {
			continue
		}
		if err := s.hostRoom(r.dev, i); err != nil {
			return err
		}
		all := offheap.Slice[float32](s.host[i].Bytes, s.rows*s.stride)
		for row, at := range p.Rows {
			if at >= 0 {
				to[row] = int32(row)
				copy(all[row*s.stride:][:r.shape.Hidden], p.Vectors[int(at)*r.shape.Hidden:])
			}
		}
	}
	return r.takeCached(parts)
}

// checkPart refuses a part that does not fit the batch.
func (r *runner) checkPart(p *compute.SumPart) error {
	n := len(p.Vectors) / r.shape.Hidden
	if p.Cached != nil {
		c, ok := p.Cached.(*rowCache)
		if !ok || c.d != r.dev || c.width != r.shape.Hidden || p.Source == nil || p.Source.Format() != c.dt {
			return fmt.Errorf("a cache of rows does not fit a hidden size of %d or its source, or has none", r.shape.Hidden)
		}
		n = c.table
	} else if p.Vectors == nil {
		t, ok := p.Table.(*table)
		if !ok || t.cols != r.shape.Hidden {
			return fmt.Errorf("a table does not fit a hidden size of %d", r.shape.Hidden)
		}
		n = t.rows
	}
	if len(p.Rows) != len(r.batch.Tokens) {
		return fmt.Errorf("a part has %d rows for %d of the batch", len(p.Rows), len(r.batch.Tokens))
	}
	for row, at := range p.Rows {
		if int(at) >= n {
			return fmt.Errorf("row %d: row %d of a part of %d", row, at, n)
		}
	}
	return nil
}

func (r *runner) UVQK(layer int, w *compute.STUWeights) {
	s := &r.shape
	n := s.Heads * s.HeadDim
	o := op{kind: opUVQK, layer: layer,
		w:     r.weights("UVQK", w.UVQK, 4*n, s.Hidden, false),
		norm:  r.values("the norm before UVQK", w.Norm, s.Hidden),
		shift: r.values("the norm's bias before UVQK", w.NormBias, s.Hidden),
		bias:  r.values("the bias of UVQK", w.UVQKBias, 4*n)}
	if s.Pointwise == nil {
		r.fail(errors.New("cuda: UVQK is an operation of HSTU, and the shape is a decoder's"))
	}
	if layer < 0 || layer >= s.Layers {
		r.fail(fmt.Errorf("cuda: layer %d of %d", layer, s.Layers))
	}
	if r.kept {
		r.fail(errors.New("cuda: a layer of HSTU behind Keep"))
	}
	r.record(o)
}

func (r *runner) Mix(w *compute.STUWeights) {
	s := &r.shape
	n := s.Heads * s.HeadDim
	norms := n
	if w.PerHead {
		norms = s.Heads
	}
	o := op{kind: opMix, perHead: w.PerHead,
		w:     r.weights("the output projection", w.Out, s.Hidden, 3*n, false),
		norm:  r.values("the norm of attention", w.OutNorm, norms),
		shift: r.values("the bias of attention's norm", w.OutNormBias, norms)}
	if s.Pointwise == nil {
		r.fail(errors.New("cuda: Mix is an operation of HSTU, and the shape is a decoder's"))
	}
	r.record(o)
}

// stuFunctions are functionsFor layers of HSTU.
func (r *runner) stuFunctions(dt compute.DType) (*functions, error) {
	f := &functions{}
	s, q := &r.shape, r.bufs.queryFormat()
	scratch := "SCRATCH=0"
	if r.bufs.tensor {
		scratch = "SCRATCH=1"
	}
	heads, dim := fmt.Sprintf("HEADS=%d", s.Heads), fmt.Sprintf("DIM=%d", s.HeadDim)
	for _, k := range []struct {
		to         **driver.Function
		file, name string
		defines    []string
	}{
		{&f.layerNorm, "layer_norm.cu", "layer_norm", r.bufs.normDefines(dt)},
		{&f.uvqk, "uvqk.cu", "uvqk", []string{scratch, fmt.Sprintf("IN=%d", q), fmt.Sprintf("U=%d", dt),
			fmt.Sprintf("Q=%d", q), fmt.Sprintf("KV=%d", s.KV), heads, dim}},
		{&f.mix, "mix.cu", "mix", []string{fmt.Sprintf("DT=%d", dt), heads, dim}},
		{&f.gather, "gather.cu", "gather", nil},
	} {
		var err error
		if *k.to, err = r.dev.kernel(k.file, k.name, k.defines...); err != nil {
			return nil, err
		}
	}
	for t, define := range tableDefines {
		var err error
		if f.sum[t], err = r.dev.kernel("sum.cu", "sum", define); err != nil {
			return nil, err
		}
		if f.embed[t], err = r.dev.kernel("embed.cu", "embed", define); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// sum adds a part to x; the first one sets it.
func (r *runner) sum(p *pass, o *op) error {
	stride, dt, from, add := r.bufs.hidden, compute.F32, r.sums.vectors[o.part], 1
	if o.table != nil {
		dt, from = o.table.dt, o.table.data
	}
	if o.part == 0 {
		add = 0
	}
	a := r.args.Reset().Ptr(r.bufs.current()).Ptr(from).Ptr(r.sums.indices.At(4 * o.part * r.sums.rows)).Ptr(p.rows)
	return p.cores.sum[dt].Launch(r.stream, r.overlapping(driver.Launch{Grid: [3]int{p.m}, Block: threads(stride / 8)}),
		a.Int(stride).Float(o.scale).Int(add))
}

func (r *runner) uvqk(p *pass, o *op) error {
	a := r.args.Reset().Ptr(r.bufs.normed).Ptr(r.bufs.current()).Ptr(o.norm.pointer()).Ptr(o.shift.pointer()).Ptr(p.rows)
	if err := p.cores.layerNorm.Launch(r.stream, r.overlapping(
		driver.Launch{Grid: [3]int{p.m}, Block: [3]int{r.bufs.normThreads()}}),
		a.Int(r.shape.Hidden).Float(r.shape.Eps)); err != nil {
		return err
	}
	product := driver.Product{M: p.m, N: o.w.rows, K: o.w.cols, In: numberOf(o.w.dt), Out: numberOf(r.bufs.queryFormat())}
	if err := r.product(product, r.bufs.qkv, r.bufs.normed, o.w); err != nil {
		return err
	}
	a = r.args.Reset().Ptr(r.bufs.u[0]).Ptr(r.bufs.q).Ptr(r.bufs.qkv).Ptr(o.bias.pointer()).Ptr(r.tables.homes()).Ptr(
		p.rows)
	return p.cores.uvqk.Launch(r.stream, r.overlapping(
		driver.Launch{Grid: [3]int{p.m, (r.shape.Heads + 3) / 4}, Block: [3]int{128}}),
		r.att.scratch(a.Int(r.bufs.qkvCols).Int(r.bufs.attCols).Int(o.layer), o.layer))
}

func (r *runner) mix(p *pass, o *op) error {
	u, perHead := r.bufs.u[0], 0
	if r.bufs.moved {
		u = r.bufs.u[1]
	}
	if o.perHead {
		perHead = 1
	}
	a := r.args.Reset().Ptr(r.bufs.gated).Ptr(u).Ptr(r.bufs.attention()).Ptr(o.norm.pointer()).Ptr(o.shift.pointer()).Ptr(
		p.rows)
	if err := p.cores.mix.Launch(r.stream, r.overlapping(driver.Launch{Grid: [3]int{p.m}, Block: [3]int{128}}),
		a.Int(r.bufs.attCols).Int(r.bufs.inter).Int(perHead).Float(r.shape.Eps)); err != nil {
		return err
	}
	return r.add(p, r.bufs.gated, o.w, nil)
}

var _ compute.STU = (*runner)(nil)

package cuda

import (
	"fmt"

	"grebe/compute"
	"grebe/compute/cuda/attend"
	"grebe/compute/cuda/driver"
	"grebe/internal/offheap"
)

// maxGraphRows is the largest batch that runs as a graph when it is seen for the second time, and whose
// products are timed for its very size.
const maxGraphRows = 2048

// bucket rounds rows up to what products and graphs are made for.
func bucket(rows int) int {
	for _, n := range [...]int{8, 16, 32, 64} {
		if rows <= n {
			return n
		}
	}
	return (rows + tileRows - 1) / tileRows * tileRows
}

// tileRows are computed together by products: fewer take as long.
const tileRows = 128

// Multiple returns the number of rows for which the GPU takes as long as for a few less, and with them every multiple.
func (r *runner) Multiple() int { return tileRows }

// Sizes returns rows of batches, ascending and at most most, for each of which something is prepared when it is
// first seen: products are timed.
func (r *runner) Sizes(most int) []int {
	var out []int
	for rows := 1; ; rows++ {
		if rows = coarse(bucket(rows)); rows > min(most, r.max) {
			return out
		}
		out = append(out, rows)
	}
}

// buffers are the activations of a runner on the GPU. Those whose size depends on the weights' format
// are made for the first batch that needs them.
type buffers struct {
	shape   *compute.Shape
	rows    int // that there is room for
	hidden  int // columns of x
	qkvCols int
	attCols int // of queries and attention's result
	inter   int

	base        []driver.Ptr
	frequencies driver.Ptr
	workspace   driver.Ptr
	x           [2]driver.Ptr // float32; Keep moves the rows that it keeps to the other one
	second      bool          // the second one is in use
	moved       bool          // Keep has moved attention's result to the second one of att, and u
	cos, sin    driver.Ptr

	typed  []driver.Ptr
	dt     compute.DType // of the typed: the inputs of products, before FP8 rounds them
	tensor bool          // attention runs on the tensor cores
	att    [2]driver.Ptr
	normed driver.Ptr
	qkv, q driver.Ptr
	gateUp driver.Ptr
	gated  driver.Ptr    // input of the second product; that of Mix
	u      [2]driver.Ptr // of layers of HSTU, beside att

	scaling scaling
}

// buffer is one of them.
type buffer struct {
	to    *driver.Ptr
	bytes int
}

func (b *buffers) open(d *device, s *compute.Shape, rows int) error {
	b.shape, b.rows = s, rows
	b.hidden, b.inter = padded(s.Hidden), padded(s.Inter)
	b.qkvCols, b.attCols = padded((s.Heads+2*s.KVHeads)*s.HeadDim), padded(s.Heads*s.HeadDim)
	if s.Pointwise != nil {
		b.qkvCols, b.inter = padded(4*s.Heads*s.HeadDim), padded(3*s.Heads*s.HeadDim)
	}
	half := len(s.Rope.InvFreq)
	if err := take(d, &b.base, []buffer{{&b.workspace, workspace}, {&b.frequencies, 4 * half},
		{&b.x[0], 4 * b.hidden * rows},
		{&b.x[1], 4 * b.hidden * rows}, {&b.cos, 4 * half * rows}, {&b.sin, 4 * half * rows}}); err != nil {
		return err
	}
	if half == 0 {
		return nil
	}
	stage, err := offheap.Alloc(4 * half)
	if err != nil {
		return err
	}
	defer stage.Free()
	copy(offheap.Slice[float32](stage.Bytes, half), s.Rope.InvFreq)
	return d.c.Upload(b.frequencies, stage.Bytes)
}

// take allocates buffers and notes them in list. They are zero: columns that are never written stay so.
func take(d *device, list *[]driver.Ptr, wanted []buffer) error {
	for _, w := range wanted {
		if w.bytes == 0 {
			continue
		}
		p, err := d.alloc(w.bytes)
		if err != nil {
			return fmt.Errorf("activations: %w", err)
		}
		*w.to, *list = p, append(*list, p)
		if err := d.c.Zero(p, w.bytes); err != nil {
			return err
		}
	}
	return nil
}

func (b *buffers) close(d *device) {
	for _, p := range append(b.base, b.typed...) {
		d.free(p)
	}
	b.base, b.typed = nil, nil
	b.scaling.drop(d)
}

// queryFormat is that of the QKV product and of queries: bf16 where it is what attention takes.
func (b *buffers) queryFormat() compute.DType {
	if b.tensor {
		return compute.BF16
	}
	return compute.F32
}

// wideInter is the width from which on the roundings of gate's and up's products even out.
const wideInter = 1024

// gateUpFormat is that of the product of gate and up, where it is not fused.
func (b *buffers) gateUpFormat() compute.DType {
	if b.dt == compute.BF16 && b.shape.Inter >= wideInter {
		return compute.BF16
	}
	return compute.F32
}

// need makes the buffers for inputs in dt, instead of those of another format. It does not touch x.
func (b *buffers) need(d *device, dt compute.DType) error {
	for _, p := range b.typed {
		d.free(p)
	}
	b.typed, b.dt = nil, dt
	b.tensor = dt == compute.BF16 && !d.opt.Direct && attend.Supports(b.shape)
	size, query := dt.Size()*b.rows, b.queryFormat().Size()*b.rows
	gateUp, u := b.gateUpFormat().Size()*b.rows*2*b.inter, 0
	if b.shape.Pointwise != nil {
		gateUp, u = 0, size*b.attCols
	}
	return take(d, &b.typed, []buffer{{&b.u[0], u}, {&b.u[1], u},
		{&b.att[0], size * b.attCols}, {&b.att[1], size * b.attCols}, {&b.normed, size * b.hidden},
		{&b.qkv, query * b.qkvCols}, {&b.q, query * b.attCols}, {&b.gateUp, gateUp}, {&b.gated, size * b.inter}})
}

// current returns where x is.
func (b *buffers) current() driver.Ptr {
	if b.second {
		return b.x[1]
	}
	return b.x[0]
}

// attention returns where attention's result is.
func (b *buffers) attention() driver.Ptr {
	if b.moved {
		return b.att[1]
	}
	return b.att[0]
}

// normThreads is the size of norm.cu's blocks: a thread per 8 columns, in whole warps.
func (b *buffers) normThreads() int { return min(1024, (b.hidden/8+31)&^31) }

// normDefines are those of norm.cu for x and a result in dt.
func (b *buffers) normDefines(dt compute.DType) []string {
	return []string{fmt.Sprintf("OUT=%d", dt), fmt.Sprintf("STRIDE=%d", b.hidden),
		fmt.Sprintf("THREADS=%d", b.normThreads())}
}

package gemm

import (
	"fmt"
	"unsafe"

	"grebe/compute"
	"grebe/internal/offheap"
)

// Numbers of oneDNN 2.6's C interface.
const (
	dnnlCPU           = 1
	dnnlDefaultStream = 1
	dnnlBF16          = 2
	dnnlF32           = 3
	dnnlS8            = 5
	dnnlAny           = 1 // formats
	dnnlRows          = 3
	dnnlColumns       = 22
	dnnlSourceDesc    = 129 // queries
	dnnlWeightsDesc   = 131
	dnnlSource        = 1 // arguments
	dnnlDestination   = 17
	dnnlWeights       = 33

	dnnlDescBytes   = 1024 // room for a dnnl_memory_desc_t
	dnnlMatmulBytes = 4096 // room for a dnnl_matmul_desc_t
)

// onednn multiplies with oneDNN's matmul primitive.
type onednn struct {
	Peer
	engine, stream uintptr

	setThreads     func(n int32)
	engineCreate   func(engine *uintptr, kind int32, index uintptr) int32
	streamCreate   func(stream *uintptr, engine uintptr, flags uint32) int32
	streamWait     func(stream uintptr) int32
	descInit       func(desc unsafe.Pointer, ndims int32, dims unsafe.Pointer, dtype, tag int32) int32
	descSize       func(desc unsafe.Pointer) uintptr
	matmulInit     func(op, src, weights, bias, dst unsafe.Pointer) int32
	primDescCreate func(pd *uintptr, op unsafe.Pointer, attr, engine, hint uintptr) int32
	primDescQuery  func(pd uintptr, what, index int32) unsafe.Pointer
	primDescFree   func(pd uintptr) int32
	reorderCreate  func(pd *uintptr, src unsafe.Pointer, srcEngine uintptr, dst unsafe.Pointer, dstEngine,
		attr uintptr) int32
	primCreate   func(p *uintptr, pd uintptr) int32
	primFree     func(p uintptr) int32
	execute      func(p, stream uintptr, n int32, args unsafe.Pointer) int32
	memoryCreate func(mem *uintptr, desc unsafe.Pointer, engine uintptr, data unsafe.Pointer) int32
	memoryFree   func(mem uintptr) int32
	attrCreate   func(attr *uintptr) int32
	attrFree     func(attr uintptr) int32
	attrScales   func(attr uintptr, count int64, mask int32, scales unsafe.Pointer) int32
}

func openOneDNN(library string) *onednn {
	o := &onednn{Peer: Peer{Name: "onednn", Library: library}}
	err := open("libgomp.so.1", map[string]any{"omp_set_num_threads": &o.setThreads})
	if err == nil {
		err = open(library, map[string]any{
			"dnnl_engine_create":                    &o.engineCreate,
			"dnnl_stream_create":                    &o.streamCreate,
			"dnnl_stream_wait":                      &o.streamWait,
			"dnnl_memory_desc_init_by_tag":          &o.descInit,
			"dnnl_memory_desc_get_size":             &o.descSize,
			"dnnl_matmul_desc_init":                 &o.matmulInit,
			"dnnl_primitive_desc_create":            &o.primDescCreate,
			"dnnl_primitive_desc_query_md":          &o.primDescQuery,
			"dnnl_primitive_desc_destroy":           &o.primDescFree,
			"dnnl_reorder_primitive_desc_create":    &o.reorderCreate,
			"dnnl_primitive_create":                 &o.primCreate,
			"dnnl_primitive_destroy":                &o.primFree,
			"dnnl_primitive_execute":                &o.execute,
			"dnnl_memory_create":                    &o.memoryCreate,
			"dnnl_memory_destroy":                   &o.memoryFree,
			"dnnl_primitive_attr_create":            &o.attrCreate,
			"dnnl_primitive_attr_destroy":           &o.attrFree,
			"dnnl_primitive_attr_set_output_scales": &o.attrScales,
		})
	}
	if err == nil {
		err = status(o.engineCreate(&o.engine, dnnlCPU, 0), "create an engine")
	}
	if err == nil {
		err = status(o.streamCreate(&o.stream, o.engine, dnnlDefaultStream), "create a stream")
	}
	if err != nil {
		o.Absent = err.Error()
	}
	return o
}

// status turns a dnnl_status_t into an error.
func status(s int32, what string) error {
	if s == 0 {
		return nil
	}
	return fmt.Errorf("onednn: %s: status %d", what, s)
}

// argument is a dnnl_exec_arg_t.
type argument struct {
	arg    int32
	memory uintptr
}

// primitive is a primitive and its arguments, which lie off the heap.
type primitive struct {
	p    uintptr
	args *[3]argument
	n    int32
}

// dnnlProduct is a matmul and, for bf16, the reorder of its activations.
type dnnlProduct struct {
	lib     *onednn
	blocks  []*offheap.Block
	prims   []uintptr
	mems    []uintptr
	attrs   []uintptr
	reorder *primitive // of the activations; nil for float32
	matmul  *primitive
	c       []float32
	failed  error
}

func (o *onednn) product(dt compute.DType, d *data, threads, m int) (contender, error) {
	p := &dnnlProduct{lib: o}
	o.setThreads(int32(threads))
	p.build(dt, d, m)
	if p.failed != nil {
		p.free()
		return nil, p.failed
	}
	return p, nil
}

// build makes the primitives; after a failure it goes on to no effect.
func (p *dnnlProduct) build(dt compute.DType, d *data, m int) {
	kind, srcTag := int32(dnnlF32), int32(dnnlRows)
	weightScale, sourceScale := float32(1), float32(1)
	switch dt {
	case compute.BF16:
		kind, srcTag = dnnlBF16, dnnlAny
	case compute.INT8: // of values up to 1 and 1/16, see newData
		kind, srcTag = dnnlS8, dnnlAny
		weightScale, sourceScale = 127*16, 127
	}
	src, weights := p.desc(m, d.k, kind, srcTag), p.desc(d.k, d.n, kind, dnnlAny)
	dst := p.desc(m, d.n, dnnlF32, dnnlRows)
	op := p.alloc(dnnlMatmulBytes)
	if p.failed != nil {
		return
	}
	p.check(p.lib.matmulInit(op, src, weights, nil, dst), "describe a product")
	var pd uintptr
	p.check(p.lib.primDescCreate(&pd, op, p.attr(1/(weightScale*sourceScale)), p.lib.engine, 0), "choose a product")
	if p.failed != nil {
		return
	}
	defer p.lib.primDescFree(pd)
	src, weights = p.lib.primDescQuery(pd, dnnlSourceDesc, 0), p.lib.primDescQuery(pd, dnnlWeightsDesc, 0)

	rawW := p.memory(p.desc(d.k, d.n, dnnlF32, dnnlColumns), unsafe.Pointer(&d.w[0]))
	packed := p.memory(weights, p.alloc(int(p.lib.descSize(weights))))
	p.once(p.newReorder(p.desc(d.k, d.n, dnnlF32, dnnlColumns), rawW, weights, packed, weightScale))

	rows := p.desc(m, d.k, dnnlF32, dnnlRows)
	a := p.memory(rows, unsafe.Pointer(&d.a[0]))
	if dt != compute.F32 {
		converted := p.memory(src, p.alloc(int(p.lib.descSize(src))))
		p.reorder = p.newReorder(rows, a, src, converted, sourceScale)
		a = converted
	}
	out := p.alloc(4 * m * d.n)
	if p.failed != nil {
		return
	}
	p.c = unsafe.Slice((*float32)(out), m*d.n)
	p.matmul = p.newPrimitive(pd, argument{dnnlSource, a}, argument{dnnlWeights, packed},
		argument{dnnlDestination, p.memory(dst, out)})
}

func (p *dnnlProduct) check(s int32, what string) {
	if p.failed == nil {
		p.failed = status(s, what)
	}
}

// alloc returns memory that lives as long as the product.
func (p *dnnlProduct) alloc(n int) unsafe.Pointer {
	b, err := offheap.Alloc(max(n, 64))
	if err != nil {
		if p.failed == nil {
			p.failed = err
		}
		return nil
	}
	p.blocks = append(p.blocks, b)
	return unsafe.Pointer(&b.Bytes[0])
}

func (p *dnnlProduct) desc(rows, cols int, kind, tag int32) unsafe.Pointer {
	desc, dims := p.alloc(dnnlDescBytes), p.alloc(16)
	if p.failed != nil {
		return nil
	}
	*(*[2]int64)(dims) = [2]int64{int64(rows), int64(cols)}
	p.check(p.lib.descInit(desc, 2, dims, kind, tag), "describe a matrix")
	return desc
}

func (p *dnnlProduct) memory(desc, data unsafe.Pointer) uintptr {
	if p.failed != nil {
		return 0
	}
	var mem uintptr
	p.check(p.lib.memoryCreate(&mem, desc, p.lib.engine, data), "wrap memory")
	if mem != 0 {
		p.mems = append(p.mems, mem)
	}
	return mem
}

func (p *dnnlProduct) newReorder(from unsafe.Pointer, src uintptr, to unsafe.Pointer, dst uintptr,
	scale float32) *primitive {
	if p.failed != nil {
		return nil
	}
	var pd uintptr
	p.check(p.lib.reorderCreate(&pd, from, p.lib.engine, to, p.lib.engine, p.attr(scale)), "choose a reorder")
	if p.failed != nil {
		return nil
	}
	defer p.lib.primDescFree(pd)
	return p.newPrimitive(pd, argument{dnnlSource, src}, argument{dnnlDestination, dst})
}

// attr returns attributes that multiply results by a scale; none for 1.
func (p *dnnlProduct) attr(scale float32) uintptr {
	if p.failed != nil || scale == 1 {
		return 0
	}
	var a uintptr
	p.check(p.lib.attrCreate(&a), "create attributes")
	value := p.alloc(4)
	if p.failed != nil {
		return a
	}
	p.attrs = append(p.attrs, a)
	*(*float32)(value) = scale
	p.check(p.lib.attrScales(a, 1, 0, value), "set a scale")
	return a
}

func (p *dnnlProduct) newPrimitive(pd uintptr, args ...argument) *primitive {
	list := p.alloc(64)
	if p.failed != nil {
		return nil
	}
	x := &primitive{args: (*[3]argument)(list), n: int32(len(args))}
	copy(x.args[:], args)
	p.check(p.lib.primCreate(&x.p, pd), "create a primitive")
	if x.p != 0 {
		p.prims = append(p.prims, x.p)
	}
	return x
}

func (p *dnnlProduct) execute(x *primitive) error {
	return status(p.lib.execute(x.p, p.lib.stream, x.n, unsafe.Pointer(x.args)), "execute")
}

func (p *dnnlProduct) wait() error { return status(p.lib.streamWait(p.lib.stream), "wait") }

// once executes a primitive while building.
func (p *dnnlProduct) once(x *primitive) {
	if p.failed == nil {
		p.failed = p.execute(x)
	}
	if p.failed == nil {
		p.failed = p.wait()
	}
}

func (p *dnnlProduct) name() string { return p.lib.Name }

func (p *dnnlProduct) run() error {
	if p.reorder != nil {
		if err := p.execute(p.reorder); err != nil {
			return err
		}
	}
	if err := p.execute(p.matmul); err != nil {
		return err
	}
	return p.wait()
}

func (p *dnnlProduct) out() []float32 { return p.c }

func (p *dnnlProduct) free() {
	for _, x := range p.prims {
		p.lib.primFree(x)
	}
	for _, x := range p.mems {
		p.lib.memoryFree(x)
	}
	for _, x := range p.attrs {
		p.lib.attrFree(x)
	}
	for _, b := range p.blocks {
		b.Free()
	}
}

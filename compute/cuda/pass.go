package cuda

import (
	"fmt"
	"slices"
	"time"

	"grebe/compute"
	"grebe/compute/cuda/driver"
)

// pass is what the kernels of a batch are launched with.
type pass struct {
	m     int        // rows of products: the bucket
	rows  driver.Ptr // where the true number of rows is
	cores *functions
}

// functions are the kernels that a runner launches over and over, for one format of weights.
type functions struct {
	norm, rope, silu, angles, gather, bias *driver.Function
	embed                                  [formats]*driver.Function // by the table's format

	layerNorm, uvqk, mix *driver.Function // of layers of HSTU
	sum                  [formats]*driver.Function

	scaled *scaledKernels // of products of FP8; nil until there are such
}

// formats is the number of compute.DTypes.
const formats = int(compute.F16) + 1

// functionsFor compiles the kernels for the runner's shape, or takes them from the device.
func (r *runner) functionsFor(dt compute.DType) (*functions, error) {
	if r.shape.Pointwise != nil {
		return r.stuFunctions(dt)
	}
	f := &functions{}
	for _, k := range []struct {
		to         **driver.Function
		file, name string
		defines    []string
	}{
		{&f.norm, "norm.cu", "rms_norm", r.bufs.normDefines(dt)},
		{&f.rope, "rope.cu", "rope", r.ropeDefines()},
		{&f.silu, "silu.cu", "silu_up", []string{fmt.Sprintf("IN=%d", r.bufs.gateUpFormat()), fmt.Sprintf("OUT=%d", dt)}},
		{&f.angles, "angles.cu", "angles", nil},
		{&f.gather, "gather.cu", "gather", nil},
		{&f.bias, "bias.cu", "add_bias", nil},
	} {
		var err error
		if *k.to, err = r.dev.kernel(k.file, k.name, k.defines...); err != nil {
			return nil, err
		}
	}
	for t, define := range tableDefines {
		var err error
		if f.embed[t], err = r.dev.kernel("embed.cu", "embed", define); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// ropeDefines are those of rope.cu.
func (r *runner) ropeDefines() []string {
	s, q := &r.shape, r.bufs.queryFormat()
	scratch := "SCRATCH=0"
	if r.bufs.tensor {
		scratch = "SCRATCH=1"
	}
	return []string{scratch, fmt.Sprintf("IN=%d", q), fmt.Sprintf("Q=%d", q), fmt.Sprintf("KV=%d", s.KV),
		fmt.Sprintf("HEADS=%d", s.Heads), fmt.Sprintf("KV_HEADS=%d", s.KVHeads), fmt.Sprintf("DIM=%d", s.HeadDim)}
}

// start puts the last of the recorded operations into the stream, once per batch.
func (r *runner) start() error {
	if r.ran {
		return nil
	}
	r.ran = true
	return r.flush()
}

// flush puts the operations into the stream that were recorded since it was called last.
func (r *runner) flush() error {
	var err error
	if r.begun {
		err = r.poll(r.sent, polls) // the tables may be written again
	} else {
		err = r.wait() // for a batch whose results nobody took
	}
	r.begun = true
	if err != nil || len(r.batch.Tokens) == 0 || len(r.ops) == 0 || r.left != nil && len(r.left) == 0 {
		return err
	}
	if err := r.prepare(); err != nil {
		return err
	}
	r.works()
	if err := r.dev.memory.await(r.stream); err != nil {
		return err
	}
	if err := r.tables.upload(r.stream); err != nil {
		return err
	}
	if err := r.sums.upload(r.stream, len(r.batch.Tokens)); err != nil {
		return err
	}
	if err := r.sent.Record(r.stream); err != nil {
		return err
	}
	if r.ahead = r.brief && len(r.ops) > 1 && r.ops[0].kind == opEmbed && r.ops[1].kind == opQKV; r.ahead {
		if err := r.first(); err != nil {
			return err
		}
	}
	if err := r.plan(); err != nil {
		return err
	}
	if err := r.launch(); err != nil {
		return err
	}
	if r.kept && len(r.keep) > 0 {
		r.base = !r.base
	}
	r.bufs.second = r.base
	return nil
}

// first puts what needs no plan of attention into the stream, so that the GPU computes while one is made: the
// embedding, and the first product. It is a graph of its own: one launch takes the host less time than three.
func (r *runner) first() error {
	key := graph{rows: r.tables.rows, shape: launches{kind: kindNone}, base: r.base, ops: r.ops[:2]}
	return r.run(&key, func() error {
		p := r.pass()
		r.bufs.second, r.bufs.moved, r.lacks = r.base, false, pending{}
		if err := r.embed(&p, &r.ops[0]); err != nil {
			return err
		}
		return r.projectQKV(&p, &r.ops[1])
	})
}

// pass is how the recorded operations begin.
func (r *runner) pass() pass {
	return pass{m: r.tables.rows, rows: r.tables.trueRows(), cores: r.graphs.cores}
}

// plan prepares attention, and has all that the layers wait for in its stream.
func (r *runner) plan() error {
	if r.firstLayer() < 0 {
		return nil
	}
	if r.att.direct() { // which waits for it in its plan
		if err := r.placing.launch(r, len(placedParts)); err != nil {
			return err
		}
		return r.att.plan(r.batch, r.left)
	}
	if err := r.att.plan(r.batch, r.left); err != nil {
		return err
	}
	return r.placing.launch(r, len(placedParts))
}

// prepare makes what the operations need and fills the batch's tables.
func (r *runner) prepare() error {
	dt, err := r.format()
	if err != nil {
		return err
	}
	if err := r.need(dt); err != nil {
		return err
	}
	if r.att == nil {
		if r.graphs.cores, err = r.functionsFor(dt); err != nil {
			return err
		}
		if r.att, err = newAttention(r); err != nil {
			return err
		}
	}
	if err := r.prepareScaled(); err != nil {
		return err
	}
	keep := r.keep
	if !r.kept {
		keep = nil
	}
	again := r.filled && r.left == nil // of the same rows
	r.filled = true
	return r.tables.fill(r.dev, r.batch, r.left, keep, r.att.direct(), again)
}

// need makes the buffers for products in dt. What was prepared for those of another format goes.
func (r *runner) need(dt compute.DType) error {
	if r.bufs.typed != nil && r.bufs.dt == dt {
		return nil
	}
	r.graphs.drop()
	r.calls = nil
	if r.att != nil {
		r.att.close()
		r.att = nil
	}
	return r.bufs.need(r.dev, dt)
}

// format returns the one format of what all products are given, before they round it.
func (r *runner) format() (compute.DType, error) {
	dt, found := compute.F32, false
	for i := range r.ops {
		for _, w := range []*linear{r.ops[i].w, r.ops[i].down} {
			switch {
			case w == nil:
			case !found:
				dt, found = activations(w.dt), true
			case activations(w.dt) != dt:
				return 0, fmt.Errorf("products in %v and in %v in one batch", dt, w.dt)
			}
		}
	}
	if !found && r.bufs.typed != nil {
		dt = r.bufs.dt
	}
	return dt, nil
}

// polls is how long a result is polled for before the thread sleeps. What the rest of a batch depends on is polled for
// longer: meanwhile the GPU has nothing to do. To wake up takes a thread 0.15 ms and more: it sleeps until the last
// layer is near, and polls from then on.
const (
	polls     = 200 * time.Microsecond
	pollsNear = 1500 * time.Microsecond
	pollsAmid = 4 * time.Millisecond
)

// wait waits for the stream's work.
func (r *runner) wait() error {
	if !r.busy {
		return nil
	}
	if err := r.done.Record(r.stream); err != nil {
		return err
	}
	if err := r.poll(r.near, polls); err != nil {
		return err
	}
	if err := r.poll(r.done, pollsNear); err != nil {
		return err
	}
	r.rests()
	return nil
}

// waitAmid waits for the stream's work when there is more to come.
func (r *runner) waitAmid() error {
	if err := r.done.Record(r.stream); err != nil {
		return err
	}
	if err := r.poll(r.done, pollsAmid); err != nil {
		return err
	}
	r.rests()
	return nil
}

// poll waits for an event, and lets the thread sleep after a while. It does not yield: the goroutine keeps its thread,
// and two others would have to wake up, one after the other, before it goes on.
func (r *runner) poll(e *driver.Event, polls time.Duration) error {
	for begin := time.Now(); time.Since(begin) < polls; {
		if done, err := e.Done(); done || err != nil {
			return err
		}
	}
	return e.Sync()
}

// nearEnd returns which of the operations is ahead of the last layer, whose rows may be few and which then takes less
// time than to wake up: the feed-forward layer before it, or its first where there is none. −1 where there is one
// layer at most.
func (r *runner) nearEnd() int {
	at, layers := -1, 0
	for i := range r.ops {
		if k := r.ops[i].kind; k == opQKV || k == opUVQK {
			at, layers = i, layers+1
		}
	}
	switch {
	case layers < 2:
		return -1
	case r.ops[at-1].kind == opFFN:
		return at - 1
	}
	return at
}

// nears tells who waits for a result that the last layer is near.
func (r *runner) nears() error {
	if r.capturing {
		return r.near.RecordOutside(r.stream)
	}
	return r.near.Record(r.stream)
}

// emit puts all recorded operations into the stream.
func (r *runner) emit() error {
	p := r.pass()
	r.bufs.second, r.bufs.moved, r.lacks = r.base, false, pending{}
	turned, ahead, near := false, r.ahead, r.nearEnd()
	for i := range r.ops {
		o := &r.ops[i]
		var err error
		if i == near {
			err = r.nears()
		}
		if err != nil {
			return err
		}
		switch o.kind {
		case opEmbed:
			if !ahead {
				err = r.embed(&p, o)
			}
		case opQKV:
			if !turned {
				turned, err = true, r.angles(&p)
			}
			if err == nil {
				err = r.att.before(o.layer)
			}
			if err == nil && !ahead {
				err = r.projectQKV(&p, o)
			}
			if ahead = false; err == nil {
				err = r.turn(&p, o)
			}
		case opAttend:
			err = r.att.launch(o.layer)
		case opKeep:
			if len(r.keep) == 0 {
				return nil // nothing is left to compute
			}
			if err = r.complete(&p); err == nil {
				err = r.gather(&p)
			}
		case opOutput:
			err = r.output(&p, o)
		case opFFN:
			err = r.ffn(&p, o)
		case opSum:
			err = r.sum(&p, o)
		case opUVQK:
			if err = r.att.before(o.layer); err == nil {
				err = r.uvqk(&p, o)
			}
		case opMix:
			err = r.mix(&p, o)
		}
		if err != nil {
			return err
		}
	}
	return r.complete(&p)
}

// overlapping lets a kernel's start overlap the end of the one before it. Kernels wait for that one before
// they touch what it wrote, and none ends without having waited, so that the next one may rely on all.
func (r *runner) overlapping(l driver.Launch) driver.Launch {
	l.Overlap = r.dev.overlaps() && !r.alone
	r.alone = false
	return l
}

// threads is a block's size for n units of work, a multiple of a warp.
func threads(n int) [3]int { return [3]int{min(256, (n+31)&^31)} }

func (r *runner) embed(p *pass, o *op) error {
	stride := r.bufs.hidden
	return p.cores.embed[o.table.dt].Launch(r.stream,
		r.overlapping(driver.Launch{Grid: [3]int{p.m}, Block: threads(stride / 8)}),
		r.args.Reset().Ptr(r.bufs.current()).Ptr(o.table.data).Ptr(r.tables.tokens()).Ptr(p.rows).Int(stride))
}

func (r *runner) angles(p *pass) error {
	half := r.shape.HeadDim / 2
	a := r.args.Reset().Ptr(r.bufs.cos).Ptr(r.bufs.sin).Ptr(r.tables.positions()).Ptr(r.bufs.frequencies).Ptr(p.rows)
	return p.cores.angles.Launch(r.stream, r.overlapping(
		driver.Launch{Grid: [3]int{(p.m*half + 255) / 256}, Block: [3]int{256}}),
		a.Int(half).Float(r.shape.Rope.Scale))
}

// norm writes norm(x) to the input of a product in dt.
func (r *runner) norm(p *pass, gain *vector, dt compute.DType) error {
	if rounds := dt == compute.FP8; rounds || r.lacks.w != nil {
		return r.normScaled(p, gain, rounds)
	}
	a := r.args.Reset().Ptr(r.bufs.normed).Ptr(r.bufs.current()).Ptr(gain.pointer()).Ptr(0).Ptr(p.rows)
	return p.cores.norm.Launch(r.stream, r.overlapping(
		driver.Launch{Grid: [3]int{p.m}, Block: [3]int{r.bufs.normThreads()}}),
		a.Int(r.shape.Hidden).Float(r.shape.Eps))
}

// product computes out = in·wᵀ, or adds to out.
func (r *runner) product(p driver.Product, out, in driver.Ptr, w *linear) error {
	p.Fast = p.In == driver.NumberE4M3
	if r.dev.opt.OwnProducts {
		return r.ownProduct(p, out, in, w)
	}
	plan, err := r.dev.plan(p)
	if err != nil {
		return err
	}
	return plan.Run(r.stream, out, in, w.data, r.bufs.workspace, workspace)
}

// output adds the output projection of attention to x.
func (r *runner) output(p *pass, o *op) error {
	if err := r.complete(p); err != nil { // of a layer without QKV
		return err
	}
	if o.w.dt == compute.FP8 {
		return r.outputFP8(p, o)
	}
	return r.add(p, r.bufs.attention(), o.w, o.bias)
}

// add adds in·wᵀ and bias to x.
func (r *runner) add(p *pass, in driver.Ptr, w *linear, bias *vector) error {
	if bias != nil {
		a := r.args.Reset().Ptr(r.bufs.current()).Ptr(bias.data).Ptr(p.rows).Int(r.bufs.hidden).Int(r.shape.Hidden)
		if err := p.cores.bias.Launch(r.stream, r.overlapping(
			driver.Launch{Grid: [3]int{p.m}, Block: threads(r.shape.Hidden)}), a); err != nil {
			return err
		}
	}
	return r.product(driver.Product{M: p.m, N: w.rows, K: w.cols, In: numberOf(w.dt), Out: driver.NumberF32, Add: true},
		r.bufs.current(), in, w)
}

// ropeHeads is how many heads a block of rope.cu takes.
func ropeHeads(dim int) int {
	switch half := dim / 2; half {
	case 8, 16, 32, 64, 128:
		return 128 / (half / 8)
	}
	return 4
}

// projectQKV is the product of QKV behind its norm.
func (r *runner) projectQKV(p *pass, o *op) error {
	if err := r.norm(p, o.norm, o.w.dt); err != nil {
		return err
	}
	product := driver.Product{M: p.m, N: o.w.rows, K: o.w.cols, In: numberOf(o.w.dt), Out: numberOf(r.bufs.queryFormat())}
	return r.product(product, r.bufs.qkv, r.bufs.normed, o.w)
}

// turn puts queries, keys and values where attention reads them.
func (r *runner) turn(p *pass, o *op) error {
	a := r.args.Reset().Ptr(r.bufs.q).Ptr(r.bufs.qkv).Ptr(o.bias.pointer()).Ptr(o.qNorm.pointer()).Ptr(o.kNorm.pointer()).
		Ptr(r.bufs.cos).Ptr(r.bufs.sin).Ptr(r.tables.homes()).Ptr(p.rows)
	heads, each := r.shape.Heads+2*r.shape.KVHeads, ropeHeads(r.shape.HeadDim)
	f := p.cores.rope
	a = r.att.scratch(a.Int(r.bufs.qkvCols).Int(r.bufs.attCols).Int(o.layer).Float(r.shape.Eps), o.layer)
	if o.w.dt == compute.FP8 {
		f, a = p.cores.scaled.rope, a.Ptr(r.bufs.scaling.normed).Ptr(o.w.scales)
	}
	return f.Launch(r.stream, r.overlapping(driver.Launch{
		Grid: [3]int{p.m, (heads + each - 1) / each}, Block: [3]int{128}}), a)
}

// gather moves the kept rows of x and of attention together.
func (r *runner) gather(p *pass) error {
	rows := bucket(len(r.keep))
	wide := r.bufs.dt.Size() * r.bufs.attCols
	from := r.bufs.current()
	r.bufs.second, r.bufs.moved = !r.bufs.second, true
	for _, v := range []struct {
		to, from driver.Ptr
		bytes    int
	}{{r.bufs.current(), from, 4 * r.bufs.hidden}, {r.bufs.att[1], r.bufs.att[0], wide},
		{r.bufs.u[1], r.bufs.u[0], wide}} {
		if v.to == 0 {
			continue
		}
		a := r.args.Reset().Ptr(v.to).Ptr(v.from).Ptr(r.tables.kept()).Ptr(r.tables.keptRows()).Int(v.bytes / 16)
		if err := p.cores.gather.Launch(r.stream, r.overlapping(
			driver.Launch{Grid: [3]int{rows}, Block: threads(v.bytes / 16)}), a); err != nil {
			return err
		}
	}
	p.m, p.rows = rows, r.tables.keptRows()
	return nil
}

func (r *runner) ffn(p *pass, o *op) error {
	if err := r.norm(p, o.norm, o.w.dt); err != nil {
		return err
	}
	if o.w.dt == compute.FP8 || o.down.dt == compute.FP8 {
		return r.scaledFFN(p, o)
	}
	call, err := r.fused(p, o)
	if err != nil {
		return err
	}
	if call != nil {
		if err := call.Launch(r.stream, r.args, r.dev.overlaps()); err != nil {
			return err
		}
		return r.add(p, r.bufs.gated, o.down, o.downBias)
	}
	return r.unfused(p, o)
}

// unfused is ffn behind its norm by a product and a kernel.
func (r *runner) unfused(p *pass, o *op) error {
	product := driver.Product{M: p.m, N: o.w.rows, K: o.w.cols, In: numberOf(o.w.dt), Out: numberOf(r.bufs.gateUpFormat())}
	if err := r.product(product, r.bufs.gateUp, r.bufs.normed, o.w); err != nil {
		return err
	}
	columns := r.bufs.inter
	a := r.args.Reset().Ptr(r.bufs.gated).Ptr(r.bufs.gateUp).Ptr(o.bias.pointer()).Ptr(p.rows).Int(columns).Int(
		r.shape.Inter)
	block := threads(columns / 8)
	if err := p.cores.silu.Launch(r.stream, r.overlapping(
		driver.Launch{Grid: [3]int{p.m, (columns/8 + block[0] - 1) / block[0]}, Block: block}), a); err != nil {
		return err
	}
	return r.add(p, r.bufs.gated, o.down, o.downBias)
}

// graphs are captured passes, the most recently used last.
type graphs struct {
	cores *functions
	list  []*graph
	clock int
}

// graph is a kind of pass, captured when it is run again.
type graph struct {
	rows, kept int // buckets
	shape      launches
	base       bool
	ahead      bool
	ops        []op
	exec       *driver.Graph // nil until it is captured
	seen, used int
}

const (
	// maxGraphs are kept per runner: a server's prompts have 20 sizes up to maxGraphRows, for rankings and for searches
	// each, and rounds of several widths are beside them.
	maxGraphs = 128
	// largeSeen is how often a batch above maxGraphRows, of which there are many sizes, is seen before it
	// is captured.
	largeSeen = 3
)

func (g *graphs) drop() {
	for _, v := range g.list {
		v.close()
	}
	g.list = nil
}

func (v *graph) close() {
	if v.exec != nil {
		_ = v.exec.Close() // fails with a lost GPU only
	}
}

// launch runs the recorded operations: as a graph where they have run before.
func (r *runner) launch() error {
	key := graph{rows: r.tables.rows, shape: r.att.shape(), base: r.base, ahead: r.ahead, ops: r.ops}
	if r.kept {
		key.kept = bucket(len(r.keep))
		if len(r.keep) == 0 {
			key.kept = -1
		}
	}
	return r.run(&key, r.emit)
}

// run runs what emit puts into the stream, which depends on key alone: as a graph where it has run before.
func (r *runner) run(key *graph, emit func() error) error {
	if r.dev.opt.NoGraphs {
		return emit()
	}
	v := r.graphs.find(key)
	if v.seen++; v.seen < 2 || v.seen < largeSeen && r.tables.rows > maxGraphRows {
		return emit() // which prepares all that a capture cannot
	}
	if v.exec == nil {
		r.capturing = true
		exec, err := r.stream.Capture(emit)
		r.capturing = false
		if err != nil {
			return fmt.Errorf("capture a batch of %d rows: %w", r.tables.rows, err)
		}
		v.exec = exec
	}
	return v.exec.Launch(r.stream)
}

// find returns the graph that is like key, or makes a place for it.
func (g *graphs) find(key *graph) *graph {
	g.clock++
	for _, v := range g.list {
		if v.rows == key.rows && v.kept == key.kept && v.shape == key.shape && v.base == key.base && v.ahead == key.ahead &&
			slices.Equal(v.ops, key.ops) {
			v.used = g.clock
			return v
		}
	}
	if len(g.list) >= maxGraphs {
		oldest := 0
		for i, v := range g.list {
			if v.used < g.list[oldest].used {
				oldest = i
			}
		}
		g.list[oldest].close()
		g.list = slices.Delete(g.list, oldest, oldest+1)
	}
	v := &graph{rows: key.rows, kept: key.kept, shape: key.shape, base: key.base, ahead: key.ahead,
		ops: slices.Clone(key.ops), used: g.clock}
	g.list = append(g.list, v)
	return v
}

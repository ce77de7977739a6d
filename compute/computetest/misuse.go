package computetest

import (
	"errors"
	"fmt"
	"math"
	"runtime"

	"grebe/compute"
)

// packChecks look at what packing returns and refuses.
func packChecks() []check {
	return []check{{"pack/sizes", packSizes}, {"pack/refuses", packRefuses}}
}

func packSizes(d compute.Device) error {
	r := newRandom(1)
	q, k := r.tensor(compute.F32, 24, 10, 0, 1), r.tensor(compute.BF16, 7, 10, 0, 1)
	for _, dt := range []compute.DType{compute.F32, compute.BF16} {
		l, err1 := d.Linear(dt, q, k)
		g, err2 := d.GateUp(dt, q, q)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if l.Out() != 31 || l.In() != 10 || l.Bytes() < int64(31*10*dt.Size()) {
			return fmt.Errorf("a Linear of 24 and 7 rows × 10 in %v is %d×%d, %d bytes", dt, l.Out(), l.In(), l.Bytes())
		}
		if g.Out() != 48 || g.In() != 10 || g.Bytes() < int64(48*10*dt.Size()) {
			return fmt.Errorf("a GateUp of 24 and 24 rows × 10 in %v is %d×%d, %d bytes", dt, g.Out(), g.In(), g.Bytes())
		}
	}
	v, err1 := d.Vector(r.tensor(compute.F16, 1, 9, 0, 1))
	t, err2 := d.Table(q)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if v.Len() != 9 || t.Rows() != 24 || t.Cols() != 10 {
		return fmt.Errorf("a vector of 9 has %d values, a table of 24×10 is %d×%d", v.Len(), t.Rows(), t.Cols())
	}
	return nil
}

func packRefuses(d compute.Device) error {
	r := newRandom(1)
	good, narrower, shorter := r.tensor(compute.F32, 8, 6, 0, 1), r.tensor(compute.F32, 8, 5, 0, 1),
		r.tensor(compute.F32, 7, 6, 0, 1)
	cut := good
	cut.Data = cut.Data[:len(cut.Data)-1]
	negative := compute.Tensor{DType: compute.F32, Rows: -8, Cols: -6, Data: good.Data}
	accepted := map[string]func() error{
		"Linear of nothing":         func() error { _, err := d.Linear(compute.F32); return err },
		"Linear of cut data":        func() error { _, err := d.Linear(compute.BF16, cut); return err },
		"Linear of a negative size": func() error { _, err := d.Linear(compute.F32, negative); return err },
		"Linear of unequal widths":  func() error { _, err := d.Linear(compute.BF16, good, narrower); return err },
		"Linear in f16":             func() error { _, err := d.Linear(compute.F16, good); return err },
		"GateUp of unequal widths":  func() error { _, err := d.GateUp(compute.BF16, good, narrower); return err },
		"GateUp of unequal heights": func() error { _, err := d.GateUp(compute.F32, good, shorter); return err },
		"GateUp of cut data":        func() error { _, err := d.GateUp(compute.F32, good, cut); return err },
		"Vector of eight rows":      func() error { _, err := d.Vector(good); return err },
		"Vector of cut data": func() error {
			_, err :=
				d.Vector(compute.Tensor{Rows: 1, Cols: 3, Data: make([]byte, 11)})
			return err
		},
		"Table of cut data":        func() error { _, err := d.Table(cut); return err },
		"a runner for no rows":     func() error { _, err := d.Open(geometries[3].shape(1, compute.F32), 0); return err },
		"a runner that stores f16": func() error { _, err := d.Open(geometries[3].shape(1, compute.F16), 8); return err },
		"a runner without frequencies": func() error {
			s := geometries[3].shape(1, compute.F32)
			s.Rope.InvFreq = nil
			_, err := d.Open(s, 8)
			return err
		},
	}
	for name, try := range accepted {
		if try() == nil {
			return fmt.Errorf("%s: no error", name)
		}
	}
	return nil
}

// bench is a runner with a batch that is known to work, to be misused.
type bench struct {
	*model
	mem  compute.Memory
	w    *packed
	r    compute.Runner
	good plan
	want *result
}

const benchMaxRows = 32

func newBench(d compute.Device) (*bench, error) {
	g := geometries[3]
	b := &bench{mem: d.Memory(), model: newModel(config{
		seed: 5, shape: g.shape(2, compute.BF16), dt: compute.BF16, sharp: 1})}
	b.good = newRandom(5).userFirst(0, 9, []int{3, 4}, 2)
	var err error
	if b.w, err = b.pack(d); err != nil {
		return nil, err
	}
	if b.r, err = d.Open(b.shape, benchMaxRows); err != nil {
		return nil, err
	}
	b.want, err = b.pass(b.r, b.w, b.batch(), wholeLayers)
	return b, err
}

// batch is the good one.
func (b *bench) batch() *batch { return newBatch(b.mem, &b.shape, b.good) }

// usable runs the good batch again.
func (b *bench) usable() error {
	got, err := b.pass(b.r, b.w, b.batch(), wholeLayers)
	if err != nil {
		return fmt.Errorf("a good batch after the failure: %w", err)
	}
	l := within(varLayers(2, b.dt, b.shape.KV, 1.5))
	return l.compare(got.x, b.want.x, b.shape.Hidden,
		func(i int) string { return fmt.Sprintf("a good batch after the failure: row %d", i) })
}

func misuseChecks() []check {
	return []check{{"misuse/begin", misuseBegin}, {"misuse/sticky", misuseSticky}, {"misuse/results", misuseResults}}
}

// misuseBegin: a batch that does not validate or is too large is refused, and nothing else happens.
func misuseBegin(d compute.Device) error {
	t, err := newBench(d)
	if err != nil {
		return err
	}
	defer t.r.Close()
	wrong := map[string]func(b *batch){
		"a position short":        func(b *batch) { b.Positions = b.Positions[1:] },
		"a token too many":        func(b *batch) { b.Tokens, b.Positions = append(b.Tokens, 1), append(b.Positions, 1) },
		"a segment out of place":  func(b *batch) { b.Segments[1].First++ },
		"more cached than long":   func(b *batch) { b.Segments[3].Cached = 3 },
		"a segment sees itself":   func(b *batch) { b.Segments[2].Sees = []int32{2} },
		"a chunk cut":             func(b *batch) { cut(&b.Segments[0].Chunks[0]) },
		"no chunk":                func(b *batch) { b.Segments[0].Chunks = nil },
		"a row more than maxRows": func(b *batch) { *b = *newBatch(t.mem, &t.shape, newRandom(1).causal(0, benchMaxRows+1)) },
	}
	for name, spoil := range wrong {
		b := t.batch()
		spoil(b)
		if err := b.begin(t.r); err == nil {
			return fmt.Errorf("begin with %s: no error", name)
		}
		if err := t.usable(); err != nil {
			return fmt.Errorf("begin with %s: %w", name, err)
		}
	}
	return nil
}

// cut takes a byte off a chunk.
func cut(c *compute.Chunk) {
	if c.Size--; c.Bytes != nil {
		c.Bytes = c.Bytes[:len(c.Bytes)-1]
	}
}

// misuseSticky: an operation that cannot be done makes Logits and Hidden fail until the next Begin.
func misuseSticky(d compute.Device) error {
	t, err := newBench(d)
	if err != nil {
		return err
	}
	defer t.r.Close()
	a, f := t.w.attention[1], t.w.ffn[1]
	badQKV, badNorm, badOut, badDown, badBias := a, a, a, f, f
	badQKV.QKV, badNorm.KNorm, badOut.Out = f.Down, t.w.norm, a.QKV
	badDown.Down, badBias.GateUpBias = a.Out, t.w.norm
	narrow, err := d.Table(newRandom(1).tensor(compute.F32, vocabulary, t.shape.Hidden-1, 0, 1))
	if err != nil {
		return err
	}
	wrong := map[string]struct {
		spoil func(b *batch)
		op    func()
	}{
		"embed: a token beyond the table": {spoil: func(b *batch) { b.Tokens[4] = vocabulary }},
		"embed: a negative token":         {spoil: func(b *batch) { b.Tokens[4] = -1 }},
		"embed: a table of another width": {op: func() { t.r.Embed(narrow) }},
		"qkv: a matrix of another size":   {op: func() { t.r.QKV(1, &badQKV) }},
		"qkv: a norm of another size":     {op: func() { t.r.QKV(1, &badNorm) }},
		"qkv: a layer beyond the model's": {op: func() { t.r.QKV(2, &a) }},
		"output: a matrix of another size": {op: func() {
			t.r.QKV(1, &a)
			t.r.Attend(1)
			t.r.Output(&badOut)
		}},
		"ffn: a matrix of another size": {op: func() { t.r.FFN(&badDown) }},
		"ffn: a bias of another size":   {op: func() { t.r.FFN(&badBias) }},
		"keep: a row beyond the batch":  {op: func() { t.r.Keep([]int32{1, 18}) }},
		"keep: a negative row":          {op: func() { t.r.Keep([]int32{-1, 2}) }},
		"keep: rows out of order":       {op: func() { t.r.Keep([]int32{2, 1}) }},
		"keep: a row dropped before":    {op: func() { t.r.Keep([]int32{2, 5}); t.r.Keep([]int32{3}) }},
	}
	out := make([]float32, t.shape.Hidden)
	for name, w := range wrong {
		b := t.batch()
		if w.spoil != nil {
			w.spoil(b)
		}
		if err := b.begin(t.r); err != nil {
			return fmt.Errorf("%s: begin: %w", name, err)
		}
		t.operations(t.r, t.w, wholeLayers)
		if w.op != nil {
			w.op()
		}
		t.r.FFN(&f)
		for range 2 {
			if t.r.Hidden(nil, []int32{2}, out) == nil {
				return fmt.Errorf("%s: no error from Hidden", name)
			}
			if t.r.Logits(t.w.norm, t.w.head, []compute.Pair{{Row: 2, ID: 1}}, out[:1]) == nil {
				return fmt.Errorf("%s: no error from Logits", name)
			}
		}
		if err := t.usable(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// misuseResults: Logits and Hidden refuse what does not fit.
func misuseResults(d compute.Device) error {
	t, err := newBench(d)
	if err != nil {
		return err
	}
	defer t.r.Close()
	do := wholeLayers
	do.keep = []int32{3, 7, 17}
	n := t.shape.Hidden
	out := make([]float32, 2*n)
	logits := func(row, id int32, room int) func() error {
		return func() error {
			return t.r.Logits(t.w.norm, t.w.head, []compute.Pair{{Row: 7, ID: 2}, {Row: row, ID: id}}, out[:room])
		}
	}
	hidden := func(row int32, room int) func() error {
		return func() error { return t.r.Hidden(t.w.norm, []int32{7, row}, out[:room]) }
	}
	short, err := d.Vector(*newRandom(1).vector(compute.F32, n-1, 1, 0))
	if err != nil {
		return err
	}
	for name, refused := range map[string]func() error{
		"logits of a dropped row":    logits(4, 0, 2),
		"logits of an unknown row":   logits(18, 0, 2),
		"logits of a negative row":   logits(-1, 0, 2),
		"logits beyond the head":     logits(3, vocabulary, 2),
		"logits before the head":     logits(3, -1, 2),
		"logits without room":        logits(3, 0, 1),
		"hidden of a dropped row":    hidden(4, 2*n),
		"hidden of an unknown row":   hidden(18, 2*n),
		"hidden of a negative row":   hidden(-5, 2*n),
		"hidden without room":        hidden(3, 2*n-1),
		"hidden with another's norm": func() error { return t.r.Hidden(short, []int32{3}, out[:n]) },
	} {
		if _, err := t.pass(t.r, t.w, t.batch(), do); err != nil {
			return fmt.Errorf("%s: before it: %w", name, err)
		}
		if refused() == nil {
			return fmt.Errorf("%s: no error", name)
		}
		if err := t.usable(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// allocChecks count allocations on the Go heap.
func allocChecks() []check {
	var out []check
	for i, f := range formats {
		name := fmt.Sprintf("no allocation/%v,kv_%v", f.dt, f.kv)
		c := config{seed: uint64(4000 + i), shape: geometries[3].shape(2, f.kv), dt: f.dt, headed: true, sharp: 1}
		out = append(out, check{name, func(d compute.Device) error { return allocatesNothing(d, c) }})
	}
	return out
}

func allocatesNothing(d compute.Device, c config) error {
	m := newModel(c)
	w, err := m.pack(d)
	if err != nil {
		return err
	}
	r, err := d.Open(m.shape, 300)
	if err != nil {
		return err
	}
	defer r.Close()
	rnd := newRandom(c.seed)
	batches := []*batch{
		newBatch(d.Memory(), &m.shape, rnd.userFirst(0, 70, []int{10, 3, 20}, 4), rnd.itemFirst(0, 2, 30, []int{9, 12}, 4)),
		newBatch(d.Memory(), &m.shape, rnd.causal(0, 1)),
	}
	do := wholeLayers
	do.keep = []int32{0}
	pairs, logits := []compute.Pair{{Row: 0, ID: 1}, {Row: 0, ID: 7}}, make([]float32, 2)
	hidden := make([]float32, m.shape.Hidden)
	pass := func() {
		for _, b := range batches {
			err = errors.Join(err, b.begin(r))
			if m.shape.Pointwise != nil {
				m.stuOperations(r.(compute.STU), w, b, do)
			} else {
				m.operations(r, w, do)
			}
			err = errors.Join(err, r.Logits(w.norm, w.head, pairs, logits), r.Hidden(nil, do.keep, hidden))
		}
	}
	n := allocations(pass)
	if err != nil {
		return fmt.Errorf("no allocation: %v: %w", c, err)
	}
	if n > 0 {
		return fmt.Errorf("no allocation: %v: %d allocations per pass in steady state", c, n)
	}
	return nil
}

// allocations is testing.AllocsPerRun without its GOMAXPROCS(1), under which a device's workers
// would wait for each other's time slices. Rare allocations of the runtime itself round to 0, and of
// three measurements the lowest counts: one that finds none is the last.
func allocations(f func()) uint64 {
	const runs = 20
	f()
	f()
	least := uint64(math.MaxUint64)
	var before, after runtime.MemStats
	for i := 0; i < 3 && least > 0; i++ {
		runtime.ReadMemStats(&before)
		for range runs {
			f()
		}
		runtime.ReadMemStats(&after)
		least = min(least, (after.Mallocs-before.Mallocs)/runs)
	}
	return least
}

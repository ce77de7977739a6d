package cuda

import (
	"fmt"
	"math"

	"grebe/compute"
	"grebe/compute/cuda/attend"
	"grebe/compute/cuda/driver"
)

// attention computes what Attend asks for: from the runner's queries to its attention.
type attention interface {
	// direct reports whether it needs the tables of what rows see.
	direct() bool
	// plan looks at a batch, or at its rows that are left where these are not nil, and puts the copy of what it found
	// to the GPU into the stream.
	plan(b *compute.Batch, left []int32) error
	// before puts what a layer needs ahead of its keys into the stream.
	before(layer int) error
	// scratch adds the parameters by which rope.cu writes keys and values for a layer.
	scratch(a *driver.Args, layer int) *driver.Args
	// launch puts a layer's attention into the stream. Captured, it serves every plan of the same shape.
	launch(layer int) error
	// receive puts the sums of what keys received in a layer, whose attention is in the stream, there as well, and
	// returns where they will be on the GPU.
	receive(layer int) (driver.Ptr, error)
	// received takes them up.
	received(sums []uint64, out []float32)
	// sums is how many there are.
	sums() int
	// shape tells apart plans whose launches differ.
	shape() launches
	// settle waits for copies that were started for the batch and that none of its layers waited for, behind the last of
	// which it is called.
	settle() error
	// copying reports whether copies may be under way, and idle waits for them.
	copying() bool
	idle() error
	close()
}

// launches tells plans apart that put different launches into the stream for the same operations.
type launches struct {
	kind     launchKind
	epoch    int  // of the memory that they use
	cached   bool // the batch has cached tokens
	together bool // what was placed is waited for once
	held     held // in the scratch ahead of them
}

type launchKind uint8

const (
	kindPlain launchKind = iota
	kindFew              // cached tokens come from the host's memory, in parts
	kindMany
	kindLeft  // some rows are left
	kindGiven // and the scratch holds what replaces the others
	kindBeams // of a search
	kindNone  // without attention
)

// newAttention chooses how the runner computes attention.
func newAttention(r *runner) (attention, error) {
	if r.bufs.tensor {
		t, err := newTensor(r)
		if err != nil {
			return nil, err // and not a *tensor of nil
		}
		return t, nil
	}
	d, err := newDirect(r)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// direct is attend_direct.cu.
type direct struct {
	r     *runner
	f     *driver.Function
	scale float32 // of scores

	receives *driver.Function // nil until it is needed
}

func newDirect(r *runner) (*direct, error) {
	s := &r.shape
	defines := []string{fmt.Sprintf("Q=%d", r.bufs.queryFormat()), fmt.Sprintf("KV=%d", s.KV),
		fmt.Sprintf("OUT=%d", r.bufs.dt), fmt.Sprintf("HEADS=%d", s.Heads), fmt.Sprintf("KV_HEADS=%d", s.KVHeads),
		fmt.Sprintf("DIM=%d", s.HeadDim)}
	scale := float32(1 / math.Sqrt(float64(s.HeadDim)))
	if p := s.Pointwise; p != nil {
		defines = append(defines, "POINTWISE=1", fmt.Sprintf("CONTEXT=%d", p.Context))
		scale = p.Alpha
	}
	f, err := r.dev.kernel("attend_direct.cu", "attend_direct", defines...)
	return &direct{r: r, f: f, scale: scale}, err
}

func (a *direct) direct() bool     { return true }
func (a *direct) before(int) error { return nil }
func (a *direct) shape() launches  { return launches{} }
func (a *direct) settle() error    { return nil }
func (a *direct) copying() bool    { return false }
func (a *direct) idle() error      { return nil }
func (a *direct) close()           {}

func (a *direct) plan(_ *compute.Batch, left []int32) error {
	if left == nil {
		return nil
	}
	return a.r.placing.await(a.r.stream)
}

func (a *direct) scratch(args *driver.Args, _ int) *driver.Args { return args.Ptr(0).Ptr(0).Int(0) }

func (a *direct) launch(layer int) error {
	r, s := a.r, &a.r.shape
	args := r.args.Reset().Ptr(r.bufs.att[0]).Ptr(r.bufs.q).Ptr(r.tables.sights()).Ptr(r.tables.spanTable()).Ptr(
		r.tables.trueRows())
	return a.f.Launch(r.stream, r.overlapping(driver.Launch{
		Grid: [3]int{r.tables.rows, (s.Heads + 3) / 4}, Block: [3]int{128}}),
		args.Int(r.bufs.attCols).Int(r.bufs.attCols).Int(layer).Float(a.scale))
}

// tensor is package attend.
type tensor struct {
	r       *runner
	a       *attend.Attention
	given   *attend.Attention // of batches whose scratch holds what stands in; nil: there was none yet
	now     *attend.Attention // the one of the two that the last plan is of
	buffers int               // of a
	noRoom  bool              // for given
	stage   *staging          // nil: what is cached in the host's memory is used in place
	cached  bool              // the batch has cached tokens
	left    bool              // of the batch, some rows are left
	gathers gathers           // of batches with all rows
	batch   uint64            // that gathers is of, as in runner.batches
}

// scratchBytes is how much scratch may be taken so that one launch gathers the cached tokens of many
// layers.
const scratchBytes = 512 << 20

func newTensor(r *runner) (*tensor, error) {
	s, most := &r.shape, scratchBytes
	if n := r.dev.opt.Scratch; n > 0 {
		most = n
	}
	layer := r.bufs.rows * attend.SlotBytes(s)
	buffers := max(1, min(s.Layers, most/layer))
	t, err := r.tensorOf(buffers)
	for ; driver.OutOfMemory(err) && buffers > 1; t, err = r.tensorOf(buffers) {
		buffers /= 2 // more launches, less memory
	}
	return t, err
}

// tensorOf returns one with scratch for so many layers.
func (r *runner) tensorOf(buffers int) (*tensor, error) {
	t := &tensor{r: r, buffers: buffers}
	t.gathers.layers, t.gathers.buffers = r.shape.Layers, t.buffers
	cfg, err := r.attendConfig()
	if err != nil {
		return nil, err
	}
	if t.stage, err = newStaging(r, t.buffers); err != nil {
		t.stage.close()
		return nil, err
	}
	cfg.Slots, cfg.Buffers, cfg.Locate = r.bufs.rows, t.buffers, t.stage.locate
	if t.a, err = attend.New(r.dev.c, cfg); err != nil {
		t.stage.close()
		return nil, err
	}
	t.now = t.a
	return t, nil
}

func (t *tensor) direct() bool { return false }

func (t *tensor) plan(b *compute.Batch, left []int32) error {
	if t.left = left != nil; t.left {
		t.a.Hurry(false)
		if t.stage != nil {
			t.stage.chunks = t.stage.chunks[:0] // whose copies lack what was placed
		}
		held := attend.Held{Rows: t.r.placing.held}
		if t.now = t.a; len(held.Rows) > 0 {
			t.now, held.Cached = t.given, true
		}
		err := t.now.BeginLeft(t.r.stream, b, left, held)
		t.cached = t.now.Gathers()
		return err
	}
	t.now, t.cached = t.a, false
	for i := range b.Segments {
		t.cached = t.cached || b.Segments[i].Cached > 0
	}
	again := t.batch == t.r.batches // with further layers of it
	t.batch = t.r.batches
	if t.stage == nil {
		if !again {
			t.gathers.begin(resident)
		}
		t.gathers.plan(t.r.layers())
		return t.a.Begin(t.r.stream, b)
	}
	t.a.Hurry(t.r.brief)
	if again {
		t.stage.again()
		t.gathers.plan(t.r.layers())
		return t.a.Begin(t.r.stream, b)
	}
	if err := t.stage.begin(b); err != nil {
		return err
	}
	t.gathers.begin(t.stage.parts())
	t.gathers.plan(t.r.layers())
	if err := t.a.Begin(t.r.stream, b); err != nil || !t.stage.crowded() {
		return err
	}
	if s, ok := t.gathers.ahead(); ok {
		if err := t.a.GatherHome(t.r.stream, s.first, s.layers); err != nil {
			return err
		}
	}
	return t.stage.follow(t.r.stream)
}

// staged reports whether some of the batch's cached tokens are on their way from the host's memory.
func (t *tensor) staged() bool { return t.stage != nil && len(t.stage.chunks) > 0 }

func (t *tensor) before(layer int) error {
	switch {
	case t.left:
		return t.beforeLeft(layer)
	case !t.cached:
		return nil
	}
	p, s := t.gathers.at(layer), t.r.stream
	switch {
	case p == nil:
		return nil
	case p.source == inPlace:
		return t.a.GatherHome(s, layer, p.layers)
	case p.source == onDevice:
		return t.a.Gather(s, layer, p.layers)
	}
	wait := s.Wait
	if t.r.capturing {
		wait = s.WaitOutside
	}
	if err := wait(t.stage.done[p.source]); err != nil {
		return err
	}
	return t.a.GatherAlone(s, layer, p.layers)
}

func (t *tensor) scratch(a *driver.Args, layer int) *driver.Args {
	s := t.now.Scratch()
	at := layer % s.Buffers * s.Slots * attend.SlotBytes(&t.r.shape)
	return a.Ptr(s.Base.At(at)).Ptr(s.List).Int(s.Slots)
}

func (t *tensor) launch(layer int) error {
	b := &t.r.bufs
	return t.now.Run(t.r.stream, layer, b.q, b.attCols, b.att[0], b.attCols)
}

// beforeLeft gathers all layers up to the next that is waited for, or for which there is no room, where a batch goes
// on with some rows.
func (t *tensor) beforeLeft(layer int) error {
	p, first := placedWith(layer), layer == t.r.firstLayer()
	at, buffers := placedParts[p], t.now.Scratch().Buffers
	if !first && (layer-at)%buffers != 0 {
		return nil
	}
	end := min(at+((layer-at)/buffers+1)*buffers, t.r.shape.Layers)
	if p+1 < len(placedParts) {
		end = min(end, placedParts[p+1])
	}
	s := t.r.stream
	if first || layer == at && !t.r.placing.together() {
		wait := s.Wait
		if t.r.capturing {
			wait = s.WaitOutside
		}
		if err := wait(t.r.placing.done[p]); err != nil {
			return err
		}
		t.r.alone = !t.cached
	}
	if !t.cached {
		return nil
	}
	return t.now.GatherAlone(s, layer, end-layer)
}

func (t *tensor) shape() launches {
	l := launches{epoch: t.now.Epoch()}
	switch {
	case t.now != t.a:
		l.kind = kindGiven
	case t.left:
		l.kind = kindLeft
	case t.staged() && t.stage.crowded():
		l.kind, l.held = kindMany, t.gathers.began
	case t.staged():
		l.kind, l.held = kindFew, t.gathers.began
	case t.cached:
		l.held = t.gathers.began
	}
	l.cached, l.together = t.cached, t.left && t.r.placing.together()
	return l
}

func (t *tensor) settle() error {
	if !t.copying() {
		return nil
	}
	if t.gathers.waits() {
		return t.idle()
	}
	t.stage.busy = false
	return nil
}

func (t *tensor) copying() bool { return t.stage != nil && t.stage.busy }
func (t *tensor) idle() error   { return t.stage.idle() }

func (t *tensor) close() {
	_ = t.a.Close() // fails with a lost GPU only
	t.closeGiven()
	if t.stage != nil {
		t.stage.close()
	}
}

// closeGiven gives back what batches took whose scratch holds what stands in. Nothing may be running.
func (t *tensor) closeGiven() {
	if t.given != nil {
		_ = t.given.Close() // fails with a lost GPU only
		t.given = nil
	}
}

// giveScratch returns attention whose scratch has room for so many slots in all layers; nil: that would be too much of
// the GPU's memory.
func (t *tensor) giveScratch(slots int) (*attend.Attention, error) {
	s := &t.r.shape
	most := int(t.r.dev.c.Info().Memory / givenShare)
	if n := t.r.dev.opt.Scratch; n > 0 {
		most = n
	}
	if t.noRoom || slots*s.Layers*attend.SlotBytes(s) > most {
		return nil, nil
	}
	err := t.takeGiven(slots)
	if driver.OutOfMemory(err) {
		t.closeGiven()
		t.noRoom = true
		return nil, nil
	}
	return t.given, err
}

// takeGiven makes given, or has it grow.
func (t *tensor) takeGiven(slots int) error {
	if t.given != nil && t.given.Scratch().Slots >= slots {
		return nil
	}
	slots += slots / 8 // so that it seldom grows
	if t.given != nil {
		return t.given.Reserve(slots)
	}
	cfg, err := t.r.attendConfig()
	if err != nil {
		return err
	}
	cfg.Slots, cfg.Buffers = slots, t.r.shape.Layers
	t.given, err = attend.New(t.r.dev.c, cfg)
	return err
}

// givenShare of the GPU's memory is the most that giveScratch takes.
const givenShare = 64

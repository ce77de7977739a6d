package engine

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"grebe/compute"
	"grebe/internal/contain"
	"grebe/kv"
	"grebe/model"
	"grebe/plan"
)

// pass is one batch on its way through the model. Its memory is kept from batch to batch.
type pass struct {
	tasks   []task
	batch   compute.Batch
	sees    []int32
	chunks  []compute.Chunk
	keep    []int32 // rows whose results are wanted, ascending
	pairs   []compute.Pair
	logits  []float32
	hidden  []float32
	rows    []int32
	heads   []projection
	owned   []*kv.Entry // entries made for this batch; the pass holds a reference to each
	mem     compute.Memory
	scratch compute.Block // of mem: KV of segments that nobody keeps, one layer
	used    int           // bytes of scratch in use
	unused  int           // batches in a row that needed less than half of scratch
	blend   blending
	once    once
	waited  time.Duration // for what is read from disks, by all batches of a call of Run

	starts   bool // the device computes first layers while what stands in is loaded
	multiple int  // of rows, for which the device takes as long as for a few less; 1 where it does not
}

// task is a job of the batch.
type task struct {
	job  *Job
	out  *Outcome
	base int // its first segment in the batch
	rows int // that it computes, in the first layer at least

	shared Shared // before it ran
}

// again forgets the outcome of a task that is run again.
func (t *task) again() { *t.out = Outcome{Result: Result{Shared: t.shared}} }

const (
	chunkAlign = 256
	// keptScratch bytes of scratch are kept even when batches become smaller. More is kept until so many batches in a
	// row did with less than half: batches that blend need room for all layers, others for one, and both come in turns.
	keptScratch   = 64 << 20
	scratchUnused = 64
)

// run computes the tasks' jobs. One that gets no room fails alone; a failure of the device, which is returned, concerns
// all the others.
func (p *pass) run(e *Engine) error {
	p.reset()
	defer p.release()
	defer p.settle(e)
	err := p.compute(e)
	if err == nil {
		return nil
	}
	err = e.failed(err)
	for i := range p.tasks {
		if o := p.tasks[i].out; o.Err == nil {
			*o = Outcome{Err: err}
		}
	}
	return err
}

// settle passes a panic on, when nothing of the batch can be under way on the device any more: its memory is freed
// next. To be deferred.
func (p *pass) settle(e *Engine) {
	r := recover()
	if r == nil {
		return
	}
	failed := contain.Of(r)
	func() {
		defer func() { _ = recover() }() // the first one says what happened
		_ = e.runner.Begin(&compute.Batch{})
	}()
	panic(failed)
}

func (p *pass) compute(e *Engine) error {
	if err := p.reserveScratch(e); err != nil {
		return err
	}
	for i := range p.tasks {
		t := &p.tasks[i]
		t.out.Err = p.add(e, t)
	}
	if p.tasks[0].job.Search != nil {
		if err := p.search(e); err != nil {
			return err
		}
		p.deliver(e)
		return nil
	}
	p.want()
	if err := p.forward(e); err != nil {
		return err
	}
	if err := p.answer(e); err != nil {
		return err
	}
	p.deliver(e)
	return nil
}

// forward runs the model, and gives up what was to be kept if the model's inputs were incomplete.
func (p *pass) forward(e *Engine) error {
	if t := p.blends(); t != nil {
		err := e.model.(model.Blender).Blend(e.runner, &p.batch, p.repair(t, e.shape.Layers), p.keep)
		if err != nil {
			_ = e.runner.Begin(&compute.Batch{}) // nothing of the failed one may be under way when its memory is freed
		}
		return err
	}
	if e.doubts == nil {
		return e.model.Forward(e.runner, &p.batch, p.keep)
	}
	before := e.doubts()
	if err := e.model.Forward(e.runner, &p.batch, p.keep); err != nil {
		return err
	}
	if e.doubts() == before {
		return nil
	}
	for i := range p.tasks {
		t := &p.tasks[i]
		for s := range t.out.Kept {
			if t.job.owns(s) { // the others were complete when they were cached
				t.out.Kept[s] = nil // the pass has the only reference
			}
		}
	}
	return nil
}

func (p *pass) reset() {
	p.batch.Tokens = p.batch.Tokens[:0]
	p.batch.Positions = p.batch.Positions[:0]
	p.batch.Segments, p.batch.Extra = p.batch.Segments[:0], p.batch.Extra[:0]
	p.batch.Content = p.batch.Content[:0]
	p.sees, p.chunks, p.keep = p.sees[:0], p.chunks[:0], p.keep[:0]
	p.pairs, p.rows = p.pairs[:0], p.rows[:0]
	for i := range p.heads {
		p.heads[i].head, p.heads[i].owner = nil, nil
	}
	p.heads = p.heads[:0]
	p.used = 0
	p.once.reset(p.tasks)
}

// reserveScratch makes room for the KV of all segments that are not cached, so that the chunks of
// earlier segments do not move when later ones are added. Room for those that will be kept, which
// need it only when the cache is full, costs address space.
func (p *pass) reserveScratch(e *Engine) error {
	need := 0
	for _, t := range p.tasks {
		for i := range t.job.Plan.Segments {
			seg := &t.job.Plan.Segments[i]
			if n := len(seg.Tokens); n > 0 && t.job.cached(i) == nil && t.job.beam(i) < 0 {
				need += scratchBytes(&e.shape, seg.Kind, n, !t.job.Source(i).Rotated())
			}
		}
	}
	if p.scratch.Size > 0 && p.scratch.Size >= need {
		if p.unused++; p.scratch.Size <= max(2*need, keptScratch) {
			p.unused = 0
		}
		if p.unused < scratchUnused {
			return nil
		}
	}
	p.free()
	p.unused = 0
	p.mem = e.memory
	b, err := e.memory.Alloc(max(need, 1<<20))
	if err != nil {
		return fmt.Errorf("room for the KV of a batch: %w", err)
	}
	p.scratch = b
	return nil
}

func align(n int) int { return (n + chunkAlign - 1) &^ (chunkAlign - 1) }

func (p *pass) free() {
	if p.scratch.Size > 0 {
		p.mem.Free(p.scratch)
		p.scratch = compute.Block{}
	}
}

// done returns how many leading tokens of segment i have their KV already.
func (j *Job) done(i int) int {
	if j.beam(i) >= 0 {
		return min(j.Beams.done, len(j.Plan.Segments[i].Tokens))
	}
	n, _ := j.Cached(i)
	return n
}

// Cached returns how many leading tokens of segment i have their KV in an entry, and where that was found.
func (j *Job) Cached(i int) (tokens int, at plan.Tier) {
	c := j.cached(i)
	if c == nil {
		return 0, plan.Missing
	}
	return c.Len(), j.Segments[i].Tier
}

// Tiers counts the tokens whose KV is in entries by where these were found.
func (j *Job) Tiers() (tokens [plan.NumTiers]int) {
	for i := range j.Segments {
		n, at := j.Cached(i)
		tokens[at] += n
	}
	return tokens
}

// beam returns which beam segment i is, negative when it is none.
func (j *Job) beam(i int) int {
	if j.Beams == nil {
		return -1
	}
	return i - j.Beams.First
}

// cached returns the entry of the leading tokens of segment i, nil where there is none.
func (j *Job) cached(i int) *kv.Entry {
	if j.Segments == nil || j.beam(i) >= 0 {
		return nil
	}
	return j.Segments[i].Entry
}

// keeps reports whether the KV of segment i shall be returned.
func (j *Job) keeps(i int) bool { return j.Segments != nil && j.Segments[i].Keep }

// keepsAny reports whether any segment's shall.
func (j *Job) keepsAny() bool {
	return slices.ContainsFunc(j.Segments, func(s Segment) bool { return s.Keep })
}

// Source says where the KV of segment i comes from. It is Cached where an entry has that of leading tokens, and that of
// its first part where parts replace tokens; the other tokens of either are computed.
func (j *Job) Source(i int) plan.Source {
	if j.cached(i) != nil {
		return plan.Cached
	}
	if j.Blend != nil {
		for p := range j.Blend.Parts {
			if part := &j.Blend.Parts[p]; part.Segment == i {
				return part.Source
			}
		}
	}
	return plan.Computed
}

// owns reports whether segment i needs an entry of its own in this batch: because it is kept, or
// because tokens follow a cached part, which must not be written to.
func (j *Job) owns(i int) bool {
	c := j.cached(i)
	if j.beam(i) >= 0 || c != nil && c.Len() == len(j.Plan.Segments[i].Tokens) {
		return false
	}
	return len(j.Plan.Segments[i].Tokens) > 0 && (c != nil || j.keeps(i))
}

// add appends a task's segments to the batch, or leaves it as it was and says why.
func (p *pass) add(e *Engine, t *task) error {
	base := len(p.batch.Segments)
	rows, owned, extra := len(p.batch.Tokens), len(p.owned), len(p.batch.Extra)
	content := len(p.batch.Content)
	job := t.job
	t.base = base
	t.out.Kept = nil
	part := job.takesPart()
	if job.keepsAny() {
		t.out.Kept = make([]*kv.Entry, len(job.Segments))
	}
	for i := range job.Plan.Segments {
		seg := &job.Plan.Segments[i]
		from := len(p.sees)
		for _, s := range seg.Sees {
			p.sees = append(p.sees, p.once.all[base+int(s)].same)
		}
		sees := p.sees[from:len(p.sees):len(p.sees)]
		n, place := int32(len(p.batch.Segments)), -1
		if part && len(seg.Tokens) > 0 {
			var with int32
			if with, place = p.find(seg, sees); with >= 0 && p.share(e, t, i, with, sees) {
				continue
			}
		}
		chunks, entry, err := p.memory(e, job, i, &t.out.Result)
		if err != nil {
			p.batch.Segments, p.once.all = p.batch.Segments[:base], p.once.all[:base]
			p.batch.Tokens, p.batch.Positions, p.batch.Extra = p.batch.Tokens[:rows], p.batch.Positions[:rows],
				p.batch.Extra[:extra]
			p.batch.Content = p.batch.Content[:content]
			p.releaseFrom(owned)
			t.out.Result = Result{}
			return err
		}
		cached := job.done(i)
		first := len(p.batch.Tokens)
		p.batch.Tokens = append(p.batch.Tokens, seg.Tokens[cached:]...)
		p.batch.Extra = append(p.batch.Extra, seg.Extra...) // such a segment has nothing cached
		if len(seg.Content) > 0 {
			p.batch.Content = append(p.batch.Content, seg.Content[cached*(len(seg.Content)/len(seg.Tokens)):]...)
		}
		for n := cached; n < len(seg.Tokens); n++ {
			p.batch.Positions = append(p.batch.Positions, int32(seg.Start+n))
		}
		m := meaning{same: n}
		if place >= 0 {
			m.segment, m.entry, m.refused = seg, entry, entry == nil && job.keeps(i)
			p.once.table[place] = n + 1
		}
		p.once.all = append(p.once.all, m)
		p.batch.Segments = append(p.batch.Segments, compute.Segment{
			First: first, Cached: cached, Len: len(seg.Tokens), Sees: sees, Chunks: chunks,
			Start: seg.Start, Scale: seg.Scale,
		})
		t.out.Cached += cached
		t.out.Computed += len(seg.Tokens) - cached
	}
	return nil
}

// memory returns the chunks of a segment and the entry that they are of: the cached one, a new one, or none, of
// scratch.
func (p *pass) memory(e *Engine, job *Job, i int, r *Result) ([]compute.Chunk, *kv.Entry, error) {
	from := len(p.chunks)
	var of *kv.Entry
	tokens, cached := len(job.Plan.Segments[i].Tokens), job.cached(i)
	switch {
	case tokens == 0:
	case job.beam(i) >= 0:
		if err := job.Beams.ready(&e.beams); err != nil {
			return nil, nil, err
		}
		p.chunks = append(p.chunks, job.Beams.chunk(job.beam(i)))
	case job.owns(i):
		if e.opt.Cache == nil {
			return nil, nil, errNoCache
		}
		entry, err := e.opt.Cache.Reserve(kv.LayoutOf(job.Plan.Segments[i].Kind), tokens, cached)
		if errors.Is(err, kv.ErrFull) && cached == nil {
			p.room(e, job.Plan.Segments[i].Kind, tokens, true) // computed, but not kept
			break
		}
		if err != nil {
			return nil, nil, fmt.Errorf("engine: keep the KV of %d tokens: %w", tokens, err)
		}
		p.owned, of = append(p.owned, entry), entry
		if job.keeps(i) {
			r.Kept[i] = entry
		}
		p.chunks = entry.AppendChunks(p.chunks)
	case cached != nil:
		if of = cached; job.keeps(i) {
			p.retain(r, i, cached)
		}
		p.chunks = cached.AppendChunks(p.chunks)
	default:
		p.room(e, job.Plan.Segments[i].Kind, tokens, !job.Source(i).Rotated())
	}
	return p.chunks[from:len(p.chunks):len(p.chunks)], of, nil
}

// retain has a result return an entry that another one owns for segment i.
func (p *pass) retain(r *Result, i int, e *kv.Entry) {
	e.Retain()
	p.owned = append(p.owned, e)
	r.Kept[i] = e
}

// room adds chunks of scratch: for one layer, or for all where not all of them compute the tokens.
func (p *pass) room(e *Engine, kind plan.Kind, tokens int, transient bool) {
	most := scratchTokens(&e.shape, kind, tokens)
	for ; tokens > 0; tokens -= most {
		t := min(tokens, most)
		n := e.shape.ChunkBytes(t, transient)
		p.chunks = append(p.chunks, p.scratch.Slice(p.used, n).Chunk(t, transient))
		p.used += align(n)
	}
}

// scratchTokens is how many tokens of a segment are in a chunk of scratch: all, unless chunks have scales. These are
// cut as they are when they are kept, so that keeping a segment changes nothing.
func scratchTokens(s *compute.Shape, kind plan.Kind, tokens int) int {
	if s.ScaleBytes() == 0 || kv.LayoutOf(kind) != kv.Chain {
		return tokens
	}
	return kv.ChainTokens
}

// scratchBytes is how much room a segment takes of scratch.
func scratchBytes(s *compute.Shape, kind plan.Kind, tokens int, transient bool) int {
	most := scratchTokens(s, kind, tokens)
	full, rest := tokens/most, tokens%most
	n := full * align(s.ChunkBytes(most, transient))
	if rest > 0 {
		n += align(s.ChunkBytes(rest, transient))
	}
	return n
}

// want collects the rows and logits that the tasks ask for.
func (p *pass) want() {
	for i := range p.tasks {
		t := &p.tasks[i]
		if t.out.Err != nil {
			continue
		}
		var owner *Job
		if t.job.direct() {
			owner = t.job
		}
		for _, w := range t.job.Want {
			row := p.lastRow(t, w.Segment)
			p.keep = append(p.keep, row)
			if w.Head != nil {
				p.project(owner, w.Head, row)
				continue
			}
			for _, id := range w.IDs {
				p.pairs = append(p.pairs, compute.Pair{Row: row, ID: id})
			}
		}
		for _, s := range t.job.Hidden {
			row := p.lastRow(t, s)
			p.keep = append(p.keep, row)
			p.rows = append(p.rows, row)
		}
	}
	slices.Sort(p.keep)
	p.keep = slices.Compact(p.keep)
}

// directRows is how many rows of one job make a projection of their own worth it, which saves copying.
const directRows = 32

// project asks for a head's logits at a row. Rows of one head are computed together, in the order in
// which they are asked for; an owner, if not nil, has them in its own memory.
func (p *pass) project(owner *Job, head compute.Linear, row int32) {
	for i := range p.heads {
		if h := &p.heads[i]; h.head == head && h.owner == owner {
			h.rows = append(h.rows, row)
			return
		}
	}
	p.heads = slices.Grow(p.heads, 1)[:len(p.heads)+1]
	h := &p.heads[len(p.heads)-1]
	h.head, h.owner, h.rows, h.taken = head, owner, append(h.rows[:0], row), 0
}

// direct reports whether the job's logits are computed into its own memory: many rows of one head.
func (j *Job) direct() bool {
	if len(j.Want) < directRows || j.Into == nil {
		return false
	}
	for i := range j.Want {
		if j.Want[i].Head == nil || j.Want[i].Head != j.Want[0].Head {
			return false
		}
	}
	return true
}

// projection is the logits of one head at some rows.
type projection struct {
	head   compute.Linear
	rows   []int32
	logits []float32
	owner  *Job // whose Into the logits are computed to; nil: logits
	taken  int  // rows that were delivered
}

// room returns where the logits go.
func (h *projection) room() []float32 {
	if h.owner != nil {
		return h.owner.Into
	}
	n := len(h.rows) * h.head.Out()
	h.logits = slices.Grow(h.logits[:0], n)[:n]
	return h.logits
}

func (h *projection) next() []float32 {
	n := h.head.Out()
	h.taken++
	return h.logits[(h.taken-1)*n : h.taken*n]
}

func (p *pass) lastRow(t *task, segment int) int32 {
	s := &p.batch.Segments[p.once.all[t.base+segment].same]
	return int32(s.First + s.Rows() - 1)
}

// answer fetches the wanted logits and hidden states from the device.
func (p *pass) answer(e *Engine) error {
	p.logits = slices.Grow(p.logits[:0], len(p.pairs))[:len(p.pairs)]
	p.hidden = nil
	if len(p.rows) > 0 {
		p.hidden = make([]float32, len(p.rows)*e.shape.Hidden) // the jobs' from then on
		if err := e.model.Hidden(e.runner, p.rows, p.hidden); err != nil {
			return err
		}
	}
	for i := range p.heads {
		h := &p.heads[i]
		if err := e.model.Project(e.runner, h.head, h.rows, h.room()); err != nil {
			return err
		}
	}
	// Asked even when nothing is wanted: a failure of the device shows here.
	return e.model.Logits(e.runner, p.pairs, p.logits)
}

// deliver copies results to their tasks and hands kept entries over.
func (p *pass) deliver(e *Engine) {
	logits, hidden := p.logits, p.hidden
	for i := range p.tasks {
		t := &p.tasks[i]
		if t.out.Err != nil {
			continue
		}
		logits = p.deliverLogits(t, logits)
		hidden = t.deliverHidden(hidden, e.shape.Hidden)
		for s, k := range t.out.Kept {
			if k == nil {
				continue
			}
			k.Retain() // the caller's reference; the pass releases its own
			if u := t.job.Segments[s].Underway; u != nil {
				u.put(k)
			}
		}
	}
}

// deliverHidden gives a task its states, from the front of hidden, and returns the rest of these.
func (t *task) deliverHidden(hidden []float32, width int) []float32 {
	n := len(t.job.Hidden)
	if n == 0 {
		return hidden
	}
	t.out.Hidden = make([][]float32, n)
	for i := range t.out.Hidden {
		t.out.Hidden[i] = hidden[i*width : (i+1)*width : (i+1)*width]
	}
	return hidden[n*width:]
}

// deliverLogits copies a task's logits to it, those of single tokens from the front of logits, and
// returns the rest of these.
func (p *pass) deliverLogits(t *task, logits []float32) []float32 {
	if t.job.direct() {
		return logits
	}
	into := t.job.Into
	for i := range t.job.Want {
		w := &t.job.Want[i]
		values := logits[:len(w.IDs):len(w.IDs)]
		if w.Head != nil {
			values = p.headOf(w.Head).next()
		} else {
			logits = logits[len(w.IDs):]
		}
		if t.job.Into == nil {
			t.out.Logits = append(t.out.Logits, slices.Clone(values))
			continue
		}
		into = into[copy(into, values):]
	}
	return logits
}

func (p *pass) headOf(head compute.Linear) *projection {
	for i := range p.heads {
		if p.heads[i].head == head && p.heads[i].owner == nil {
			return &p.heads[i]
		}
	}
	return nil // every head that is wanted was asked for
}

// release gives back the references that the pass holds.
func (p *pass) release() { p.releaseFrom(0) }

func (p *pass) releaseFrom(n int) {
	for _, e := range p.owned[n:] {
		e.Release()
	}
	p.owned = p.owned[:n]
}

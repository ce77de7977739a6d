// Package engine runs plans on a device: it collects the jobs of many requests into batches without
// padding, runs the model over them and hands each job its own results.
//
// It knows plans only. The result of a job depends on its own plan alone. It is the same with KV from the cache as
// with computed KV, on the CPU to the bit.
//
// An engine starts no goroutine and has no queue: whoever calls Run decides what goes together. It decides nothing from
// time and reads no clock but the one it is given to measure batches: how long a batch waits for a Load is decided by
// others.
package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"grebe/compute"
	"grebe/kv"
	"grebe/plan"
)

// Errors that callers branch on.
var (
	ErrTooLarge = errors.New("engine: the request is larger than a batch")
	ErrClosed   = errors.New("engine: closed")
	// ErrNoMemory says that the device has no memory for a job, even alone.
	ErrNoMemory = compute.ErrNoMemory
	// ErrLost says that the device does no more work: it has to be opened again, with all that lay on it.
	ErrLost = errors.New("engine: the device is lost")

	errNoCache = errors.New("engine: a job needs room for KV, but there is no cache")
)

// Model is what the engine needs of a model.
type Model interface {
	Shape() compute.Shape
	Vocab() int
	MaxPositions() int
	// Forward runs all layers; keep, ascending, are the rows whose results are wanted, nil for all.
	Forward(r compute.Runner, b *compute.Batch, keep []int32) error
	Logits(r compute.Runner, pairs []compute.Pair, out []float32) error
	Project(r compute.Runner, head compute.Linear, rows []int32, out []float32) error
	Hidden(r compute.Runner, rows []int32, out []float32) error
}

// doubter is a model whose results may be good enough to answer with, but not to keep: when the count moves
// while a batch is computed.
type doubter interface{ Incomplete() uint64 }

// Want asks for the logits of some output tokens at the last token of a segment: those of a head, or
// the given ones.
type Want struct {
	Segment int
	IDs     []int32
	Head    compute.Linear // from the model's Head; used when not nil
}

// Segment says where a job gets the KV of a segment of its plan, and whether it returns that. The zero Segment is
// computed and not returned. The plan itself says neither: it means the same with any KV, and runs again without where
// the cache has no room.
type Segment struct {
	// Entry is the KV of the segment's leading tokens; nil: all are computed. The caller keeps its reference until Do
	// returns.
	Entry *kv.Entry
	Tier  plan.Tier // where Entry was found, for whoever counts that
	Keep  bool      // its KV shall be returned, if the cache has room for it
	// Underway is nil, or has the KV of all of the segment's tokens when another job has computed it. The caller keeps it
	// until Do returns.
	Underway *Underway
	Last     bool // something is wanted of the segment: its last token is computed even if Underway has its KV
}

// From returns segments that begin with these entries, nil where one has none.
func From(entries ...*kv.Entry) []Segment {
	out := make([]Segment, len(entries))
	for i, e := range entries {
		out[i].Entry = e
	}
	return out
}

// Job is one plan and what is wanted of it.
type Job struct {
	Plan *plan.Plan
	Want []Want
	// Hidden lists segments whose last token's hidden state, after the final norm, is wanted.
	Hidden []int
	// Segments is nil where all is computed and nothing kept, or has one per segment of the plan.
	Segments []Segment
	// Once has segments that equal others of the batch not computed: see Shared.
	Once bool
	// Blend is nil, or says what may stand in for tokens' own KV.
	Blend *Blend
	// Search is nil, or what to search for behind the plan instead of Want and Hidden.
	Search *Search
	// Beams is the memory of the last segments, nil when they are like any others.
	Beams *Beams
	// Number is that of the job's request in records.
	Number int

	// What follows spares a caller of many jobs their memory and time. Into has room for the logits of
	// all Wants, one after the other; then Result.Logits is nil. Out is where Do puts the result.
	// Meanwhile is called once by Do, on its caller's goroutine, while the job waits or is computed
	// where there is a queue; it MUST NOT touch the job.
	Into      []float32
	Out       *Result
	Meanwhile func()

	valid *plan.Plan // what Check found to be so, until Run takes the job
}

// Reuses reports whether the job uses KV that was computed for another one.
func (j *Job) Reuses() bool {
	return slices.ContainsFunc(j.Segments, func(s Segment) bool { return s.Entry != nil || s.Underway != nil })
}

// Result is what a job yielded.
type Result struct {
	Logits [][]float32 // one per Want; nil when Job.Into has them
	Hidden [][]float32 // one per Job.Hidden
	// Kept is nil, or has one per segment: the KV of those that were to be kept, nil for the others, where the cache had
	// no room and where the model's inputs were incomplete. The caller owns a reference to each and MUST release it.
	Kept        []*kv.Entry
	Computed    int           // tokens computed
	Cached      int           // tokens whose KV is in entries of Job.Segments, or Shared
	Shared      Shared        // tokens that were computed for an equal segment
	Blended     int           // tokens for which a part of Job.Blend could stand in
	Late        int           // tokens of parts for which nothing came, or not in time
	Reused      []int         // one per part of Job.Blend: its tokens that were not computed again
	Queue       time.Duration // waiting for its batch; the queue's owner fills it in
	Compute     time.Duration // of the batch, by Options.Now
	Waited      time.Duration // of that, for what Job.Blend's Load brings, when nothing was computed
	BatchTokens int           // tokens computed in the batch
}

// Options bound an engine. Zero means the default.
type Options struct {
	MaxTokens int // most tokens computed in one batch, and so in one job; 131072
	// Cache is where kept KV lives; nil when jobs keep nothing.
	Cache *kv.Store
	// Multiple is what the number of rows of a job that blends is rounded to the nearest multiple of (blend.Round), where
	// that changes what was chosen by a tenth at most. By default it is what the device works in, which takes as
	// long for the first row of a multiple as for all of them; 1 rounds nothing.
	Multiple int
	// Now is the clock that Result.Compute is measured with. Without one that is 0. Nothing else depends on it.
	Now func() time.Time
}

// Engine runs jobs on one device.
type Engine struct {
	model  Model
	shape  compute.Shape
	memory compute.Memory
	home   plan.Tier     // of memory
	lost   func() error  // says whether the device is; nil: it cannot be
	doubts func() uint64 // of the model; nil: it has none
	opt    Options

	alone sync.Pool // of *alone
	beams beamStore

	mu     sync.Mutex // held while a batch runs
	closed bool
	runner compute.Runner
	tasks  []task        // of the call of Run
	paused time.Duration // since Run was called
	pass   pass
	room   room
}

// New opens a runner on dev. The caller MUST Close the engine, before the model.
func New(m Model, dev compute.Device, opt Options) (*Engine, error) {
	if opt.MaxTokens <= 0 {
		opt.MaxTokens = 131072
	}
	shape := m.Shape()
	r, err := dev.Open(shape, opt.MaxTokens)
	if err != nil {
		return nil, fmt.Errorf("engine: open %s: %w", dev.Name(), err)
	}
	e := &Engine{model: m, shape: shape, memory: dev.Memory(), beams: beamStore{memory: dev.Memory()}, opt: opt, runner: r}
	if e.home = plan.Host; e.memory.Host() != e.memory {
		e.home = plan.Device
	}
	if d, ok := dev.(interface{ Lost() error }); ok {
		e.lost = d.Lost
	}
	if d, ok := m.(doubter); ok {
		e.doubts = d.Incomplete
	}
	e.pass.multiple = multiple(r, opt)
	_, e.pass.starts = r.(compute.Starter)
	return e, nil
}

// multiple is Options.Multiple, or the runner's own.
func multiple(r compute.Runner, opt Options) int {
	if opt.Multiple > 0 {
		return opt.Multiple
	}
	if m, ok := r.(interface{ Multiple() int }); ok {
		return m.Multiple()
	}
	return 1
}

// failed says what an error of the device means.
func (e *Engine) failed(err error) error {
	if e.lost != nil && e.lost() != nil {
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	return fmt.Errorf("engine: %w", err)
}

// MaxTokens returns the most tokens that a batch computes.
func (e *Engine) MaxTokens() int { return e.opt.MaxTokens }

// Sizes returns numbers of rows, ascending, up to most: between them batches of these meet all that the device
// prepares when it first sees a size. There are none where it prepares nothing.
func (e *Engine) Sizes(most int) []int {
	if r, ok := e.runner.(interface{ Sizes(most int) []int }); ok {
		return r.Sizes(most)
	}
	return nil
}

// Do runs one job by itself, when the engine is free.
func (e *Engine) Do(ctx context.Context, j *Job) (*Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if j.Meanwhile != nil {
		j.Meanwhile()
	}
	if l := j.load(); l != nil { // what is not read when the caller leaves is computed: a batch that runs ends
		defer context.AfterFunc(ctx, l.Stop)()
	}
	a, _ := e.alone.Get().(*alone)
	if a == nil {
		a = &alone{}
	}
	a.jobs[0] = j
	e.Run(a.jobs[:], a.out[:])
	out := a.out[0]
	*a = alone{}
	e.alone.Put(a)
	return j.Deliver(&out)
}

// alone is a batch of one job.
type alone struct {
	jobs [1]*Job
	out  [1]Outcome
}

// Deliver makes an outcome what Do returns: in the memory that the job gives for it, or a copy.
func (j *Job) Deliver(o *Outcome) (*Result, error) {
	if o.Err != nil {
		return nil, o.Err
	}
	r := j.Out
	if r == nil {
		r = new(Result)
	}
	*r = o.Result
	return r, nil
}

// Outcome is a job's result, or why there is none.
type Outcome struct {
	Result
	Err error
}

// Run computes jobs as one batch, or searches and others as one each, and sets out[i] to the outcome of jobs[i]. A job
// that is wrong or finds no room fails alone. Jobs that compute more than MaxTokens tokens together become several
// batches: of a job that blends, Check expects less than what its first layer computes.
func (e *Engine) Run(jobs []*Job, out []Outcome) { e.run(jobs, out, nil) }

// RunPausing is Run for jobs that give way: pause is called between operations, and other engines of the device may run
// jobs before it returns. That time is not part of Result.Compute.
func (e *Engine) RunPausing(jobs []*Job, out []Outcome, pause func()) {
	e.run(jobs, out, func() {
		began := e.now()
		pause()
		e.paused += e.now().Sub(began)
	})
}

func (e *Engine) run(jobs []*Job, out []Outcome, pause func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	start := e.now()
	e.pass.batch.Pause, e.paused = pause, 0
	e.tasks, e.pass.waited = e.tasks[:0], 0
	for i, j := range jobs {
		out[i] = Outcome{}
		j.arrive(e, &out[i].Shared)
		n, err := e.check(j)
		j.valid = nil
		if e.closed {
			err = ErrClosed
		}
		if err != nil {
			out[i].Err = err
			continue
		}
		e.tasks = append(e.tasks, task{job: j, out: &out[i], rows: n, shared: out[i].Shared})
	}
	for left := e.tasks; len(left) > 0; {
		n := e.group(left)
		err := e.runTasks(left[:n], start)
		switch {
		case err == nil || errors.Is(err, ErrLost):
		case errors.Is(err, ErrNoMemory):
			err = e.runSmaller(left[:n], start)
		case n > 1 && anyBlends(left[:n]):
			e.runApart(left[:n], start)
		}
		if !anyAlone(left[:n]) {
			e.room.ran(n, err)
		}
		left = left[n:]
	}
}

// runApart runs tasks again one by one: what stands in for tokens is known late, and one job's may be wrong. The others
// are answered.
func (e *Engine) runApart(tasks []task, start time.Time) {
	for i := range tasks {
		tasks[i].again()
		_ = e.runTasks(tasks[i:i+1], start) // its outcome has it
	}
}

// runTasks runs tasks as one batch. It returns what failed all of them.
func (e *Engine) runTasks(tasks []task, start time.Time) error {
	e.pass.tasks = tasks
	err := e.pass.run(e)
	took := e.now().Sub(start) - e.paused
	for i := range tasks {
		r := &tasks[i].out.Result
		r.Compute, r.BatchTokens, r.Waited = took, len(e.pass.batch.Tokens), e.pass.waited
	}
	return err
}

// now reads the clock; the zero time where there is none.
func (e *Engine) now() time.Time {
	if e.opt.Now == nil {
		return time.Time{}
	}
	return e.opt.Now()
}

// anyBlends reports whether a task's job blends.
func anyBlends(tasks []task) bool {
	return slices.ContainsFunc(tasks, func(t task) bool { return t.job.Blend != nil })
}

// Close releases the device, after a batch under way. Later jobs fail with ErrClosed.
func (e *Engine) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	e.closed = true
	e.pass.free()
	e.beams.close()
	return e.runner.Close()
}

// Cost is how much there is to compute.
type Cost struct {
	Rows int // tokens
	Keys int // keys that they attend to, summed
	// Of a job that blends: the share of Rows that is computed before rows are chosen, and how many times Rows would be
	// computed more if nothing came of what is read from a disk.
	First, Late float64
}

// Check validates a job before it costs anything, and counts what it computes.
func (e *Engine) Check(j *Job) (cost Cost, err error) {
	j.valid = nil
	rows, err := e.check(j)
	if err != nil {
		return cost, err
	}
	j.valid = j.Plan
	cost.Rows = rows
	if j.Blend != nil {
		defer func() {
			cost.Rows = j.Blend.expected(rows, e.shape.Layers)
			cost.Keys = int(float64(cost.Keys) * float64(cost.Rows) / float64(max(rows, 1)))
			cost.First, cost.Late = j.Blend.shares(rows, cost.Rows, e.shape.Layers)
		}()
	}
	all := 0
	for i := range j.Plan.Segments {
		cost.Keys += j.keys(i, j.done(i))
		all += len(j.Plan.Segments[i].Tokens)
	}
	if j.Search != nil {
		j.Search.cost(&cost, all, e.opt.MaxTokens)
	}
	return cost, nil
}

// check validates a job and counts the rows it computes.
func (e *Engine) check(j *Job) (int, error) {
	if j.valid != j.Plan { // looking at all tokens again would take the engine's time
		if err := j.Plan.Validate(e.model.Vocab(), e.model.MaxPositions()); err != nil {
			return 0, err
		}
	}
	n := len(j.Plan.Segments)
	if j.Segments != nil && len(j.Segments) != n {
		return 0, fmt.Errorf("engine: the plan has %d segments, but the job %d", n, len(j.Segments))
	}
	if e.opt.Cache == nil && j.keepsAny() {
		return 0, errNoCache
	}
	if err := j.checkInto(); err != nil {
		return 0, err
	}
	if err := e.checkSearch(j); err != nil {
		return 0, err
	}
	if err := e.checkBlend(j); err != nil {
		return 0, err
	}
	rows := 0
	for i := range j.Plan.Segments {
		tokens, cached := len(j.Plan.Segments[i].Tokens), j.done(i)
		if b := j.beam(i); b >= 0 && (b >= j.Beams.Width() || tokens > j.Beams.depth) {
			return 0, fmt.Errorf("engine: beam %d of %d tokens, there is room for %d of %d", b, tokens, j.Beams.Width(),
				j.Beams.depth)
		}
		if s := &j.Plan.Segments[i]; (s.Extra != nil || s.Scale != 0) && (j.cached(i) != nil || j.keeps(i)) {
			return 0, fmt.Errorf("engine: segment %d depends on the whole request, but its KV is cached or shall be", i)
		}
		if cached > tokens {
			return 0, fmt.Errorf("engine: segment %d has %d tokens, but %d are cached", i, tokens, cached)
		}
		rows += tokens - cached
	}
	for _, w := range j.Want {
		if err := e.checkAnswer(j, w.Segment); err != nil {
			return 0, err
		}
		for _, id := range w.IDs {
			if id < 0 || int(id) >= e.model.Vocab() {
				return 0, fmt.Errorf("engine: logit of token %d wanted, outside the vocabulary of %d", id, e.model.Vocab())
			}
		}
	}
	for _, s := range j.Hidden {
		if err := e.checkAnswer(j, s); err != nil {
			return 0, err
		}
	}
	if rows > e.opt.MaxTokens {
		return 0, fmt.Errorf("%w: %d tokens to compute, at most %d", ErrTooLarge, rows, e.opt.MaxTokens)
	}
	return rows, nil
}

// checkInto checks the room for the logits.
func (j *Job) checkInto() error {
	if j.Into == nil {
		return nil
	}
	n := 0
	for i := range j.Want {
		n += j.Want[i].logits()
	}
	if n != len(j.Into) {
		return fmt.Errorf("engine: %d logits are wanted into room for %d", n, len(j.Into))
	}
	return nil
}

// logits returns how many logits are wanted.
func (w *Want) logits() int {
	if w.Head != nil {
		return w.Head.Out()
	}
	return len(w.IDs)
}

// checkAnswer checks that a segment's last token is computed by the job.
func (e *Engine) checkAnswer(j *Job, s int) error {
	if s < 0 || s >= len(j.Plan.Segments) {
		return fmt.Errorf("engine: an answer is wanted of segment %d of %d", s, len(j.Plan.Segments))
	}
	n := len(j.Plan.Segments[s].Tokens)
	if n == 0 || j.done(s) == n {
		return fmt.Errorf("engine: an answer is wanted of segment %d, which computes no token", s)
	}
	return nil
}

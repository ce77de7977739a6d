// Package engine runs plans on a device: it collects the jobs of many requests into batches without
// padding, runs the model over them and hands each job its own results.
//
// It knows plans only. What a job yields depends on its own plan alone; with KV taken from the cache
// instead of computed the result is the same, on the CPU to the bit.
//
// One goroutine, owned by the Engine, runs batches; Do waits for its job's result or its context.
// The queue is bounded.
package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"grebe/compute"
	"grebe/kv"
	"grebe/plan"
)

// Errors that callers branch on.
var (
	ErrQueueFull = errors.New("engine: the queue is full")
	ErrExpired   = errors.New("engine: the deadline passed in the queue")
	ErrTooLarge  = errors.New("engine: the request is larger than a batch")
	ErrClosed    = errors.New("engine: closed")

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
	Hidden(r compute.Runner, rows []int32, out []float32) error
}

// Want asks for the logits of some output tokens at the last token of a segment.
type Want struct {
	Segment int
	IDs     []int32
}

// Job is one plan and what is wanted of it.
type Job struct {
	Plan *plan.Plan
	Want []Want
	// Hidden lists segments whose last token's hidden state, after the final norm, is wanted.
	Hidden []int
	// Cached is nil, or has one entry per segment, nil where nothing is known: the KV of the
	// segment's leading tokens. The caller keeps its references until Do returns.
	Cached []*kv.Entry
	// Keep is nil, or says per segment whether its KV shall be returned.
	Keep []bool
}

// Result is what a job yielded.
type Result struct {
	Logits [][]float32 // one per Want
	Hidden [][]float32 // one per Job.Hidden
	// Kept has the KV of the segments that were to be kept, nil for the others. The caller owns a
	// reference to each and MUST release it.
	Kept           []*kv.Entry
	Computed       int // tokens computed
	Cached         int // tokens taken from Job.Cached
	Queue, Compute time.Duration
	BatchTokens    int // tokens computed in the batch that the job was part of
}

// Options bound an engine. Zero means the default.
type Options struct {
	MaxTokens   int // most tokens computed in one batch, and so in one job; 16384
	BatchTokens int // a batch takes further jobs while it has fewer; 4096
	Queue       int // jobs waiting; 1024
	// Cache is where kept KV lives; nil when jobs keep nothing.
	Cache *kv.Store
}

// Engine runs jobs on one device.
type Engine struct {
	model   Model
	shape   compute.Shape
	opt     Options
	queue   chan *task
	stop    chan struct{}
	closing sync.Once
	done    sync.WaitGroup
	runner  compute.Runner
	pass    pass
}

// task is a job on its way.
type task struct {
	job    *Job
	rows   int
	ctx    context.Context
	queued time.Time
	// taken decides between the loop that runs the task and a caller that gives up: first wins.
	taken  atomic.Bool
	base   int // its first segment in the batch
	result Result
	err    error
	done   chan struct{}
}

// New opens a runner on dev and starts the engine. The caller MUST Close it, before the model.
func New(m Model, dev compute.Device, opt Options) (*Engine, error) {
	if opt.MaxTokens <= 0 {
		opt.MaxTokens = 16384
	}
	if opt.BatchTokens <= 0 {
		opt.BatchTokens = 4096
	}
	opt.BatchTokens = min(opt.BatchTokens, opt.MaxTokens)
	if opt.Queue <= 0 {
		opt.Queue = 1024
	}
	shape := m.Shape()
	r, err := dev.Open(shape, opt.MaxTokens)
	if err != nil {
		return nil, fmt.Errorf("engine: open %s: %w", dev.Name(), err)
	}
	e := &Engine{
		model: m, shape: shape, opt: opt, runner: r,
		queue: make(chan *task, opt.Queue), stop: make(chan struct{}),
	}
	e.done.Add(1)
	go e.loop()
	return e, nil
}

// Do runs a job and waits for it. A context that ends while the job is queued takes it out without
// computing.
func (e *Engine) Do(ctx context.Context, j *Job) (*Result, error) {
	rows, err := e.check(j)
	if err != nil {
		return nil, err
	}
	t := &task{job: j, rows: rows, ctx: ctx, queued: time.Now(), done: make(chan struct{})}
	select {
	case <-e.stop:
		return nil, ErrClosed
	default:
	}
	select {
	case e.queue <- t:
	default:
		return nil, ErrQueueFull
	}
	select {
	case <-t.done:
	case <-ctx.Done():
		if t.taken.CompareAndSwap(false, true) {
			return nil, expired(ctx)
		}
		<-t.done
	case <-e.stop:
		if t.taken.CompareAndSwap(false, true) {
			return nil, ErrClosed
		}
		<-t.done
	}
	if t.err != nil {
		return nil, t.err
	}
	return &t.result, nil
}

// check validates a job before it costs anything, and counts the rows it computes.
func (e *Engine) check(j *Job) (int, error) {
	if err := j.Plan.Validate(e.model.Vocab(), e.model.MaxPositions()); err != nil {
		return 0, err
	}
	n := len(j.Plan.Segments)
	if j.Cached != nil && len(j.Cached) != n || j.Keep != nil && len(j.Keep) != n {
		return 0, fmt.Errorf("engine: %d segments, but %d cached and %d keep", n, len(j.Cached), len(j.Keep))
	}
	if j.Keep != nil && e.opt.Cache == nil {
		return 0, errNoCache
	}
	rows := 0
	for i := range j.Plan.Segments {
		tokens, cached := len(j.Plan.Segments[i].Tokens), 0
		if j.Cached != nil && j.Cached[i] != nil {
			cached = j.Cached[i].Len()
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

// checkAnswer checks that a segment's last token is computed by the job.
func (e *Engine) checkAnswer(j *Job, s int) error {
	if s < 0 || s >= len(j.Plan.Segments) {
		return fmt.Errorf("engine: an answer is wanted of segment %d of %d", s, len(j.Plan.Segments))
	}
	n := len(j.Plan.Segments[s].Tokens)
	if n == 0 || j.Cached != nil && j.Cached[s] != nil && j.Cached[s].Len() == n {
		return fmt.Errorf("engine: an answer is wanted of segment %d, which computes no token", s)
	}
	return nil
}

// loop takes tasks from the queue, as many as a batch holds, and runs them.
func (e *Engine) loop() {
	defer e.done.Done()
	var batch []*task
	var held *task // did not fit into the last batch
	for {
		batch = batch[:0]
		if held == nil {
			select {
			case <-e.stop:
				return
			case held = <-e.queue:
			}
		}
		select {
		case <-e.stop:
			return
		default:
		}
		rows := 0
		for held != nil {
			if len(batch) > 0 && rows+held.rows > e.opt.BatchTokens {
				break
			}
			if held.taken.CompareAndSwap(false, true) {
				if err := expired(held.ctx); err != nil {
					held.finish(err)
				} else {
					batch = append(batch, held)
					rows += held.rows
				}
			}
			select {
			case held = <-e.queue:
			default:
				held = nil
			}
		}
		if len(batch) > 0 {
			e.run(batch)
		}
	}
}

// expired says why a context ended, nil when it did not.
func expired(ctx context.Context) error {
	switch err := ctx.Err(); {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return ErrExpired
	default:
		return err
	}
}

func (t *task) finish(err error) {
	t.err = err
	close(t.done)
}

// run computes a batch and answers its tasks.
func (e *Engine) run(batch []*task) {
	start := time.Now()
	err := e.pass.run(e, batch)
	took := time.Since(start)
	for _, t := range batch {
		t.result.Queue = start.Sub(t.queued)
		t.result.Compute = took
		t.result.BatchTokens = len(e.pass.batch.Tokens)
		if t.err == nil {
			t.err = err
		}
		t.finish(t.err)
	}
}

// Close stops the engine. Jobs in the queue fail with ErrClosed; a batch under way completes.
func (e *Engine) Close() (err error) {
	e.closing.Do(func() {
		close(e.stop)
		e.done.Wait()
		e.pass.free()
		err = e.runner.Close()
	})
	return err
}

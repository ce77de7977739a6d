package serve

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/engine"
	"grebe/generate"
)

// A GPU compiles, times and records what a request needs when it first sees a request of its kind and size.
const (
	warmRows  = 2048        // most tokens of a prompt
	warmStep  = 128         // between sizes
	warmSpare = 32          // tokens that a model's template may add
	warmTurns = 2           // requests of each kind and size: work that repeats is recorded the second time
	warmLimit = time.Minute // of one request
)

// warmWidths are the beam widths of searches, the default first.
var warmWidths = []int{defaultBeamWidth, 512, 50}

// warmTogether are numbers of searches at a time, the largest first.
var warmTogether = []int{16, 2, 4, 8}

// warmSmall are sizes below warmStep.
var warmSmall = []int{64, 32, 16, 8}

// WarmUp sends models made-up requests of all kinds and sizes, so that no client waits for what a device prepares at
// first use. It counts only as probes and caches no users and items. It is for one goroutine.
type WarmUp struct {
	s     *Service
	steps []warmStepOf
	next  int
	asked int
}

// warmStepOf is a kind and size of requests to a model.
type warmStepOf struct {
	slot     *slot
	tokens   int // of the user
	width    int // of a search; 0: a ranking
	together int // requests at a time
}

// NewWarmUp returns a warm-up of all models of texts. What takes most memory comes first: what was recorded before
// memory grew is of no use. Then comes what most requests need, long prompts before short ones.
func (s *Service) NewWarmUp() *WarmUp {
	w := &WarmUp{s: s}
	for _, rare := range []bool{false, true} {
		for _, sl := range s.served {
			w.add(sl, rare)
		}
	}
	return w
}

// add adds a model's steps: those that are common, or the rare ones.
func (w *WarmUp) add(sl *slot, rare bool) {
	c := sl.take()
	defer sl.release(c)
	if !c.ReadsTexts() || c.Runner == nil {
		return
	}
	searches := c.Generate != nil && c.Generate.Snapshot() != nil && c.Generate.Snapshot().Len() > 0
	var sizes []int
	for rows := min(warmRows, c.Positions) / warmStep * warmStep; rows > 0; rows -= warmStep {
		sizes = append(sizes, rows)
	}
	if searches && !rare && len(sizes) > 0 {
		w.steps = append(w.steps, warmStepOf{sl, warmStep, defaultBeamWidth, warmTogether[0]},
			warmStepOf{sl, sizes[0] - warmSpare, slices.Max(warmWidths), 1})
	}
	for _, rows := range append(sizes, warmSmall...) {
		tokens := rows - min(rows/4, warmSpare)
		for i, width := range warmWidths {
			if searches && (i > 0) == rare {
				w.steps = append(w.steps, warmStepOf{sl, tokens, width, 1})
			}
		}
		if !rare {
			w.steps = append(w.steps, warmStepOf{sl, tokens, 0, 1})
		}
	}
	for _, n := range warmTogether[1:] {
		if searches && rare {
			w.steps = append(w.steps, warmStepOf{sl, warmStep, defaultBeamWidth, n})
		}
	}
}

// Run asks for as much as fits into a time. Later calls go on. Run returns the first failure that is a model's own
// fault, after which the model is not asked again, and the context's error. What finds no memory is left out.
func (w *WarmUp) Run(ctx context.Context, within time.Duration) error {
	for start := time.Now(); w.Left() > 0 && time.Since(start) < within; {
		if err := w.step(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// step asks for the next kind and size.
func (w *WarmUp) step(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	step := w.steps[w.next]
	w.next++
	err := ownFault(w.ask(ctx, &step))
	if errors.Is(err, engine.ErrNoMemory) { // only for this step: those that need less may fit
		return nil
	}
	if err != nil {
		w.forget(step.slot)
	}
	return err
}

// forget drops the steps of a model that are left.
func (w *WarmUp) forget(sl *slot) {
	var left []warmStepOf
	for _, s := range w.steps[w.next:] {
		if s.slot != sl {
			left = append(left, s)
		}
	}
	w.steps, w.next = left, 0
}

// Asked returns how many requests were sent.
func (w *WarmUp) Asked() int { return w.asked }

// Left returns how many kinds and sizes are left.
func (w *WarmUp) Left() int { return len(w.steps) - w.next }

// Finish asks for the rest in the time that clients' requests leave.
func (w *WarmUp) Finish(ctx context.Context) error {
	for w.Left() > 0 {
		err := w.s.Idle(ctx, w.steps[w.next].slot.name, w.step)
		if err != nil {
			return err
		}
	}
	return nil
}

// ask sends the requests of a step, whose tokens differ so that none finds the KV of another.
func (w *WarmUp) ask(ctx context.Context, step *warmStepOf) error {
	c := step.slot.take()
	defer step.slot.release(c)
	ctx, cancel := context.WithTimeout(ctx, warmLimit)
	defer cancel()
	for range warmTurns {
		errs := make([]error, step.together)
		var wg sync.WaitGroup
		for i := range errs {
			w.asked++
			tokens := make([]int32, step.tokens)
			for t := range tokens {
				tokens[t] = int32((w.asked + t) % c.Vocab)
			}
			wg.Go(func() { errs[i] = w.s.warmOnce(ctx, c, step.width, tokens) })
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	return nil
}

// warmOnce sends one request.
func (s *Service) warmOnce(ctx context.Context, c *checkpoint, width int, tokens []int32) error {
	if width > 0 {
		_, err := c.Generate.Recommend(ctx, &generate.Request{Whole: true, User: tokens, N: 1, Width: width})
		return err
	}
	_, made := madeUp(c)
	probe := &call{op: "probe", start: time.Now(), deadline: warmLimit, model: c}
	_, err := s.rank(ctx, probe, &grebev1.RankRequest{
		User: &grebev1.User{Tokens: tokens}, Candidates: made, Prefix: "none"})
	return err
}

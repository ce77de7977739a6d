package rank

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"grebe/bench/report"
	"grebe/compute"
	"grebe/compute/cuda"
	"grebe/engine"
	"grebe/kv"
	"grebe/plan"
	"grebe/pool"
)

// Gathering is the time of a ranking whose cached part lies in the GPU's memory, or in the host's; medians in
// milliseconds of runs in turns.
type Gathering struct {
	Cached  string  `json:"cached"`    // items or user
	Rows    int     `json:"rows"`      // tokens computed
	Tokens  int     `json:"tokens"`    // cached
	MiB     float64 `json:"mib"`       // of their KV
	Device  float64 `json:"device_ms"` // all in the GPU's memory
	Fetched float64 `json:"host_ms"`   // fetched from the host's memory beside the computation
	InPlace float64 `json:"host_in_place_ms"`
	Differ  float64 `json:"differ"` // most by which logits of the same ranking did, relative
}

// placed are jobs of one kind by where their cached part is.
type placed struct {
	line Gathering
	jobs [2]*engine.Job // on the device, on the host
}

// gathering measures what it takes to have the cached part in the host's memory. Devices that compute there
// have nothing to measure.
func (s *system) gathering(ctx context.Context, o *AssembleOptions) ([]Gathering, error) {
	gpu, ok := s.device.(cuda.Device)
	if !ok {
		return nil, nil
	}
	var kinds [2]placed
	var run *engine.Engine
	for where, memory := range []compute.Memory{gpu.Memory(), gpu.Memory().Host()} {
		a, done, err := s.newAssembler(memory, int64(2*(o.User+o.Items*o.Tokens)+4096))
		if err != nil {
			return nil, err
		}
		defer done()
		if where == 0 {
			run = a.engine
		}
		user := a.tokens(o.User)
		items := make([]int, o.Items)
		for i := range items {
			items[i] = o.Tokens
		}
		if kinds[0].jobs[where], err = a.job(ctx, user, items); err != nil {
			return nil, err
		}
		defer releaseOf(kinds[0].jobs[where])
		if kinds[1].jobs[where], err = a.userJob(ctx, user, items); err != nil {
			return nil, err
		}
		defer releaseOf(kinds[1].jobs[where])
	}
	defer gpu.UseInPlace(false)
	var out []Gathering
	for i := range kinds {
		k := &kinds[i]
		k.line.Cached = []string{"items", "user"}[i]
		if err := k.measure(ctx, run, gpu, o.Repeats); err != nil {
			return nil, err
		}
		k.line.MiB = float64(s.shape.ChunkBytes(k.line.Tokens, false)) / (1 << 20)
		out = append(out, k.line)
	}
	return out, nil
}

// newAssembler returns one with a store of its own in some memory, with room for so many tokens.
func (s *system) newAssembler(memory compute.Memory, tokens int64) (*assembler, func(), error) {
	pages, err := pool.Over(memory, tokens*int64(s.shape.ChunkBytes(1, false)), pageFor(&s.shape))
	if err != nil {
		return nil, nil, err
	}
	store := kv.New(s.shape, pages)
	e, err := engine.New(s.model, s.device, engine.Options{MaxTokens: batchTokens, Cache: store, Now: time.Now})
	if err != nil {
		store.Close()
		return nil, nil, errors.Join(err, pages.Close())
	}
	done := func() {
		_ = e.Close() // nothing is left to measure
		store.Close()
		_ = pages.Close()
	}
	a, err := newAssembler(e, s.model.Vocab())
	if err != nil {
		done()
	}
	return a, done, err
}

// userJob lays out items of those lengths behind a user, whose KV it computes and caches first.
func (a *assembler) userJob(ctx context.Context, user []int32, lengths []int) (*engine.Job, error) {
	items := make([][]int32, len(lengths))
	for i, n := range lengths {
		items[i] = a.tokens(n)
	}
	l, err := a.build.Rank(plan.UserFirst, user, items)
	if err != nil {
		return nil, err
	}
	n := len(l.Plan.Segments)
	job := &engine.Job{Plan: l.Plan, Want: []engine.Want{{Segment: l.Answers, IDs: []int32{1, 2}}},
		Segments: make([]engine.Segment, n)}
	job.Segments[l.User].Keep = true
	r, err := a.engine.Do(ctx, job)
	if err != nil {
		return nil, err
	}
	if r.Kept[l.User] == nil {
		return nil, kv.ErrFull
	}
	job.Segments = engine.From(r.Kept...)
	return job, nil
}

// measure runs the jobs in turns, after a few rounds in which sizes are seen for the first times.
func (k *placed) measure(ctx context.Context, e *engine.Engine, gpu cuda.Device, repeats int) error {
	const warm = 4
	var times [3][]float64
	var first []float32 // logits, which are the same wherever the cached part lies
	for round := range warm + repeats {
		for i := range times {
			i = (i + round) % len(times)
			gpu.UseInPlace(i == 2)
			r, err := e.Do(ctx, k.jobs[min(i, 1)])
			if err != nil {
				return err
			}
			k.line.Rows, k.line.Tokens = r.Computed, r.Cached
			if first == nil {
				first = r.Logits[0]
			}
			if err := k.compare(first, r.Logits[0]); err != nil {
				return fmt.Errorf("round %d, place %d: %w", round, i, err)
			}
			if round >= warm {
				times[i] = append(times[i], r.Compute.Seconds()*1000)
			}
		}
	}
	k.line.Device, k.line.Fetched, k.line.InPlace = report.Median(times[0]), report.Median(times[1]),
		report.Median(times[2])
	return nil
}

// compare compares logits with those of the first run, and notes how far they are apart.
func (k *placed) compare(want, got []float32) error {
	const limit = 0.02 // of a logit's size: bf16's steps
	for i := range want {
		off := math.Abs(float64(got[i]-want[i])) / max(1, math.Abs(float64(want[i])))
		k.line.Differ = max(k.line.Differ, off)
		if !(off <= limit) {
			return fmt.Errorf("logits %v, at first %v", got, want)
		}
	}
	return nil
}

func (p *printer) gathering(lines []Gathering) {
	if len(lines) == 0 {
		return
	}
	p.printf("\nrankings by where the cached part lies; medians of runs in turns\n")
	rows := [][]string{{"cached", "tokens computed", "cached", "MiB", "GPU's memory ms", "host's, fetched beside ms",
		"host's, in place ms"}}
	for _, l := range lines {
		rows = append(rows, []string{l.Cached, fmt.Sprint(l.Rows), fmt.Sprint(l.Tokens), fmt.Sprintf("%.1f", l.MiB),
			fmt.Sprintf("%.2f", l.Device), fmt.Sprintf("%.2f", l.Fetched), fmt.Sprintf("%.2f", l.InPlace)})
	}
	p.table(rows)
}

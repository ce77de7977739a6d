package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"grebe/compute"
	"grebe/plan"
)

// crowded is a device with memory for batches of so many tokens. What runners keep takes some of it until Trim.
type crowded struct {
	compute.Device
	room, kept int
	batches    []int // tokens of each that was tried
	trims      int
}

func (c *crowded) Open(s compute.Shape, rows int) (compute.Runner, error) {
	r, err := c.Device.Open(s, rows)
	return &crowdedRunner{r, c}, err
}

type crowdedRunner struct {
	compute.Runner
	of *crowded
}

func (r *crowdedRunner) Trim() { r.of.kept, r.of.trims = 0, r.of.trims+1 }

func (r *crowdedRunner) Begin(b *compute.Batch) error {
	if err := r.Runner.Begin(b); err != nil || len(b.Tokens) == 0 {
		return err
	}
	r.of.batches = append(r.of.batches, len(b.Tokens))
	if have := r.of.room - r.of.kept; len(b.Tokens) > have {
		return fmt.Errorf("%w: %d tokens, there is room for %d", compute.ErrNoMemory, len(b.Tokens), have)
	}
	return nil
}

// Without memory for a batch its jobs are computed in smaller ones, once the runner gave back what it can, with the
// results that they have elsewhere. A job for which there is no memory alone fails, and only that one.
func TestBatchesWithoutMemory(t *testing.T) {
	dev := &crowded{Device: oneThread(t), room: 1 << 20}
	e := newTiny(t, dev, "f32", Options{})
	jobs := func() (all []*Job) {
		for i := range 8 {
			all = append(all, &Job{Plan: user(int32(i), int32(i+1), 5, 6), Hidden: []int{0}, Segments: keeping(i%2 == 0)})
		}
		return append(all, &Job{Plan: user(slices.Repeat([]int32{7}, 20)...), Hidden: []int{0}})
	}
	run := func(all []*Job) []Outcome {
		t.Helper()
		dev.batches, dev.trims = nil, 0
		out := make([]Outcome, len(all))
		e.Run(all, out)
		for i := range out {
			for _, k := range out[i].Kept {
				if k != nil {
					k.Release()
				}
			}
			if kept := len(out[i].Kept) > 0 && out[i].Kept[0] != nil; out[i].Err == nil && kept != all[i].keepsAny() {
				t.Errorf("job %d keeps its KV: %v", i, kept)
			}
		}
		if used := e.pool.Stats().Used; used != 0 {
			t.Errorf("%d bytes of KV are in use", used)
		}
		return out
	}
	want := run(jobs())
	for _, c := range []struct {
		room, kept int
		batches    []int
		trims      int
	}{
		{52, 20, []int{52, 52}, 1},
		{36, 0, []int{52, 52, 16, 36}, 3},
		{16, 0, nil, 0},
		{4, 2, nil, 0},
	} {
		dev.room, dev.kept, e.room = c.room, c.kept, room{}
		got := run(jobs())
		if c.batches != nil && (!slices.Equal(dev.batches, c.batches) || dev.trims != c.trims) {
			t.Errorf("room for %d: batches of %v and %d trims, want %v and %d", c.room, dev.batches, dev.trims, c.batches,
				c.trims)
		}
		for i := range got {
			if i == 8 && c.room < 20 {
				if !errors.Is(got[i].Err, ErrNoMemory) {
					t.Errorf("room for %d: the job of 20 tokens: %v", c.room, got[i].Err)
				}
				continue
			}
			if got[i].Err != nil || !slices.Equal(got[i].Hidden[0], want[i].Hidden[0]) {
				t.Errorf("room for %d, job %d: %v, other results: %v", c.room, i, got[i].Err,
					got[i].Err == nil && !slices.Equal(got[i].Hidden[0], want[i].Hidden[0]))
			}
		}
	}
}

// After a batch without memory, batches are smaller from the start, and grow again when there is room.
func TestBatchesAreSmallerForAWhile(t *testing.T) {
	dev := &crowded{Device: oneThread(t), room: 3 * 5}
	e := newTiny(t, dev, "f32", Options{})
	run := func() {
		t.Helper()
		var all []*Job
		for i := range 8 {
			all = append(all, &Job{Plan: &plan.Plan{Segments: []plan.Segment{{Kind: plan.User,
				Tokens: []int32{int32(i), 2, 3, 4, 5}}}}})
		}
		out := make([]Outcome, len(all))
		dev.batches = nil
		e.Run(all, out)
		for i := range out {
			if out[i].Err != nil {
				t.Fatal(out[i].Err)
			}
		}
	}
	run()
	run()
	run()
	if want := []int{10, 10, 10, 10}; !slices.Equal(dev.batches, want) {
		t.Fatalf("batches of %v tokens, want %v", dev.batches, want)
	}
	dev.room = 1 << 20
	for range 4 * roomTries {
		run()
	}
	if want := []int{40}; !slices.Equal(dev.batches, want) {
		t.Errorf("with memory again batches of %v tokens, want %v", dev.batches, want)
	}
}

// A job that finds no memory alone says nothing of batches: those of others stay as large as they were.
func TestOneLargeJobDoesNotMakeBatchesSmaller(t *testing.T) {
	dev := &crowded{Device: oneThread(t), room: 60}
	e := newTiny(t, dev, "f32", Options{})
	large := &Job{Plan: user(slices.Repeat([]int32{7}, 62)...), Hidden: []int{0}}
	run := func(more ...*Job) []Outcome {
		all := more
		for i := range 8 {
			all = append(all, &Job{Plan: user(int32(i), 2, 3, 4, 5), Hidden: []int{0}})
		}
		out := make([]Outcome, len(all))
		dev.batches = nil
		e.Run(all, out)
		return out
	}
	for range 3 {
		if out := run(large); !errors.Is(out[0].Err, ErrNoMemory) || out[1].Err != nil {
			t.Fatal(out[0].Err, out[1].Err)
		}
	}
	if run(); !slices.Equal(dev.batches, []int{40}) {
		t.Errorf("batches of %v tokens, want one of 40", dev.batches)
	}
}

// blender is a runner of crowded that blends.
type blender struct {
	compute.Blender
	of *crowdedRunner
}

func (r blender) Begin(b *compute.Batch) error { return r.of.Begin(b) }
func (r blender) Trim()                        { r.of.Trim() }

type crowdedBlender struct{ *crowded }

func (c crowdedBlender) Open(s compute.Shape, rows int) (compute.Runner, error) {
	r, err := c.Device.Open(s, rows)
	if err != nil {
		return nil, err
	}
	return blender{r.(compute.Blender), &crowdedRunner{r, c.crowded}}, nil
}

// A part that is not where its job says fails that job alone, also in a batch that found no memory before.
func TestOneBadPartFailsItsOwnJobWithoutMemory(t *testing.T) {
	dev := crowdedBlender{&crowded{Device: oneThread(t), room: 1 << 20}}
	e := newTiny(t, dev, "f32", Options{Multiple: 1})
	r := rand.New(rand.NewPCG(8, 8))
	one, bad, two := newOrdinary(t, e, r), newOrdinary(t, e, r), newOrdinary(t, e, r)
	wrong := bad.parts()
	wrong[1].First = 5
	jobs := []*Job{one.job(&Blend{Parts: one.parts()}), bad.job(&Blend{Parts: wrong}), two.job(nil)}
	out := make([]Outcome, len(jobs))
	dev.kept = dev.room - 10
	e.Run(jobs, out)
	for i := range out {
		if (out[i].Err != nil) != (i == 1) || dev.trims == 0 {
			t.Errorf("job %d, after %d trims: %v", i, dev.trims, out[i].Err)
		}
	}
}

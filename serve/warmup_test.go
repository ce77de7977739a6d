package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"grebe/compute/cpu"
	"grebe/engine"
	"grebe/internal/fixture"
	"grebe/model"
	"grebe/serve/servetest"
)

// A warm-up ranks prompts of all sizes, twice each, and nothing is counted. Without time it leaves everything.
func TestWarmUpRanksAllSizes(t *testing.T) {
	var mu sync.Mutex
	sizes := map[int]int{}
	f := &servetest.Runner{}
	f.Set(func(_ context.Context, j *engine.Job) error {
		mu.Lock()
		defer mu.Unlock()
		sizes[len(j.Plan.Segments[1].Tokens)]++
		return nil
	})
	s := newFake(t, func(c *Config) {
		c.Models = c.Models[:1]
		c.Models[0].Runner, c.Models[0].Positions = f, 1000
	})
	before := countsOf(exposed(t, s))
	w := s.NewWarmUp()
	if err := w.Run(t.Context(), 0); err != nil || w.Asked() > 0 || w.Left() != 11 {
		t.Errorf("without time: %v, %d asked, %d left; want none, and 11", err, w.Asked(), w.Left())
	}
	if err := w.Run(t.Context(), time.Minute); err != nil || w.Left() > 0 {
		t.Fatalf("%v, %d left", err, w.Left())
	}
	for rows := warmStep; rows <= 896; rows += warmStep {
		if sizes[rows-warmSpare] != warmTurns {
			t.Errorf("%d requests of %d rows, want %d: %v", sizes[rows-warmSpare], rows, warmTurns, sizes)
		}
	}
	for _, tokens := range []int{48, 24, 12, 6} {
		if sizes[tokens] != warmTurns {
			t.Errorf("%d requests of %d tokens, want %d: %v", sizes[tokens], tokens, warmTurns, sizes)
		}
	}
	if after := countsOf(exposed(t, s)); after != before {
		t.Errorf("the warm-up is counted: %s\nbefore: %s", after, before)
	}
}

// countsOf returns the lines of metrics that count clients' requests, and entries of users and items.
func countsOf(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		name, _, _ := strings.Cut(strings.Fields(line)[0], "{")
		counted := []string{"grebe_requests_total", "grebe_slo_ok_total", "grebe_kv_entries"}
		other := strings.Contains(line, "preamble") || strings.Contains(line, "prefix") ||
			strings.Contains(line, `op="probe"`)
		if slices.Contains(counted, name) && !other {
			out.WriteString(line)
		}
	}
	return out.String()
}

// Where the device has no memory for a large request, the warm-up goes on with smaller ones.
func TestWarmUpLeavesOutWhatDoesNotFit(t *testing.T) {
	f, small := &servetest.Runner{}, atomic.Int64{}
	f.Set(func(_ context.Context, j *engine.Job) error {
		if len(j.Plan.Segments[1].Tokens) > 500 {
			return fmt.Errorf("engine: %w", engine.ErrNoMemory)
		}
		small.Add(1)
		return nil
	})
	s := newFake(t, func(c *Config) { c.Models = c.Models[:1]; c.Models[0].Runner = f; c.Models[0].Positions = 1000 })
	w := s.NewWarmUp()
	if err := w.Run(t.Context(), time.Minute); err != nil || w.Left() > 0 || small.Load() == 0 {
		t.Errorf("%v, %d left, %d small requests", err, w.Left(), small.Load())
	}
}

// A failure of a model ends its warm-up.
func TestWarmUpEndsWithAFailure(t *testing.T) {
	f := &servetest.Runner{}
	f.Set(func(context.Context, *engine.Job) error { return errors.New("out of memory") })
	s := newFake(t, func(c *Config) { c.Models = c.Models[:1]; c.Models[0].Runner = f; c.Models[0].Positions = 1000 })
	w := s.NewWarmUp()
	if err := w.Run(t.Context(), time.Minute); err == nil || w.Left() > 0 {
		t.Errorf("%v, %d left; want an error, and nothing", err, w.Left())
	}
}

// A warm-up searches with all widths, alone and together, and leaves no users and items in the cache.
func TestWarmUpSearches(t *testing.T) {
	set := fixture.Load(t, "qwen3-tiny")
	dev, err := cpu.New(cpu.Options{Threads: 2})
	must(t, err)
	defer dev.Close()
	m, err := model.Open(set.Dir, dev, model.Options{DType: "f32"})
	must(t, err)
	defer m.Close()
	s := serveGeneration(t, &generations(t, "qwen3-tiny")[0], m, dev)
	w := s.NewWarmUp()
	sizes := min(warmRows, m.MaxPositions()) / warmStep
	want := (sizes+len(warmSmall))*(1+len(warmWidths)) + len(warmTogether) + min(sizes, 1)
	if w.Left() != want {
		t.Fatalf("%d kinds and sizes, want %d", w.Left(), want)
	}
	before := countsOf(exposed(t, s))
	must(t, w.Run(t.Context(), time.Hour))
	if after := countsOf(exposed(t, s)); w.Left() > 0 || after != before {
		t.Errorf("%d left; counts are\n%s\nbefore\n%s", w.Left(), after, before)
	}
}

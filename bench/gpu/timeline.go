package gpu

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"grebe/bench/report"
	"grebe/compute/cuda"
)

// timed is a runner that measures the phases of its searches.
type timed interface {
	Trace(on bool)
	Timeline() []cuda.Phase
}

// A timeline is of one group of searches, as a loaded server runs them.
const timelineSearches = 8

// Phase is a part of a group of searches. Times are medians in ms from the begin.
type Phase struct {
	Name   string  `json:"name"`
	Level  int     `json:"level"`
	Host   float64 `json:"host_ms"`   // the host has put it into the stream
	Device float64 `json:"device_ms"` // the GPU has done it
	Took   float64 `json:"took_ms"`   // of the GPU, since the phase before
}

// measureTimeline shows where the time of a group of searches goes: what the host needs to start each phase, and when
// the GPU has done it. Where the host is not ahead, the GPU waits for it.
func measureTimeline(ctx context.Context, o *Options, d cuda.Device, r *Report) error {
	m, err := newModel(d, qwen3Small, o.Seed)
	if err != nil {
		return fmt.Errorf("weights: %w", err)
	}
	x, err := newRecommendation(d, m, recommendItems, searchCodes, timelineSearches, searchTokens, searchWidth, o.Seed)
	if err != nil {
		return err
	}
	defer x.close()
	t, ok := x.runner.(timed)
	if !ok {
		return errors.New("the device does not time its searches")
	}
	t.Trace(true)
	var runs [][]cuda.Phase
	for i := range warmups + o.Repeats {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := x.run(); err != nil {
			return fmt.Errorf("timeline: %w", err)
		}
		if i >= warmups {
			runs = append(runs, slices.Clone(t.Timeline()))
		}
	}
	r.Timeline = timelineOf(runs)
	return nil
}

// timelineOf takes medians over runs of the same phases.
func timelineOf(runs [][]cuda.Phase) []Phase {
	median := func(at func(p []cuda.Phase) float64) float64 {
		var all []float64
		for _, p := range runs {
			all = append(all, at(p))
		}
		return report.Median(all)
	}
	var out []Phase
	level := 0
	for i := range runs[0] {
		p := Phase{Name: runs[0][i].Name, Level: level,
			Host:   median(func(p []cuda.Phase) float64 { return p[i].Host.Seconds() * 1e3 }),
			Device: median(func(p []cuda.Phase) float64 { return p[i].Device.Seconds() * 1e3 })}
		if i > 0 {
			p.Took = median(func(p []cuda.Phase) float64 { return (p[i].Device - p[i-1].Device).Seconds() * 1e3 })
		}
		if p.Name == "selection" {
			level++
		}
		out = append(out, p)
	}
	return out
}

// timeline writes the phases of a group of searches as a table.
func (r *Report) timeline(p *printer) {
	if len(r.Timeline) == 0 {
		return
	}
	p.printf("%d searches of Qwen3-0.6B, %d tokens and %d beams each; ms from the begin\n", timelineSearches, searchTokens,
		searchWidth)
	p.printf("%-6s %-10s %12s %12s %9s\n", "level", "phase", "host began", "GPU ended", "GPU took")
	for _, t := range r.Timeline {
		p.printf("%-6d %-10s %12.3f %12.3f %9.3f\n", t.Level, t.Name, t.Host, t.Device, t.Took)
	}
}

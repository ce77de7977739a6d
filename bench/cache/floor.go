package cache

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"grebe/evict"
)

// Floor is the default policy beside LRU on one trace at one size: at every moment, not only at the end.
type Floor struct {
	Trace   string  `json:"trace"`
	Share   float64 `json:"share"`
	Entries int     `json:"entries"`
	LRU     int     `json:"lru_hits"`
	Hits    int     `json:"hits"`
	Best    int     `json:"optimum_hits"`
	Closed  float64 `json:"gap_closed"`
	// Worst is the smallest ratio of the hits so far to LRU's so far after floorFrom requests, at request At, leaving out
	// moments at which at most floorHits are missing.
	Worst  float64 `json:"worst"`
	At     int     `json:"at"`
	Behind int     `json:"behind"` // most hits that were missing at any moment
	Want   float64 `json:"want"`   // of the gap; 0: no target
	OK     bool    `json:"ok"`
}

const (
	floorFrom  = 5_000 // requests that nothing is said of
	floorShare = 0.99  // of LRU's hits so far
	floorHits  = 10    // may be missing in any case
	loopGap    = 0.50  // of the gap, on pure loops
)

// keptGaps are shares of the gap that earlier versions closed, less two points.
var keptGaps = map[string]map[float64]float64{
	"scarab-recs":           {.01: .45, .1: .23},
	"mooncake-conversation": {.03: .21},
}

// floor compares the default policy with LRU at every request.
func (r *Report) floor(ctx context.Context, o *Options, traces []*trace, p *printer) error {
	p.printf("\ndefault beside LRU at every request after %d: hits so far at least %g of LRU's, or at most %d missing\n",
		floorFrom, floorShare, floorHits)
	p.printf("%-22s %6s %8s %9s %9s %9s %7s %6s %8s %9s %7s\n", "trace", "cache", "entries", "LRU", "default", "optimum",
		"gap %", "want", "worst", "at", "behind")
	failed := 0
	for _, t := range traces {
		lines, err := floorsOf(ctx, t, o.Sizes)
		if err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		for i := range lines {
			p.floor(&lines[i])
			if !lines[i].OK {
				failed++
			}
		}
		r.Floor = append(r.Floor, lines...)
	}
	r.check(failed == 0, "default within the floor at every request, and the gaps wanted", "%d of %d lines failed", failed,
		len(r.Floor))
	return nil
}

// floorsOf replays a trace at all sizes, as many at a time as there are processors.
func floorsOf(ctx context.Context, t *trace, sizes []float64) ([]Floor, error) {
	lines, errs := make([]Floor, len(sizes)), make([]error, len(sizes))
	slots := newSlots()
	var wg sync.WaitGroup
	for i, share := range sizes {
		slots.take()
		wg.Go(func() {
			defer slots.give()
			if errs[i] = ctx.Err(); errs[i] == nil {
				lines[i], errs[i] = floorOf(t, share)
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return lines, nil
}

func floorOf(t *trace, share float64) (Floor, error) {
	k := t.entries(share)
	lru, err := replay(t, "lru", k, nil)
	if err != nil {
		return Floor{}, err
	}
	own, err := replay(t, "default", k, newLearnt(k))
	if err != nil {
		return Floor{}, err
	}
	f := Floor{Trace: t.name, Share: share, Entries: k, LRU: lru.hits, Hits: own.hits, Best: evict.Optimal(t.keys, k),
		Want: keptGaps[t.name][share]}
	if slices.Contains(pureLoops, t.name) {
		f.Want = loopGap
	}
	f.Closed = closed(f.Hits, f.LRU, f.Best)
	f.Worst, f.At, f.Behind = worstOf(own.hit, lru.hit)
	f.OK = f.Worst >= floorShare && (f.Want == 0 || f.Closed >= f.Want)
	return f, nil
}

// worstOf returns the worst ratio of cumulative hits and where it was, and the most hits that were ever missing.
func worstOf(own, lru []bool) (worst float64, at, behind int) {
	worst = 1
	a, b := 0, 0
	for i := range own {
		if own[i] {
			a++
		}
		if lru[i] {
			b++
		}
		behind = max(behind, b-a)
		if i < floorFrom || b-a <= floorHits {
			continue
		}
		if ratio := float64(a) / float64(b); ratio < worst {
			worst, at = ratio, i
		}
	}
	return worst, at, behind
}

func (p *printer) floor(f *Floor) {
	verdict, want := "FAIL", ""
	if f.OK {
		verdict = "PASS"
	}
	if f.Want > 0 {
		want = fmt.Sprintf("%.0f", 100*f.Want)
	}
	p.printf("%-22s %5g%% %8d %9d %9d %9d %7.1f %6s %8.4f %9d %7d  %s\n",
		f.Trace, 100*f.Share, f.Entries, f.LRU, f.Hits, f.Best, 100*f.Closed, want, f.Worst, f.At, f.Behind, verdict)
}

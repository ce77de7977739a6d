package cache

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"

	"grebe/bench/rivals"
	"grebe/evict"
)

// Error is one policy with perfect predictions of which a share was replaced.
type Error struct {
	Trace    string    `json:"trace"`
	Share    float64   `json:"share"`
	Kind     string    `json:"kind"`
	Policy   string    `json:"policy"`
	Relative []float64 `json:"hits_to_lru"` // by level of errorLevels
}

// errorLevels are shares of predictions that are replaced.
var errorLevels = []float64{0, .05, .1, .25, .5, .75, 1}

// kinds of wrong predictions:
//
//	random   a return at any time within the length of the trace
//	negated  the paper's noise: the negative of the true return, which lies in the past
//	reversed the order of true returns turned around, all in the future: the default takes a return in the past as
//	         unknown, so this is what it can be hurt by
var kinds = []string{"random", "negated", "reversed"}

func spoil(t *trace, kind string, share float64) *known {
	r, out := rand.New(rand.NewPCG(13, 13)), evict.NextUses(t.keys)
	for i, next := range out {
		if r.Float64() >= share {
			continue
		}
		switch kind {
		case "random":
			out[i] = int64(i) + r.Int64N(int64(len(t.keys)))
		case "negated":
			out[i] = -next
		case "reversed":
			out[i] = evict.Never - min(next, evict.Never-int64(i)-1)
		}
	}
	return &known{next: out}
}

// sweepAt is where real traces are swept.
const sweepAt = .1

var sweepPolicies = []string{rivals.Blind, rivals.Filtered, "laru", "default"}

// sweep replaces growing shares of perfect predictions.
func (r *Report) sweep(ctx context.Context, o *Options, traces []*trace, p *printer) error {
	p.printf("\nhits relative to LRU's by share of predictions that are wrong, cache of %g %% of the keys\n", 100*sweepAt)
	p.printf("%-22s %-9s %-9s", "trace", "errors", "policy")
	for _, l := range errorLevels {
		p.printf(" %6g%%", 100*l)
	}
	p.printf("\n")
	bounded := true
	for _, t := range traces {
		if !t.real {
			continue
		}
		k := t.entries(sweepAt)
		lru, err := hitsOf(t, "lru", k)
		if err != nil {
			return err
		}
		bound, right := phaseBound(t.keys, k), make([]int, len(sweepPolicies))
		for i := range right {
			if right[i], err = spoiltHits(ctx, t, i, k, perfect(t)); err != nil {
				return err
			}
		}
		for _, kind := range kinds {
			rows := make([]Error, len(sweepPolicies))
			for i, name := range sweepPolicies {
				rows[i] = Error{Trace: t.name, Share: sweepAt, Kind: kind, Policy: name}
			}
			for _, level := range errorLevels {
				spoilt := spoil(t, kind, level)
				for i, name := range sweepPolicies {
					hits := right[i]
					if level > 0 {
						if hits, err = spoiltHits(ctx, t, i, k, spoilt); err != nil {
							return err
						}
					}
					rows[i].Relative = append(rows[i].Relative, float64(hits)/float64(lru))
					if name == "laru" && len(t.keys)-hits > bound {
						bounded = false
					}
				}
			}
			for _, e := range rows {
				p.printf("%-22s %-9s %-9s", e.Trace, e.Kind, e.Policy)
				for _, x := range e.Relative {
					p.printf(" %7.3f", x)
				}
				p.printf("\n")
			}
			r.Sweep = append(r.Sweep, rows...)
		}
	}
	if len(r.Sweep) == 0 {
		return nil
	}
	r.sweepTargets(bounded)
	p.printf("\n%s", plot(r.Sweep))
	if o.SVG == "" {
		return nil
	}
	return os.WriteFile(o.SVG, []byte(svg(r.Sweep)), 0o644)
}

// spoiltHits is what one of sweepPolicies hits with these predictions.
func spoiltHits(ctx context.Context, t *trace, policy, k int, predictions *known) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	out, err := replay(t, sweepPolicies[policy], k, predictions)
	if err != nil {
		return 0, err
	}
	return out.hits, nil
}

// phaseBound is LARU's Theorem 1: twice the distinct keys of each phase of k distinct keys.
func phaseBound(keys []uint64, k int) int {
	bound, seen := 0, make(map[uint64]bool, k)
	for _, key := range keys {
		if !seen[key] && len(seen) == k {
			bound += 2 * k
			clear(seen)
		}
		seen[key] = true
	}
	return bound + 2*len(seen)
}

func (r *Report) sweepTargets(bounded bool) {
	worst := func(kind, policy string) (float64, string) {
		low, at := 10.0, ""
		for _, e := range r.Sweep {
			if x := e.Relative[len(e.Relative)-1]; e.Kind == kind && e.Policy == policy && x < low {
				low, at = x, e.Trace
			}
		}
		return low, at
	}
	least := func(kind, policy string, bar float64) {
		x, at := worst(kind, policy)
		r.check(x >= bar, fmt.Sprintf("all predictions %s: %s keeps %g %% of LRU's hits", kind, policy, 100*bar),
			"%.1f %% at worst (%s)", 100*x, at)
	}
	least("random", "laru", .98)
	least("random", "default", .98)
	least("negated", "default", .95)
	least("reversed", "default", .95)
	r.check(bounded, "laru within its theorem's bound under all errors",
		"misses at most twice the distinct keys of each phase")
	x, at := worst("negated", rivals.Blind)
	r.check(x < .5, "all predictions negated: blind collapses", "%.1f %% of LRU's hits (%s)", 100*x, at)
}

const plotHeight = 12

// plot draws hits relative to LRU's, one panel per trace and kind.
func plot(all []Error) string {
	var b strings.Builder
	for i := 0; i+len(sweepPolicies) <= len(all); i += len(sweepPolicies) {
		rows := all[i : i+len(sweepPolicies)]
		top := 1.1
		for _, e := range rows {
			for _, x := range e.Relative {
				top = max(top, x)
			}
		}
		fmt.Fprintf(&b, "%s, %s errors: hits / LRU's (b blind, f filtered, l laru, D default, * several)\n", rows[0].Trace,
			rows[0].Kind)
		for y := plotHeight; y >= 0; y-- {
			fmt.Fprintf(&b, "%5.2f |", top*float64(y)/plotHeight)
			for level := range errorLevels {
				cell := byte(' ')
				for j, e := range rows {
					if int(e.Relative[level]/top*plotHeight+.5) != y {
						continue
					}
					if cell != ' ' {
						cell = '*'
					} else {
						cell = "bflD"[j]
					}
				}
				fmt.Fprintf(&b, "   %c   ", cell)
			}
			b.WriteByte('\n')
		}
		b.WriteString("       ")
		for _, l := range errorLevels {
			fmt.Fprintf(&b, " %4g%% ", 100*l)
		}
		b.WriteString("\n\n")
	}
	return b.String()
}

// svg draws the same as a picture.
func svg(all []Error) string {
	const width, height, margin = 300.0, 200.0, 40.0
	colours := []string{"#d62728", "#9467bd", "#1f77b4", "#2ca02c"}
	panels := len(all) / len(sweepPolicies)
	down := (panels + len(kinds) - 1) / len(kinds)
	var b strings.Builder
	fmt.Fprintf(&b,
		`<svg xmlns="http://www.w3.org/2000/svg" width="%g" height="%g" font-family="sans-serif" font-size="10">`+"\n",
		float64(len(kinds))*(width+margin)+margin, float64(down)*(height+margin)+2*margin)
	for i := range panels {
		rows := all[i*len(sweepPolicies) : (i+1)*len(sweepPolicies)]
		x0, y0 := margin+float64(i%len(kinds))*(width+margin), margin+float64(i/len(kinds))*(height+margin)
		top := 1.1
		for _, e := range rows {
			top = max(top, e.Relative[0])
		}
		fmt.Fprintf(&b, `<rect x="%g" y="%g" width="%g" height="%g" fill="none" stroke="#888"/>`+"\n", x0, y0, width, height)
		fmt.Fprintf(&b, `<line x1="%g" x2="%g" y1="%g" y2="%g" stroke="#888" stroke-dasharray="4"/>`+"\n", x0, x0+width,
			y0+height*(1-1/top), y0+height*(1-1/top))
		fmt.Fprintf(&b, `<text x="%g" y="%g">%s, %s errors 0–100 %%; dashed: LRU</text>`+"\n", x0, y0-4, rows[0].Trace,
			rows[0].Kind)
		for j, e := range rows {
			fmt.Fprintf(&b, `<polyline fill="none" stroke="%s" points="`, colours[j])
			for l, x := range e.Relative {
				fmt.Fprintf(&b, "%.1f,%.1f ", x0+width*errorLevels[l], y0+height*(1-x/top))
			}
			b.WriteString("\"/>\n")
		}
	}
	for j, name := range sweepPolicies {
		fmt.Fprintf(&b, `<text x="%g" y="14" fill="%s">%s</text>`+"\n", margin+70*float64(j), colours[j], name)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

package allocator

import (
	"context"

	"grebe/workload/regime"
)

// Margin is what there is to gain by moving at all: the optimum beside the best static share, with no controller
// involved.
type Margin struct {
	Workload string  `json:"workload"`
	GPUs     int     `json:"gpus"`
	KV       string  `json:"kv"`    // how it is evicted
	Times    float64 `json:"times"` // the workload's own rate
	Best     float64 `json:"best"`
	Static   float64 `json:"static"` // P99 there, milliseconds
	InStatic float64 `json:"in_static"`
	Optimum  float64 `json:"optimum"` // P99
	Within   float64 `json:"within"`  // the optimum's share within the SLO
	Least    float64 `json:"least"`   // least and largest share of the optimum
	Most     float64 `json:"most"`
}

// marginSeed is no seed of the verdict: rates were chosen on it.
const marginSeed = 501

// variants are changes of the workloads of a node: by load, then by the node's size and by how KV is evicted, at loads
// that those can bear.
var variants = []struct {
	gpus      int
	predicted bool
	times     []float64
}{
	{8, false, []float64{0.8, 0.9, 1, 1.07}}, {8, true, []float64{0.9, 1, 1.07}},
	{4, false, []float64{0.8, 0.9, 1}}, {2, false, []float64{0.7, 0.8, 0.9}}, {1, false, []float64{0.5, 0.6, 0.7, 0.8}},
}

// margins looks for what there is to gain on a node's workloads.
func margins(ctx context.Context, cost *Cost, opt Options, show func(*Margin)) ([]Margin, error) {
	var out []Margin
	for _, name := range opt.Workloads {
		for _, v := range variants {
			for _, times := range v.times {
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				spec, err := regime.Named(name, marginSeed)
				if err != nil {
					return nil, err
				}
				if spec.GPUs == 0 {
					continue
				}
				spec.Rate *= times * float64(v.gpus) / float64(spec.GPUs)
				spec.GPUs, spec.LRU = v.gpus, !v.predicted
				m, err := margin(cost, spec)
				if err != nil {
					return nil, err
				}
				m.Times = times
				show(m)
				out = append(out, *m)
			}
		}
	}
	return out, nil
}

func margin(cost *Cost, spec regime.Spec) (*Margin, error) {
	shares, specs := grid(0.1), []regime.Spec{spec}
	runs, err := sweep(cost, specs, shares, how{})
	if err != nil {
		return nil, err
	}
	ideal, err := optimum(cost, specs, shares, runs)
	if err != nil {
		return nil, err
	}
	p, err := play(cost, &spec, &oracle{shares: ideal}, how{})
	if err != nil {
		return nil, err
	}
	best := 0
	for i := range runs {
		if runs[i][0].P99() < runs[best][0].P99() {
			best = i
		}
	}
	m := &Margin{
		Workload: spec.Name, GPUs: spec.GPUs, KV: "predicted", Best: shares[best], Static: runs[best][0].P99(),
		InStatic: runs[best][0].within(),
		Optimum:  p.P99(), Within: p.within(), Least: ideal[0], Most: ideal[0],
	}
	if spec.LRU {
		m.KV = "lru"
	}
	for _, a := range ideal {
		m.Least, m.Most = min(m.Least, a), max(m.Most, a)
	}
	return m, nil
}

package cuda

import (
	"fmt"
	"sync"

	"grebe/compute/cuda/attend"
	"grebe/compute/cuda/split"
)

// splits are the models that choose how attention's work is cut, by the kernels that they are for.
type splits struct {
	mu    sync.Mutex
	known map[string]*split.Model
}

// splitLayers is the least number of layers for which attention is measured: what measuring takes, a few
// seconds once per GPU and shape, a model of few layers does not give back.
const splitLayers = 8

// attendConfig is what attentions of the runner have in common. Its first call for a shape may take seconds,
// in which the GPU's attention is measured. The caller is inside the context, and not capturing.
func (r *runner) attendConfig() (attend.Config, error) {
	cfg := attend.Config{Shape: r.shape, Rows: r.bufs.rows, Plain: r.dev.opt.Plain, Overlap: r.dev.overlaps(),
		EveryLane: r.dev.opt.OwnProducts}
	if r.dev.opt.FixedSplit || r.shape.Layers < splitLayers {
		return cfg, nil
	}
	var err error
	cfg.Split, err = r.dev.split(cfg)
	return cfg, err
}

// split returns the model for a configuration's shape; none where it cannot be measured, say for want of memory.
func (d *device) split(cfg attend.Config) (*split.Model, error) {
	s := &cfg.Shape
	key := fmt.Sprint(s.Heads, s.KVHeads, s.HeadDim, s.KV, s.Pointwise != nil)
	d.splits.mu.Lock()
	defer d.splits.mu.Unlock()
	if m, ok := d.splits.known[key]; ok {
		return m, nil
	}
	m, err := attend.Tune(d.c, cfg, false)
	if err != nil && d.c.Lost() != nil {
		return nil, err
	}
	if d.splits.known == nil {
		d.splits.known = map[string]*split.Model{}
	}
	d.splits.known[key] = m
	return m, nil
}

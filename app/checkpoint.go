package app

import (
	"context"
	"slices"

	"grebe/dispatch"
	"grebe/internal/config"
	"grebe/model"
	"grebe/model/hstu"
	"grebe/plan"
)

// checkpoint is loaded weights with their engines, queue and memory. Models that differ only in prompt, scoring,
// codes or prefix share it. Each holds a reference, and the last one to leave closes it.
type checkpoint struct {
	key     config.Sharing
	version plan.Key
	first   bool        // runs on the first GPU only: see Model.replicas
	weights model.Model // of texts, or nil
	events  *hstu.Model // of events, or nil
	memory  *Memory
	queue   *dispatch.Dispatcher
	refs    int // guarded by models.shares
	closers closers
}

// sharesWith returns the first model of a configuration that a model shares a checkpoint with, or the model itself.
func sharesWith(cfg *config.Config, mc *config.Model) *config.Model {
	key := mc.Sharing()
	for i := range cfg.Models {
		if o := &cfg.Models[i]; o.Name == mc.Name || o.Sharing() == key {
			return o
		}
	}
	return mc
}

// memories returns how many models of a configuration have memory of their own.
func memories(cfg *config.Config) int64 {
	n := int64(0)
	for i := range cfg.Models {
		if mc := &cfg.Models[i]; sharesWith(cfg, mc).Name == mc.Name {
			n++
		}
	}
	return max(n, 1)
}

// openCheckpoint takes a reference to a loaded checkpoint, or loads it.
func (m *Model) openCheckpoint(mc *config.Model, generates bool,
	load func() (*checkpoint, error)) (*checkpoint, error) {
	first := generates && len(m.app.devices) > 1
	c := m.app.loaded.share(mc.Sharing(), m.version, first)
	if c == nil {
		var err error
		if c, err = load(); err != nil {
			return nil, err
		}
		c.key, c.version, c.first, c.refs = mc.Sharing(), m.version, first, 1
		c.closers, m.closers = m.closers, nil
		m.app.loaded.offer(c)
	} else {
		m.memory, m.queue = c.memory, c.queue
		m.app.log.Info("weights and memory are shared", "model", mc.Name, "folder", mc.Path)
	}
	m.closers.add(func() error { return m.app.loaded.release(c) })
	return c, nil
}

// loadTexts reads the weights that mc names and opens memory, engines and a queue for them. The Model's closers close
// them.
func (m *Model) loadTexts(ctx context.Context, cfg *config.Config, mc *config.Model,
	generates bool) (*checkpoint, error) {
	weights, err := m.readText(ctx, cfg, mc)
	if err != nil {
		return nil, err
	}
	m.closers.add(weights.Close)
	m.checkpoint = weights.CheckpointBytes()
	replicas, err := m.replicas(ctx, mc, weights, generates)
	if err != nil {
		return nil, err
	}
	m.app.quiet() // so that what is free is known
	end := m.app.phase("memory of KV", "model", mc.Name)
	if err := m.openMemory(cfg, mc, weights.Shape(), cacheMemory(replicas)); err != nil {
		return nil, err
	}
	end()
	d, err := m.openDispatcher(ctx, cfg, replicas)
	if err != nil {
		return nil, err
	}
	return &checkpoint{weights: weights, memory: m.memory, queue: d}, nil
}

// readText takes the weights that were read early, or reads them.
func (m *Model) readText(ctx context.Context, cfg *config.Config, mc *config.Model) (model.Model, error) {
	if e := m.app.earlyOf(cfg, mc); e != nil && e.weights != nil {
		w := e.weights
		e.weights = nil
		return w, nil
	}
	return m.app.openWeights(ctx, mc, m.keep, m.progress)
}

// share takes a reference to a loaded checkpoint and to its memory; nil if there is none.
func (l *models) share(key config.Sharing, version plan.Key, first bool) *checkpoint {
	l.shares.Lock()
	defer l.shares.Unlock()
	for _, c := range l.checkpoints {
		if c.key == key && c.version == version && c.first == first {
			c.refs++
			c.memory.users++
			return c
		}
	}
	return nil
}

// offer lets others share a checkpoint.
func (l *models) offer(c *checkpoint) {
	l.shares.Lock()
	defer l.shares.Unlock()
	l.checkpoints = append(l.checkpoints, c)
}

// release drops a reference to a checkpoint. The last one closes it. Its memory has references of its own.
func (l *models) release(c *checkpoint) error {
	l.shares.Lock()
	c.refs--
	last := c.refs == 0
	if last {
		l.checkpoints = slices.DeleteFunc(l.checkpoints, func(o *checkpoint) bool { return o == c })
	}
	l.shares.Unlock()
	if !last {
		return nil
	}
	return c.closers.close()
}

// hasCheckpoint reports whether a checkpoint is loaded that a model could share.
func (l *models) hasCheckpoint(key config.Sharing, version plan.Key) bool {
	l.shares.Lock()
	defer l.shares.Unlock()
	return slices.ContainsFunc(l.checkpoints, func(c *checkpoint) bool { return c.key == key && c.version == version })
}

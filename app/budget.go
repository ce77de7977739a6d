package app

import (
	"errors"
	"slices"

	"grebe/app/budget"
	"grebe/compute"
	"grebe/internal/config"
	"grebe/kv"
	"grebe/model"
	"grebe/model/hstu"
)

// sharesBudget reports whether a model competes with others for cache.host_memory. It does not if it has host_memory
// of its own, now or when the server started, or if its memory also holds rows of a table.
func sharesBudget(cfg *config.Config, mc *config.Model) bool {
	own := func(o config.Model) bool { return o.Name == mc.Name && !o.HostMemory.IsZero() }
	return mc.HostMemory.IsZero() && !slices.ContainsFunc(cfg.Models, own) && sharedRows(cfg, mc) == 0
}

// budgetBytes returns the host memory that models compete for, and the number of those models at the start.
func budgetBytes(cfg *config.Config) (bytes int64, models int) {
	for i := range cfg.Models {
		if mc := &cfg.Models[i]; sharesBudget(cfg, mc) {
			bytes += hostBytes(cfg, mc)
			models++
		}
	}
	return bytes, models
}

// joinBudget makes a model a tenant of the budget. The first model opens the budget. A model that a reload adds
// competes for the memory that is there.
func (a *App) joinBudget(cfg *config.Config, mc *config.Model, at compute.Memory,
	shape compute.Shape) (*budget.Tenant, error) {
	bytes, models := budgetBytes(cfg)
	if a.loaded.budget == nil {
		page := a.page
		if page == 0 {
			page = commonPage(cfg, mc, &shape)
		}
		b, err := budget.New(at, bytes, page)
		if err != nil {
			return nil, err
		}
		if err := a.registry.Register(b); err != nil {
			return nil, errors.Join(err, b.Close())
		}
		a.loaded.budget = b
		a.loaded.moving.run(b.Run)
	}
	least := int64(shape.ChunkBytes(kv.ChainTokens, false))
	return a.loaded.budget.Join(mc.Name, bytes/int64(max(models, 1)), least), nil
}

// commonPage returns a page size that wastes nothing for the KV of a model. It also fits the other models of the
// budget, as far as their configurations show.
func commonPage(cfg *config.Config, mc *config.Model, shape *compute.Shape) int {
	page := pageFor(shape)
	for i := range cfg.Models {
		o := &cfg.Models[i]
		if o.Name == mc.Name || !sharesBudget(cfg, o) {
			continue
		}
		if s, ok := likelyShape(o); ok {
			page = min(page, pageFor(&s))
		}
	}
	return page
}

// likelyShape returns the shape of a model's KV before it is opened, or false if its configuration cannot be read. If
// the KV format is unknown, it assumes the smallest one without scales, because pages for that suit the others too.
func likelyShape(mc *config.Model) (compute.Shape, bool) {
	s := compute.Shape{KV: compute.BF16}
	if mc.KVDType == "fp8" {
		s.KV = compute.FP8
	}
	if hstu.Is(mc.Path) {
		c, err := hstu.ReadConfig(mc.Path)
		if err != nil {
			return s, false
		}
		s.Layers, s.KVHeads, s.HeadDim = c.Layers, c.Heads, c.ValueDim
		return s, true
	}
	c, err := model.ReadConfig(mc.Path)
	if err != nil {
		return s, false
	}
	s.Layers, s.KVHeads, s.HeadDim = c.Layers, c.KVHeads, c.HeadDim
	return s, true
}

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

// sharesBudget reports whether a model competes with others for cache.host_memory. A model that has, or had when the server
// started, host_memory of its own does not, nor one whose memory rows of a table share.
func sharesBudget(cfg *config.Config, mc *config.Model) bool {
	own := func(o config.Model) bool { return o.Name == mc.Name && !o.HostMemory.IsZero() }
	return mc.HostMemory.IsZero() && !slices.ContainsFunc(cfg.Models, own) && sharedRows(cfg, mc) == 0
}

// budgetBytes returns the host memory that models compete for, and how many they are at the start.
func budgetBytes(cfg *config.Config) (bytes int64, models int) {
	for i := range cfg.Models {
		if mc := &cfg.Models[i]; sharesBudget(cfg, mc) {
			bytes += hostBytes(cfg, mc)
			models++
		}
	}
	return bytes, models
}

// joinBudget makes a model a tenant of the budget, which the first one opens. A model that is added by a reload competes
// with the others for the memory that there is.
func (a *App) joinBudget(cfg *config.Config, mc *config.Model, at compute.Memory, shape compute.Shape) (*budget.Tenant, error) {
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

// commonPage returns a size of pages that wastes nothing for the KV of a model, nor for that of the other models that share
// the budget as far as their configurations tell it.
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

// likelyShape returns the shape of a model's KV before it is opened; false where its configuration cannot be read. If the
// format of KV is not known, it is the smallest without scales: pages for that suit the others.
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

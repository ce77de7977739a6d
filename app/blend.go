package app

import (
	"errors"
	"io/fs"
	"log/slog"

	"grebe/blend"
	"grebe/compute"
	"grebe/internal/config"
	"grebe/kv/proto"
	"grebe/model"
	"grebe/reuse"
)

// openImportance reads a model's learned importance. It returns nil if there is none, or if it belongs to other
// weights. Attention decides then.
func openImportance(cache *reuse.Cache, file, name string, log *slog.Logger) *blend.Importance {
	m, err := cache.ReadImportance(file)
	switch {
	case err == nil:
		log.Info("importance of items' tokens loaded", "model", name)
	case errors.Is(err, reuse.ErrOtherModel):
		log.Warn("importance is not used: it was learned with other weights; run grebe index --importance", "model", name,
			"error", err)
	case !errors.Is(err, fs.ErrNotExist):
		log.Error("importance is not used; run grebe index --importance", "model", name, "error", err)
	}
	return m
}

// openBlend returns how a model's prompts are blended, with its prototypes. It returns nil if the model or its KV does
// not support blending.
func (m *Model) openBlend(cfg *config.Config, mc *config.Model, weights model.Model,
	cache *reuse.Cache) (*reuse.Blend, error) {
	if _, ok := weights.(model.Blender); !ok || weights.Shape().KV == compute.FP8 || weights.Shape().Layers < 2 {
		return nil, nil
	}
	b := &reuse.Blend{
		Budget: blend.Budget{Items: mc.Blend.Items, History: mc.Blend.History, Window: mc.Blend.Window},
		Drift:  blend.DriftWeight, Limit: float32(mc.Blend.DriftLimit), Layers: mc.Blend.Layers, Auto: mc.Blend.Auto,
		ItemsFirst: mc.Blend.First == "item",
	}
	b.Unused = reuse.PrototypesFile(cfg.DataDir, mc.Name)
	if cache != nil && mc.Blend.Importance {
		b.Importance = openImportance(cache, reuse.ImportanceFile(cfg.DataDir, mc.Name), mc.Name, m.app.log)
	}
	if cache == nil || !mc.Blend.Prototypes {
		return b, nil
	}
	p, err := cache.OpenPrototypes(b.Unused)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return b, nil
	case errors.Is(err, reuse.ErrOtherModel):
		m.app.log.Warn("prototypes are not used: they were made with other weights; run grebe index --prototypes",
			"model", mc.Name, "error", err)
		return b, nil
	case errors.Is(err, proto.ErrDamaged): // or of another version: prompts are computed without prototypes
		m.app.log.Error("prototypes are not used; run grebe index --prototypes", "model", mc.Name, "error", err)
		return b, nil
	case err != nil:
		return nil, errors.Join(err, cache.Leave())
	}
	m.closers.add(p.Close)
	b.Prototypes, b.Unused = p, ""
	m.app.log.Info("prototypes loaded", "model", mc.Name, "prototypes", p.Len())
	return b, nil
}

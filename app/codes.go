package app

import (
	"fmt"

	"grebe/catalog"
	"grebe/generate"
	"grebe/internal/config"
	"grebe/model"
	"grebe/model/hstu"
	"grebe/prompt"
)

// codesOf returns the models of a configuration that generate items, with their codes. It reads no weights.
func codesOf(cfg *config.Config) ([]generate.Codes, error) {
	var out []generate.Codes
	for i := range cfg.Models {
		mc := &cfg.Models[i]
		if hstu.Is(mc.Path) || !mc.HasCodes() {
			continue
		}
		b, err := BuilderOf(mc)
		if err != nil {
			return nil, fmt.Errorf("model %s: %w", mc.Name, err)
		}
		out = append(out, generate.Codes{Name: mc.Name, Prompt: b})
	}
	return out, nil
}

// CodeSizes returns how many codes each level of a model has, from code 0 on; nil if it has none. It reads no weights.
func CodeSizes(mc *config.Model) ([]int, error) {
	if hstu.Is(mc.Path) || !mc.HasCodes() {
		return nil, nil
	}
	b, err := BuilderOf(mc)
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", mc.Name, err)
	}
	sizes := make([]int, b.Depth())
	for l := range sizes {
		sizes[l] = b.LevelSize(l)
	}
	return sizes, nil
}

// BuilderOf makes a model's prompt builder.
func BuilderOf(mc *config.Model) (*prompt.Builder, error) {
	described, err := model.ReadConfig(mc.Path)
	if err != nil {
		return nil, err
	}
	tok, err := OpenTokenizer(mc.Path)
	if err != nil {
		return nil, err
	}
	return newBuilder(mc, tok, described.Vocab)
}

// UsableCodes returns the models of a configuration that generate items, and counts for each how many of the catalog's
// items it can generate.
func UsableCodes(cfg *config.Config, c *catalog.Catalog) ([]generate.Codes, error) {
	models, err := codesOf(cfg)
	if err != nil || len(models) == 0 {
		return nil, err
	}
	for e := range c.Scan() {
		for i := range models {
			if _, err := models[i].Prompt.CodeTokens(e.Item.Codes); err == nil {
				models[i].Items++
			}
		}
	}
	return models, nil
}

package main

import (
	"fmt"
	"path/filepath"

	"grebe/internal/config"
	"grebe/model"
	"grebe/model/hstu"
	"grebe/prompt"
	"grebe/server/generate"
)

// versionsDir is where the versions of a data_dir's catalog are.
func versionsDir(dataDir string) string { return filepath.Join(dataDir, "versions") }

// codesOf returns the models of a configuration that generate items, with the codes that they have. It reads no weights.
func codesOf(cfg *config.Config) ([]generate.Codes, error) {
	var out []generate.Codes
	for i := range cfg.Models {
		mc := &cfg.Models[i]
		if hstu.Is(mc.Path) || len(mc.Codes.FirstToken)+len(mc.Codes.Pattern) == 0 {
			continue
		}
		b, err := builderOf(mc)
		if err != nil {
			return nil, fmt.Errorf("model %s: %w", mc.Name, err)
		}
		out = append(out, generate.Codes{Name: mc.Name, Prompt: b})
	}
	return out, nil
}

// builderOf makes a model's prompt builder.
func builderOf(mc *config.Model) (*prompt.Builder, error) {
	described, err := model.ReadConfig(mc.Path)
	if err != nil {
		return nil, err
	}
	tok, err := openTokenizer(mc.Path)
	if err != nil {
		return nil, err
	}
	return prompt.New(promptConfig(mc), tok, described.Vocab)
}

// countUsable sets how many of the items each model can generate.
func countUsable(models []generate.Codes, items []*prompt.Item) {
	for i := range models {
		for _, it := range items {
			if _, err := models[i].Prompt.CodeTokens(it.Codes); err == nil {
				models[i].Items++
			}
		}
	}
}

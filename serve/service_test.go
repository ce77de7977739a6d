package serve

import (
	"testing"

	"grebe/serve/servetest"
)

func TestNewRefuses(t *testing.T) {
	good := fakes(t)
	for name, change := range map[string]func(*Config){
		"no models":       func(c *Config) { c.Models = nil },
		"no name":         func(c *Config) { c.Models[0].Name = "" },
		"same name":       func(c *Config) { c.Models[0].Name = "pw" },
		"no runner":       func(c *Config) { c.Models[0].Runner = nil },
		"no prompt":       func(c *Config) { c.Models[0].Prompt = nil },
		"no vocabulary":   func(c *Config) { c.Models[0].Vocab = 0 },
		"yes outside":     func(c *Config) { c.Models[1].Scoring.Yes = servetest.Vocab },
		"yes is no":       func(c *Config) { c.Models[1].Scoring.Yes = servetest.No },
		"unknown scoring": func(c *Config) { c.Models[1].Scoring.Kind = 9 },
		"negative SLO":    func(c *Config) { c.SLO = -1 },
	} {
		cfg := good
		cfg.Models = append([]Model(nil), good.Models...)
		change(&cfg)
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

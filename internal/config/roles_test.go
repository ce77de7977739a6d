package config

import (
	"strings"
	"testing"
)

func TestRoles(t *testing.T) {
	for _, c := range []struct {
		roles           string
		computes, holds bool
		problem         string
	}{
		{"node", true, true, ""},
		{"node,router", true, true, ""},
		{"kv", false, true, ""},
		{"kv,router", false, true, ""},
		{"router", false, false, ""},
		{"node,kv", true, true, "remove kv"},
		{"", false, false, "is empty"},
		{"driver", false, false, "driver"},
	} {
		cfg := Default()
		cfg.Models = []Model{{Name: "m", Path: "."}}
		cfg.Cluster.Name, cfg.Cluster.Coordinator = "c", "embedded"
		cfg.Cluster.Roles = strings.FieldsFunc(c.roles, func(r rune) bool { return r == ',' })
		if cfg.Computes() != c.computes || cfg.Holds() != c.holds {
			t.Errorf("roles %q: computes %v, holds %v", c.roles, cfg.Computes(), cfg.Holds())
		}
		text := ""
		if err := cfg.Validate(); err != nil {
			text = err.Error()
		}
		if strings.Contains(text, "roles") != (c.problem != "") || !strings.Contains(text, c.problem) {
			t.Errorf("roles %q: %q, want %q", c.roles, text, c.problem)
		}
	}
	cfg := Default()
	if cfg.Computes() != true || cfg.Holds() != true {
		t.Error("a process without a cluster computes")
	}
}

func TestFetch(t *testing.T) {
	for _, c := range []struct{ fetch, role, problem string }{
		{"on", "node", ""}, {"off", "node", ""}, {"off", "router", ""}, {"on", "kv", ""},
		{"off", "kv", "nothing but the KV that it fetches"}, {"never", "node", "never"},
	} {
		cfg := Default()
		cfg.Models = []Model{{Name: "m", Path: "."}}
		cfg.Cluster.Name, cfg.Cluster.Coordinator = "c", "embedded"
		cfg.Cluster.Fetch, cfg.Cluster.Roles = c.fetch, []string{c.role}
		text := ""
		if err := cfg.Validate(); err != nil {
			text = err.Error()
		}
		if strings.Contains(text, "cluster.fetch") != (c.problem != "") || !strings.Contains(text, c.problem) {
			t.Errorf("fetch %q of a %s: %q, want %q", c.fetch, c.role, text, c.problem)
		}
	}
}

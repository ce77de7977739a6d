package sim

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestProfilesOfTheBinary(t *testing.T) {
	if len(Profiles()) == 0 {
		t.Fatal("there are no profiles")
	}
	for _, name := range Profiles() {
		p, err := LoadProfile(name)
		if err != nil {
			t.Error(err)
		} else if p.Name != name {
			t.Errorf("profiles/%s.json has the name %q", name, p.Name)
		}
	}
}

func TestBadProfiles(t *testing.T) {
	good, err := profileFiles.ReadFile("profiles/h200-qwen2-1.5b.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []struct {
		key   string // of the profile, or of its prefill model
		value any
	}{
		{"kv_token_bytes", 0}, {"noise", -1}, {"front", map[string]any{"request_ms": -1}},
		{"derivated", true}, {"batches", map[string]any{"row_ms": -1, "tile_key_ms": 2}},
		{"added_ms", -1}, {"ratios", []float64{1, 0}}, {"front", map[string]any{"idle_ratios": []float64{-1}}},
		{"front", map[string]any{"busy_ratios": []float64{1e6}}},
		{"batches", map[string]any{"row_ms": 1, "sizes": []int{2, 1}}},
		{"batches", map[string]any{"fixed_ms": 1}}, {"host_link", 0}, {"row_ms", -1}, {"quality", map[string]any{}},
	} {
		var all map[string]any
		if err := json.Unmarshal(good, &all); err != nil {
			t.Fatal(err)
		}
		if prefill := all["prefill"].(map[string]any); prefill[bad.key] != nil {
			prefill[bad.key] = bad.value
		} else {
			all[bad.key] = bad.value
		}
		changed, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ReadProfile(changed); err == nil {
			t.Errorf("a profile with %s of %v is accepted", bad.key, bad.value)
		}
	}
	if _, err := LoadProfile("none"); err == nil || !strings.Contains(err.Error(), "h200-qwen2-1.5b") {
		t.Errorf("an unknown profile: %v: want an error that lists the known ones", err)
	}
}

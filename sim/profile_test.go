package sim

import (
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
	for from, to := range map[string]string{
		`"kv_token_bytes": 28672`:  `"kv_token_bytes": 0`,
		`"noise": 0.02`:            `"noise": -1`,
		`"derived"`:                `"derivated"`,
		`"rows": 8192,`:            `"rows": -81920000,`,
		`"host_link": 49000000000`: `"host_link": 0`,
		`"row_ms": 0.003642`:       `"row_ms": -1`,
	} {
		if _, err := ReadProfile([]byte(strings.Replace(string(good), from, to, 1))); err == nil {
			t.Errorf("a profile with %s is accepted", to)
		}
	}
	if _, err := LoadProfile("none"); err == nil || !strings.Contains(err.Error(), "h200-qwen2-1.5b") {
		t.Errorf("an unknown profile: %v: want an error that lists the known ones", err)
	}
}

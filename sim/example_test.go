package sim

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"go.yaml.in/yaml/v3"
)

// The example has every key, can be run, and says of defaults what they are.
func TestExample(t *testing.T) {
	file := filepath.Join(t.TempDir(), "example.yaml")
	if err := os.WriteFile(file, []byte(Example), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := ReadScenario(file, func(s *Scenario) { s.Requests, s.Warmup = 1000, Duration{} })
	if err != nil {
		t.Fatal(err)
	}
	if r, _ := play(t, s, Options{}); r.Answered < 990 {
		t.Errorf("%d of 1000 requests were answered", r.Answered)
	}
	var all map[string]any
	if err := yaml.Unmarshal([]byte(Example), &all); err != nil {
		t.Fatal(err)
	}
	wantKeys(t, "", reflect.TypeFor[Scenario](), all)
}

// wantKeys complains about keys of a struct that a file does not have.
func wantKeys(t *testing.T, path string, of reflect.Type, has any) {
	if of.Kind() != reflect.Struct || of.NumField() == 0 || of.Field(0).Tag.Get("yaml") == "" {
		return
	}
	m, ok := has.(map[string]any)
	if !ok {
		t.Errorf("%s has no keys", path)
		return
	}
	for i := range of.NumField() {
		f := of.Field(i)
		if !f.IsExported() {
			continue
		}
		key := f.Tag.Get("yaml")
		if v, ok := m[key]; !ok {
			t.Errorf("the example has no %s%s", path, key)
		} else {
			wantKeys(t, path+key+".", f.Type, v)
		}
	}
}

package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadKeys(t *testing.T) {
	digest := strings.Repeat("ab", 32)
	good := "- {name: shop, sha256: " + digest + ", roles: [serve], rate: 2.5, burst: 5}\n"
	for text, want := range map[string]string{
		good:                                    "",
		"":                                      "no keys",
		"[]":                                    "no keys",
		strings.Replace(good, "rate", "rat", 1): "rat",
		"shop: 1":                               "cannot unmarshal",
		strings.Repeat("#", maxFile+1):          "larger",
	} {
		file := filepath.Join(t.TempDir(), "keys.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		keys, err := ReadKeys(file)
		switch {
		case want == "" && (err != nil || keys[0].Rate != 2.5 || keys[0].Burst != 5):
			t.Errorf("%.60q: got %+v, %v", text, keys, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%.60q: got %v, want an error with %q", text, err, want)
		}
	}
}

func FuzzReadKeys(f *testing.F) {
	f.Add([]byte("- {name: shop, sha256: ab, roles: [serve], rate: 2.5, burst: 5}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if keys, err := decodeKeys(data); err == nil && len(keys) == 0 {
			t.Errorf("%q has no keys and is taken: everyone would be let in", data)
		}
	})
}

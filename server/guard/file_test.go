package guard

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadFile(t *testing.T) {
	_, digest := NewKey()
	good := "- {name: shop, sha256: " + digest + ", roles: [serve], rate: 2.5, burst: 5}\n"
	for text, want := range map[string]string{
		good:                                    "",
		good + good:                             "", // New tells twins apart
		"":                                      "no keys",
		"[]":                                    "no keys",
		"- {name: shop, roles: [serve]}":        "hexadecimal",
		strings.Replace(good, "rate", "rat", 1): "rat",
		"shop: 1":                               "cannot unmarshal",
		strings.Repeat("#", maxFile+1):          "larger",
	} {
		file := filepath.Join(t.TempDir(), "keys.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		keys, err := ReadFile(file)
		switch {
		case want == "" && (err != nil || keys[0].Rate != 2.5 || keys[0].Burst != 5):
			t.Errorf("%.60q: got %+v, %v", text, keys, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%.60q: got %v, want an error with %q", text, err, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	_, digest := NewKey()
	f.Add([]byte("- {name: shop, sha256: " + digest + ", roles: [serve], rate: 2.5, burst: 5}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		keys, err := decode(data)
		if err != nil {
			return
		}
		for i := range keys {
			if _, err := New(keys[i : i+1]); err != nil {
				t.Errorf("decode took key %d of %q, New does not: %v", i, data, err)
			}
		}
	})
}

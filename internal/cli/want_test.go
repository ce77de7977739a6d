package cli

import (
	"os"
	"path/filepath"
	"testing"
)

// Trying a file leaves no trace: neither a new one, nor less in one that is there.
func TestTriedFiles(t *testing.T) {
	dir := t.TempDir()
	there := filepath.Join(dir, "there")
	if err := os.WriteFile(there, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{there: true, filepath.Join(dir, "new"): true, dir: false,
		filepath.Join(there, "below"): false, os.DevNull: true} {
		if got := writable(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("left behind: %v, %v", files, err)
	}
	if data, err := os.ReadFile(there); err != nil || string(data) != "kept" {
		t.Errorf("%q, %v", data, err)
	}
}

package ingest

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

// The largest key can be written.
func TestLastKey(t *testing.T) {
	two := filepath.Join(t.TempDir(), "two.f32")
	if err := os.WriteFile(two, make([]byte, 16), 0o600); err != nil {
		t.Fatal(err)
	}
	rows, err := openRows(two, 2, math.MaxUint64-1)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.close()
	if keys, _, err := rows.next(); err != nil || len(keys) != 2 || keys[1] != math.MaxUint64 {
		t.Errorf("keys %v, %v", keys, err)
	}
}

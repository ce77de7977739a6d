package coordtest

import (
	"os"
	"testing"
)

// Dir returns a folder that ends with the test, in memory where the machine has such a place: on a busy disk a sync
// takes seconds, and short leases expire.
func Dir(t testing.TB) string {
	t.Helper()
	const memory = "/dev/shm"
	if _, err := os.Stat(memory); err != nil {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp(memory, "grebe-coordtest-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

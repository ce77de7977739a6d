package index

import (
	"strings"
	"testing"

	"grebe/kv/disk"
)

// Computed KV that could not be stored is reported. Otherwise nobody would notice before the server is slow.
func TestFailedWritesAreTold(t *testing.T) {
	if err := unwritten(&disk.Stats{WriteErrors: 2}, &disk.Stats{WriteErrors: 5}); err == nil ||
		!strings.Contains(err.Error(), "3 writes of KV to disk failed") {
		t.Errorf("three writes failed: %v", err)
	}
	if err := unwritten(&disk.Stats{WriteErrors: 2}, &disk.Stats{WriteErrors: 2}); err != nil {
		t.Errorf("no write failed: %v", err)
	}
}

package index

import (
	"strings"
	"testing"

	"grebe/kv/disk"
)

// What was computed and is not kept is told: nobody would look for it before a server is slow.
func TestFailedWritesAreTold(t *testing.T) {
	if err := unwritten(&disk.Stats{WriteErrors: 2}, &disk.Stats{WriteErrors: 5}); err == nil || !strings.Contains(err.Error(), "3 writes to disk failed") {
		t.Errorf("three writes failed: %v", err)
	}
	if err := unwritten(&disk.Stats{WriteErrors: 2}, &disk.Stats{WriteErrors: 2}); err != nil {
		t.Errorf("no write failed: %v", err)
	}
}

package evict_test

import (
	"runtime"
	"testing"

	"grebe/evict"
	"grebe/evict/evicttest"
	"grebe/internal/scripttest"
)

func TestPolicies(t *testing.T) {
	for _, name := range evict.Names() {
		t.Run(name, func(t *testing.T) { evicttest.Policy(t, name) })
	}
}

// The hits of every policy on drawn traces are those in testdata/replays.txt.
func TestReplays(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("sums of floats are rounded in other ways on ", runtime.GOARCH)
	}
	scripttest.Golden(t, "testdata/replays.txt", evicttest.Replays(t, evict.Names()))
}

// Names are taken once.
func TestRegisterRefusesAKnownName(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("lru was registered again")
		}
	}()
	evict.Register("lru", nil)
}

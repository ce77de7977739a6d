package main

import (
	"os"
	"strings"
	"testing"

	"grebe/internal/cli"
)

// What was computed and is not kept is told: nobody would look for it before a server is slow.
func TestIndexTellsWhatIsNotKept(t *testing.T) {
	config := crashSite(t, 600)
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, []byte(strings.Replace(string(text), "disk: 1GiB", "disk: 1MiB", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, errs, code := grebe(t, "index", "-c", config)
	if code != cli.Done || !strings.Contains(out, "had to make room for others: give cache.disk more") {
		t.Errorf("a disk for a part of the items: exit code %d: %s%s", code, out, errs)
	}
}

func TestPrototypesOfNoUsers(t *testing.T) {
	out, errs, code := grebe(t, "index", "-c", crashSite(t, 1), "--prototypes", "--prototype-users=-1")
	if code != cli.Misuse || !strings.Contains(errs, "--prototype-users: -1: want at least 1") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
}

package main

import (
	"fmt"
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
	if err := os.WriteFile(config, []byte(strings.Replace(string(text), "disk: 1GiB", "disk: 1MiB", 1)),
		0o600); err != nil {
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

// Without a disk a running server computes the items, found by its configuration or by its address. Without a server
// the command says what to do.
func TestIndexThroughAServer(t *testing.T) {
	config := crashSite(t, 50)
	set := func(from, to string) {
		t.Helper()
		text, err := os.ReadFile(config)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(config, []byte(strings.Replace(string(text), from, to, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set(", disk: 1GiB", "")
	set("data_dir:", "listen: 127.0.0.1:1\ndata_dir:")
	out, errs, code := grebe(t, "index", "-c", config)
	for _, want := range []string{"no server answers at http://127.0.0.1:1", "cache.disk", "--server"} {
		if code != cli.Failed || !strings.Contains(errs, want) {
			t.Errorf("without a disk and a server: exit code %d, %q and %q; want %q", code, out, errs, want)
		}
	}
	s := startServer(t, config)
	defer s.kill()
	set("127.0.0.1:1\n", strings.TrimPrefix(s.url, "http://")+"\n")
	for _, args := range [][]string{{"-c", config}, {"--server", s.url}, {"--server", s.url, "--model", "demo"}} {
		out, errs, code := grebe(t, append([]string{"index"}, args...)...)
		var computed, items, there int
		if _, err := fmt.Sscanf(out, "demo: %d of %d items computed, %d already there", &computed, &items,
			&there); err != nil {
			t.Errorf("%v: %v: %q, %q", args, err, out, errs)
		}
		if code != cli.Done || items != 50 || computed+there != 50 {
			t.Errorf("%v: exit code %d: %s%s; want 50 items", args, code, out, errs)
		}
	}
	if out, errs, code := grebe(t, "index", "--server", s.url, "--model", "none"); code != cli.Failed ||
		!strings.Contains(errs, "no model") {
		t.Errorf("a model that is not there: exit code %d: %s%s", code, out, errs)
	}
	for _, args := range []string{"index", "index --server x", "index --server http://x -c y",
		"index --server http://x --prototypes"} {
		if out, errs, code := grebe(t, strings.Fields(args)...); code != cli.Misuse {
			t.Errorf("%s: exit code %d: %s%s", args, code, out, errs)
		}
	}
}

// While a server has the disk, the command says how to go on.
func TestIndexBesideAServer(t *testing.T) {
	config := crashSite(t, 5)
	s := startServer(t, config)
	defer s.kill()
	const want = "in use by another process: stop the server first, or have it compute items with --server http://"
	out, errs, code := grebe(t, "index", "-c", config)
	if code != cli.Failed || !strings.Contains(errs, want) {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
	out, errs, code = grebe(t, "index", "-c", config, "--importance")
	if code != cli.Failed || !strings.HasSuffix(strings.TrimSpace(errs),
		"in use by another process: stop the server first") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
	_, errs, code = grebe(t, "serve", "-c", config, "--listen", "127.0.0.1:0")
	if code != cli.Failed || !strings.Contains(errs, "in use by another process: stop that process, or give this server "+
		"another folder with --data-dir DIR") || strings.Contains(errs, "loaded") || strings.Contains(errs, "doctor") {
		t.Errorf("a second server: exit code %d: %s", code, errs)
	}
}

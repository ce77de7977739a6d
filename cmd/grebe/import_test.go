package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"grebe/catalog"
	"grebe/engine"
	"grebe/internal/datadir"
	"grebe/prompt"
	"grebe/serve"
	"grebe/server"
)

func writeLines(t *testing.T, name string, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// imported runs grebe import and checks its exit code, and that its output matches.
func imported(t *testing.T, code int, want string, args ...string) string {
	t.Helper()
	stdout, stderr, got := grebe(t, append([]string{"import"}, args...)...)
	if out := stderr + stdout; got != code || !regexp.MustCompile(want).MatchString(out) {
		t.Errorf("import %s: exit code %d, want %d and %s:\n%s", strings.Join(args, " "), got, code, want, out)
	}
	return stderr + stdout
}

func stats(t *testing.T, dir string) catalog.Stats {
	t.Helper()
	c, err := catalog.Open(datadir.Catalog(dir), catalog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.Stats()
}

func TestImport(t *testing.T) {
	dir := t.TempDir()
	items := writeLines(t, "items.ndjson", `{"id":"i1","text":"a"}`, ``, `{"id":"i2","text":"b"}`, `{"id":"i3"}`)
	users := writeLines(t, "people.jsonl", `{"id":"u1","history":["i1"]}`, `{"id":"u2"}`, ``)
	imported(t, 0, `items \(by its name\) into [\s\S]*people.jsonl: users \(by its first line\)|3 lines: 3 created`, items,
		users, "--data-dir", dir)
	if s := stats(t, dir); s.Items != 3 || s.Users != 2 {
		t.Errorf("%+v", s)
	}
	imported(t, 0, `3 lines: 0 created, 0 replaced, 0 deleted, 3 unchanged`, items, "--data-dir", dir)
	change := writeLines(t, "x.ndjson", `{"delete":"i2"}`, `{"id":"i1","text":"other"}`, `{"delete":"none"}`)
	imported(t, 0, `3 lines: 0 created, 1 replaced, 1 deleted, 1 unchanged`, change, "--kind", "items", "--data-dir", dir)
	imported(t, 2, `items, users or events\?`, change, "--data-dir", dir)
	imported(t, 1, `no such file`, filepath.Join(dir, "none.ndjson"), "--kind", "items", "--data-dir", dir)
	imported(t, 2, `"nonsense" is not an address such as`, items, "--server", "nonsense")
	imported(t, 1, "import: .*is a server running there", items, "--server", "http://127.0.0.1:1")
}

func TestImportBadLines(t *testing.T) {
	lines := []string{`{"id":"a"}`, `{"idd":"b"}`, `{"id":"c"}`, `{`, `{"id":"` + strings.Repeat("x", 600) + `"}`,
		`{"id":"d"}`}
	path := writeLines(t, "items.ndjson", lines...)
	dir := t.TempDir()
	imported(t, 1, `items.ndjson:2: idd: unknown field`, path, "--data-dir", dir)
	if s := stats(t, dir); s.Items != 1 {
		t.Errorf("%d items before the bad line, want 1", s.Items)
	}
	out := imported(t, 0,
		`Continuing at line 2[\s\S]* 6 lines: 3 created, 0 replaced, 0 deleted, 0 unchanged, 3 bad`, path,
		"--on-error", "skip", "--data-dir", dir)
	for _, want := range []string{":2: idd: unknown field", ":4: not JSON", ":5: id: 600 bytes"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not told:\n%s", want, out)
		}
	}
	imported(t, 0, `6 lines: 0 created, 0 replaced, 0 deleted, 3 unchanged, 3 bad`, path, "--on-error", "skip",
		"--data-dir", dir)
	many := strings.Repeat("{\n", 1000)
	if out := imported(t, 0, `1000 bad`, writeLines(t, "items.ndjson", many), "--on-error", "skip",
		"--data-dir", dir); strings.Count(out, "\n") > 30 {
		t.Errorf("1000 bad lines take %d lines of output", strings.Count(out, "\n"))
	}
}

func TestImportWhileAServerRuns(t *testing.T) {
	dir := t.TempDir()
	c, err := catalog.Open(datadir.Catalog(dir), catalog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	imported(t, 1, `in use by another process: .*--server`, writeLines(t, "items.ndjson", `{"id":"a"}`), "--data-dir", dir)
}

type idleRunner struct{}

func (idleRunner) Do(context.Context, *engine.Job) (*engine.Result, error) {
	return nil, errors.New("nothing runs here")
}

func TestImportThroughAServer(t *testing.T) {
	b, err := prompt.New(prompt.Config{}, nil, 10)
	if err != nil {
		t.Fatal(err)
	}
	cat := catalog.New(catalog.Options{MaxItems: 250})
	service, err := serve.New(serve.Config{Models: []serve.Model{{Name: "m", Runner: idleRunner{}, Prompt: b, Vocab: 10}},
		Catalog: cat})
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.New(service, server.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s.SetReady(true)
	ts := httptest.NewServer(s.Handler())
	defer ts.Close()
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	var lines []string
	for i := range 250 {
		lines = append(lines, fmt.Sprintf(`{"id":"i%d","text":"item %d"}`, i, i))
	}
	imported(t, 0, `250 lines: 250 created`, writeLines(t, "items.ndjson", lines...), "--server", ts.URL)
	full := writeLines(t, "items.ndjson", `{"delete":"i7"}`, `{"id":"x"}`, `bad`, `{"id":"y"}`, `{"id":"i1"}`)
	out := imported(t, 0, `5 lines: 1 created, 1 replaced, 1 deleted, 0 unchanged, 2 bad`, full, "--server", ts.URL,
		"--on-error", "skip")
	if !strings.Contains(out, "items.ndjson:4: the catalog is full") ||
		!strings.Contains(out, "items.ndjson:3: not JSON") {
		t.Errorf("the errors name other lines:\n%s", out)
	}
	imported(t, 1, `items.ndjson:3: not JSON`, full, "--server", ts.URL)
}

// TestImportIsResumed interrupts an import, goes on, kills that one, and goes on again.
func TestImportIsResumed(t *testing.T) {
	const n = 200_000
	path := filepath.Join(t.TempDir(), "items.ndjson")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := bufio.NewWriter(f)
	for i := range n {
		fmt.Fprintf(w, "{\"id\":\"i%d\",\"text\":\"the text of item %d, which is not very long\"}\n", i, i)
	}
	if err := errors.Join(w.Flush(), f.Close()); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	out, code := interruptImport(t, path, dir, syscall.SIGINT)
	if code != 1 || !strings.Contains(out, "Run the same command again") {
		t.Fatalf("exit code %d after an interrupt:\n%s", code, out)
	}
	first := stats(t, dir).Items
	out, _ = interruptImport(t, path, dir, syscall.SIGKILL)
	if !strings.Contains(out, "Continuing at line ") {
		t.Fatalf("the second import does not go on:\n%s", out)
	}
	second := stats(t, dir).Items
	if first == 0 || second <= first || second >= n {
		t.Fatalf("%d items after the interrupt, %d after the kill, of %d: these were not in the middle", first, second, n)
	}
	imported(t, 0, `Continuing at line \d+`, path, "--data-dir", dir)
	if s := stats(t, dir); s.Items != n {
		t.Errorf("%d items, want %d", s.Items, n)
	}
	left, err := filepath.Glob(filepath.Join(dir, "imports", "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("files left behind: %v, %v", left, err)
	}
	imported(t, 0, fmt.Sprintf(`%d lines: 0 created, 0 replaced, 0 deleted, %d unchanged`, n, n), path, "--data-dir", dir,
		"--restart")
}

// interruptImport sends a signal to an import once it has saved how far it is.
func interruptImport(t *testing.T, path, dir string, sig syscall.Signal) (string, int) {
	t.Helper()
	saved := func() string {
		names, err := filepath.Glob(filepath.Join(dir, "imports", "*.json"))
		if err != nil || len(names) == 0 {
			return ""
		}
		data, err := os.ReadFile(names[0])
		if err != nil {
			return ""
		}
		return string(data)
	}
	before := saved()
	cmd := exec.Command(binary, "import", path, "--data-dir", dir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		cmd.Wait() // its code is looked at below
	}()
	for saved() == before {
		select {
		case <-done:
			t.Fatalf("the import ended before it saved anything:\n%s", out.String())
		case <-time.After(time.Millisecond):
		}
	}
	if err := cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	<-done
	return out.String(), cmd.ProcessState.ExitCode()
}

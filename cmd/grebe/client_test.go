package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"grebe/internal/cli"
	"grebe/plan"
	"grebe/schedule"
)

// command runs a command line in this process, on a terminal.
func command(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(args, &cli.World{Ctx: context.Background(), Stdout: &out, Stderr: &errs, Terminal: true})
	return out.String(), errs.String(), code
}

func TestVersionFlag(t *testing.T) {
	want, _, _ := command(t, "version")
	for _, args := range [][]string{{"--version"}, {"serve", "--version"}} {
		if out, errs, code := command(t, args...); code != cli.Done || out != want || errs != "" {
			t.Errorf("%q prints %q, %q and exits with %d, want %q", args, out, errs, code, want)
		}
	}
}

// The first screen of help shows each command once, and what users need before what developers do.
func TestHelpIsShort(t *testing.T) {
	out, _, _ := command(t, "--help")
	serve, eval := strings.Index(out, "serve"), strings.Index(out, "eval")
	if serve < 0 || eval < serve || strings.Count(out, "eval ") != 1 || strings.Count(out, "\n") > 60 {
		t.Errorf("help is long, or lists first what few need:\n%s", out)
	}
}

// A wrong command line is sent to the help of its command.
func TestTryHelpOfTheCommand(t *testing.T) {
	for args, want := range map[string]string{
		"serve --nope":            "Try: grebe serve --help",
		"serve --threads -1":      "Try: grebe serve --help",
		"cluster drain n1 --nope": "Try: grebe cluster drain --help",
		"nope":                    "Try: grebe --help",
	} {
		if _, errs, code := command(t, strings.Fields(args)...); code != cli.Misuse || !strings.Contains(errs, want+"\n") {
			t.Errorf("%s: exits with %d and says %q, want %q", args, code, errs, want)
		}
	}
}

func TestKeyFileIsPrivate(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "shop.key")
	args := []string{"key", "--name", "shop", "--add", filepath.Join(dir, "keys.yaml"), "--out", file}
	if out, errs, code := command(t, args...); code != cli.Done || out != "" {
		t.Fatalf("prints %q, %q and exits with %d", out, errs, code)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	args[2] = "other"
	if _, errs, code := command(t, args...); code != cli.Failed || !strings.Contains(errs, "exists") {
		t.Errorf("a key over a key: %q, exits with %d", errs, code)
	}
}

func TestHealthCommand(t *testing.T) {
	ready := false
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !ready || r.URL.Path != "/v2/health/ready" {
			http.Error(w, "not ready yet", http.StatusServiceUnavailable)
		}
	}))
	defer s.Close()
	if _, errs, code := command(t, "health", "--server", s.URL); code != cli.Failed ||
		!strings.Contains(errs, "not ready yet") {
		t.Errorf("a server that starts: %q, exits with %d", errs, code)
	}
	ready = true
	if out, errs, code := command(t, "health", "--server", s.URL); code != cli.Done || out != "ready\n" {
		t.Errorf("%q, %q, exits with %d", out, errs, code)
	}
}

// --wait asks until the server is ready, and ends after its time or with the command, with the last answer.
func TestHealthWaits(t *testing.T) {
	var asked atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) < 3 {
			http.Error(w, "not ready yet", http.StatusServiceUnavailable)
		}
	}))
	defer s.Close()
	out, errs, code := command(t, "health", "--server", s.URL, "--wait", "1h")
	if code != cli.Done || out != "ready\n" || errs != "" || asked.Load() != 3 {
		t.Errorf("%q, %q, exits with %d after %d questions", out, errs, code, asked.Load())
	}

	asked.Store(-1 << 30)
	out, errs, code = command(t, "health", "--server", s.URL, "--wait", "1s")
	want := "not ready after 1s: " + s.URL + " is not ready: not ready yet"
	if code != cli.Failed || out != "" || !strings.Contains(errs, want) {
		t.Errorf("a server that never gets ready: %q, %q, exits with %d", out, errs, code)
	}

	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(time.Second, cancel)
	var stdout, stderr bytes.Buffer
	args := []string{"health", "--server", s.URL, "--wait", "1h"}
	code = run(args, &cli.World{Ctx: ctx, Stdout: &stdout, Stderr: &stderr})
	want = "interrupted while waiting: " + s.URL
	if code != cli.Failed || stdout.Len() > 0 || !strings.Contains(stderr.String(), want) {
		t.Errorf("Ctrl-C: %q, %q, exits with %d", &stdout, &stderr, code)
	}
}

// With --pid the wait ends with the process, and a server that is ready too soon is another one: the process that was
// started is about to find its address in use.
func TestHealthWaitsForAProcess(t *testing.T) {
	s := httptest.NewServer(nil)
	defer s.Close()
	s.Config.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	start := func(seconds string) string {
		t.Helper()
		c := exec.Command("sleep", seconds)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		go c.Wait() // as a shell does
		t.Cleanup(func() { _ = c.Process.Kill() })
		return strconv.Itoa(c.Process.Pid)
	}
	for _, url := range []string{s.URL, "http://127.0.0.1:1"} {
		pid := start("0.3")
		out, errs, code := command(t, "health", "--server", url, "--wait", "1h", "--pid", pid)
		if code != cli.Failed || out != "" || !strings.Contains(errs, "process "+pid+" has ended") {
			t.Errorf("%s, a process that ends: %q, %q, exits with %d", url, out, errs, code)
		}
	}
	out, errs, code := command(t, "health", "--server", s.URL, "--wait", "1h", "--pid", start("60"))
	if code != cli.Done || out != "ready\n" {
		t.Errorf("a process that goes on: %q, %q, exits with %d", out, errs, code)
	}
	if _, errs, code := command(t, "health", "--pid", "1"); code != cli.Misuse || !strings.Contains(errs, "--wait") {
		t.Errorf("--pid without --wait: %q, exits with %d", errs, code)
	}
}

// A server that never listens, or listens and never answers, ends the wait too.
func TestHealthWaitsForNobody(t *testing.T) {
	hangs := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hangs }))
	defer silent.Close()
	defer close(hangs)
	gone := httptest.NewServer(nil)
	gone.Close()
	for url, want := range map[string]string{silent.URL: "no answer yet", gone.URL: "connection refused"} {
		out, errs, code := command(t, "health", "--server", url, "--wait", "500ms")
		if code != cli.Failed || out != "" || !strings.Contains(errs, "not ready after 500ms: ") ||
			!strings.Contains(errs, want) {
			t.Errorf("%q, %q, exits with %d, want %q", out, errs, code, want)
		}
	}
}

// --explain asks for the parts of the prompt and prints them.
func TestRankExplains(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked struct{ Explain bool }
		if r.URL.Path != "/v1/rank" || json.NewDecoder(r.Body).Decode(&asked) != nil || !asked.Explain {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		fmt.Fprint(w, `{"node": "n1", "prefix": "user", "prefix_reason": "cheaper", "results": [{"id": "a"}],
			"parts": [{"kind": "user", "tokens": 1168, "cached": 1168, "source": "host"},
			{"kind": "item", "id": "a", "tokens": 14, "cached": 0},
			{"kind": "item", "tokens": 15, "cached": 5, "source": "disk"},
			{"kind": "discriminant", "tokens": 4, "cached": 0}, {"kind": "discriminant", "tokens": 4, "cached": 0}],
			"route": {"reason": "load", "predicted_ms": 12}}`)
	}))
	defer s.Close()
	out, errs, code := command(t, "rank", "--explain", "--server", s.URL, "--user", "u", "--candidates", "a")
	for _, want := range []string{
		"\nThe user comes first in the prompt (prefix: user), because that is predicted to take less time now (cheaper).\n",
		"\nNode n1 answered, because it was predicted to be the fastest (load). It was predicted to take 12.0 ms.\n",
		"\npart               tokens  cached  computed  cached in\n",
		"\nuser               1168    1168    0         host memory\n",
		"\nitem a             14      0       14        -\n", "\nitem #1            15      5       10        disk\n",
		"\nquestion about a   4       0       4         -\n", "\nquestion about #1  4       0       4         -\n",
	} {
		if code != cli.Done || !strings.Contains(out, want) {
			t.Errorf("exits with %d, prints\n%s%s\nwant %q", code, out, errs, want)
		}
	}
	if _, errs, code := command(t, "rank", "--explain", "--request", "x.json"); code != cli.Misuse {
		t.Errorf("beside a whole request: exits with %d, %s", code, errs)
	}
}

// Recommendations explain themselves as well; they have no order of the prompt.
func TestRecommendExplains(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked struct{ Explain bool }
		if r.URL.Path != "/v1/recommend" || json.NewDecoder(r.Body).Decode(&asked) != nil || !asked.Explain {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		fmt.Fprint(w, `{"node": "n1", "results": [{"id": "a"}], "catalog_version": "7",
			"parts": [{"kind": "user", "tokens": 1168, "cached": 1168, "source": "host"},
			{"kind": "instruction", "tokens": 4, "cached": 0}], "route": {"reason": "user", "predicted_ms": 12}}`)
	}))
	defer s.Close()
	out, errs, code := command(t, "recommend", "--explain", "--server", s.URL, "--user", "u")
	const want = "part         tokens  cached  computed  cached in\n" +
		"user         1168    1168    0         host memory\ninstruction  4       0       4         -"
	if code != cli.Done || !strings.Contains(out, want) {
		t.Errorf("exits with %d, prints\n%s%s\nwant %q", code, out, errs, want)
	}
	if _, errs, code := command(t, "recommend", "--explain", "--request", "x.json"); code != cli.Misuse {
		t.Errorf("beside a whole request: exits with %d, %s", code, errs)
	}
}

// Every reason that a server can give has words. A newer server's is shown as it is.
func TestReasonsHaveWords(t *testing.T) {
	for r := range schedule.NumReasons {
		if prefixReasons[r.String()] == "" {
			t.Errorf("no words for the reason %v", r)
		}
	}
	for tier := plan.Device; tier < plan.NumTiers; tier++ {
		if name := plan.Cached.Name(tier); name != "disk" && sourceWords[name] == "" {
			t.Errorf("no words for the source %q", name)
		}
	}
	if got := inWords(prefixReasons, "new"); got != "new" {
		t.Errorf("an unknown reason becomes %q", got)
	}
}

// The table of a recommendation has a column of codes if a result has codes, and shows notes.
func TestRecommendTable(t *testing.T) {
	answer := ""
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/recommend" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		fmt.Fprint(w, answer)
	}))
	defer s.Close()
	for _, c := range []struct{ answer, want string }{
		{`{"results": [{"id": "a", "score": 1}]}`, "place  item  score   \n1      a     1.0000  \n"},
		{`{"results": [{"id": "a", "score": 1, "codes": [7, 3]}]}`,
			"place  item  score   codes  \n1      a     1.0000  7 3    \n"},
		{`{"short": true, "notes": ["filter.x: no item has \"y\""]}`, "found\nnote: filter.x: no item has \"y\"\n"},
	} {
		answer = c.answer
		out, errs, code := command(t, "recommend", "--server", s.URL, "--user", "u")
		if code != cli.Done || !strings.Contains(out, c.want) {
			t.Errorf("exits with %d, prints\n%s%s\nwant %q", code, out, errs, c.want)
		}
	}
}

// Tables show what items are, as far as the server tells.
func TestTablesShowTitles(t *testing.T) {
	items := http.StatusOK
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, isItem := strings.CutPrefix(r.URL.Path, "/v1/items/")
		switch {
		case isItem && items != http.StatusOK:
			w.WriteHeader(items)
		case isItem && id == "a/b":
			fmt.Fprintf(w, `{"id": "a/b", "text": "A tent\nfor two"}`)
		case isItem:
			w.WriteHeader(http.StatusNotFound)
		default:
			fmt.Fprint(w, `{"results": [{"index": 0, "id": "gone"}, {"index": 1, "id": "a/b"}]}`)
		}
	}))
	defer s.Close()
	for _, args := range [][]string{{"rank", "--candidates", "gone,a/b"}, {"recommend"}} {
		args = append(args, "--server", s.URL, "--user", "u")
		items = http.StatusOK
		if out, errs, code := command(t, args...); code != cli.Done || !strings.Contains(out, "A tent\n") {
			t.Errorf("%q prints\n%s%s and exits with %d", args, out, errs, code)
		}
		items = http.StatusForbidden
		if out, errs, code := command(t, args...); code != cli.Done || !strings.Contains(out, "a/b") {
			t.Errorf("without the right to see items, %q prints\n%s%s and exits with %d", args, out, errs, code)
		}
	}
}

// A command without a key says how it is given one.
func TestMissingKey(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"error": {"code": "unauthenticated", "message": "a key is needed"}}`)
	}))
	defer s.Close()
	lines := filepath.Join(t.TempDir(), "items.ndjson")
	if err := os.WriteFile(lines, []byte(`{"id": "a", "text": "b"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"recommend --user u", "import " + lines, "index", "backup " + lines + ".d",
		"cluster status"} {
		_, errs, code := command(t, append(strings.Fields(args), "--server", s.URL)...)
		if code != cli.Failed || !strings.HasPrefix(errs, "grebe: unauthenticated: a key is needed (") ||
			strings.Count(errs, "--key-file FILE") != 1 || !strings.Contains(errs, "GREBE_API_KEY") {
			t.Errorf("%s exits with %d and says %s", args, code, errs)
		}
	}
}

// A key without the right gets the same words from every command.
func TestMissingRole(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"error": {"code": "permission_denied", "message": "key \"shop\" lacks the role \"catalog\""}}`)
	}))
	defer s.Close()
	lines := filepath.Join(t.TempDir(), "items.ndjson")
	if err := os.WriteFile(lines, []byte(`{"id": "a", "text": "b"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"recommend --user u", "import " + lines, "import --dry-run " + lines, "index"} {
		_, errs, code := command(t, append(strings.Fields(args), "--server", s.URL)...)
		const want = `grebe: permission_denied: key "shop" lacks the role "catalog"`
		if code != cli.Failed || !strings.HasSuffix(errs, want+"\n") || strings.Contains(errs, "{") {
			t.Errorf("%s exits with %d and says %s", args, code, errs)
		}
	}
}

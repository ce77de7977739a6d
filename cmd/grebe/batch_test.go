package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"grebe/internal/cli"
	"grebe/shop/demo"
)

// A batch whose command and whose server are killed at random moments ends with the file of one that is left alone.
// Bad lines have errors in their places.
func TestKilledBatch(t *testing.T) {
	dir := t.TempDir()
	var lines bytes.Buffer
	for i := range 150 {
		switch {
		case i == 7:
			fmt.Fprintln(&lines, `{"user":`)
		case i == 8:
			fmt.Fprintln(&lines, `{"user":{"id":"ana"},"prefix":"user","candidates":[{"id":"nobody has this"}]}`)
		default:
			fmt.Fprintf(&lines,
				`{"user":{"id":"ana"},"prefix":"user","request_id":"r%d","candidates":[{"id":"i%d"},{"id":"i%d"}]}`+"\n", i, 1+i%40,
				41+i%7)
		}
	}
	in := filepath.Join(dir, "requests.ndjson")
	if err := os.WriteFile(in, lines.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	listen := freeAddress(t)
	serve := func(data string) *crashServer {
		return startServer(t, filepath.Join(demoData, demo.ConfigFile), "--data-dir", filepath.Join(dir, data),
			"--listen", listen, "--slo-ms", "60000")
	}
	batch := func(out string) string {
		if said, errs, code := grebe(t, "batch", "rank", in, "--out", out, "--server", "http://"+listen); code != cli.Done {
			t.Fatalf("grebe batch exits with %d and says %s%s", code, said, errs)
		}
		data, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	s := serve("undisturbed")
	begun := time.Now()
	want := batch(filepath.Join(dir, "undisturbed.ndjson"))
	took := time.Since(begun)
	s.kill()
	got := strings.Split(strings.TrimSpace(want), "\n")
	if len(got) != 150 {
		t.Fatalf("%d answers to 150 requests", len(got))
	}
	for i, line := range got {
		if bad := i == 7 || i == 8; bad != strings.HasPrefix(line, `{"error"`) ||
			!bad && !strings.Contains(line, fmt.Sprintf(`"request_id":"r%d"`, i)) {
			t.Errorf("the answer to request %d is %s", i, line)
		}
	}
	r := rand.New(rand.NewPCG(7, 7))
	out := filepath.Join(dir, "killed.ndjson")
	for range kills(t) {
		s := serve("killed")
		timer := time.AfterFunc(time.Duration(r.Int64N(int64(took))), s.kill)
		killedAfter(t, time.Duration(r.Int64N(int64(took))), "batch", "rank", in, "--out", out, "--server", s.url)
		timer.Stop()
		s.kill()
	}
	s = serve("killed")
	defer s.kill()
	if got := batch(out); got != want {
		t.Errorf("after kills the answers are\n%s\nwant\n%s", got, want)
	}
	if _, err := os.Stat(out + ".batch"); err == nil {
		t.Error("the state of the batch is left")
	}
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{"POST", "/v1/batches?op=fly", 400}, {"POST", "/v1/batches?op=rank&id=short", 400},
		{"GET", "/v1/batches/absent", 404},
		{"GET", "/v1/batches/absent/results", 404}, {"DELETE", "/v1/batches/absent", 404},
	} {
		req, err := http.NewRequest(c.method, s.url+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.status {
			t.Errorf("%s %s: %d, want %d", c.method, c.path, resp.StatusCode, c.status)
		}
	}
}

// Answers are counted however they arrive, and errors among them are reported.
func TestAnswersAreCounted(t *testing.T) {
	text := `{"model":"a","results":[{"error":1}]}` + "\n" + `{"error":{"code":"x"}}` + "\n" + `{"err` + "\n\n" +
		`{"error":{"code":"y"}}` + "\n"
	for size := 1; size <= len(text); size++ {
		var n answerCounter
		for rest := text; rest != ""; {
			part := rest[:min(size, len(rest))]
			rest = rest[len(part):]
			if k, err := n.Write([]byte(part)); k != len(part) || err != nil {
				t.Fatal(k, err)
			}
		}
		if got, want := n.String(), "5 answers, 2 of them errors, the first in line 2"; got != want {
			t.Fatalf("in pieces of %d: %q, want %q", size, got, want)
		}
	}
	one := &answerCounter{lines: 1, failed: 1, first: 1}
	if got, want := one.String(), "1 answer, 1 of them an error, in line 1"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := new(answerCounter).String(); got != "0 answers" {
		t.Errorf("of nothing: %q", got)
	}
}

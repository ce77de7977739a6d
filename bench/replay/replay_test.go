package replay

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// unpack returns a log of testdata.
func unpack(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// replayed are the decisions that every log has.
var replayed = []string{
	"reuse order", "reuse returns", "reuse share", "dispatch run", "dispatch queued", "dispatch learnt",
	"kv put", "kv hit", "kv leave", "kv drop", "kv write",
}

// What was decided when the logs were recorded is decided today.
func TestRecorded(t *testing.T) {
	files, err := filepath.Glob("testdata/*.log.gz")
	if err != nil || len(files) == 0 {
		t.Fatalf("no logs: %v", err)
	}
	for _, file := range files {
		r, err := Run(strings.NewReader(unpack(t, file)))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if r.Different > 0 {
			t.Errorf("%s: %d decisions differ:\n%s", file, r.Different, strings.Join(r.Differences, "\n"))
		}
		for _, kind := range replayed {
			if r.Decisions[kind] == 0 {
				t.Errorf("%s: no %q among %v", file, kind, r.Decisions)
			}
		}
	}
}

// Single decisions on random inputs were recorded when server/reuse, server/dispatch and engine took them.
func TestRecordedAlone(t *testing.T) {
	log := unpack(t, "testdata/single/random.log.gz")
	r, err := Run(strings.NewReader(log))
	if err != nil {
		t.Fatal(err)
	}
	if r.Different > 0 {
		t.Errorf("%d decisions differ:\n%s", r.Different, strings.Join(r.Differences, "\n"))
	}
	for _, kind := range []string{"reuse returns", "reuse share", "reuse invests"} {
		if n := r.Decisions[kind]; n < 100 {
			t.Errorf("%d decisions %q: %v", n, kind, r.Decisions)
		}
		room, op, _ := strings.Cut(kind, " ")
		other := regexp.MustCompile("(?m)^("+room+`\d+ \. `+op+` .*)$`).ReplaceAllString(log, "$1 0")
		if r, err := Run(strings.NewReader(other)); err != nil || r.Different != r.Decisions[kind] {
			t.Errorf("other %q: %d of %d differ, %v", kind, r.Different, r.Decisions[kind], err)
		}
	}
}

// A decision that is another one, and an input that is, are told with their line.
func TestDifferencesAreTold(t *testing.T) {
	log := unpack(t, "testdata/disk.log.gz")
	for was, is := range map[string]string{
		"reuse0 . order user":     "reuse0 . order item",
		"dispatch0 . run [1]":     "dispatch0 . run [2]",
		"dispatch0 add 1 0 45 ":   "dispatch0 add 9 0 45 ",
		"dispatch0 ran 0 1 45 ":   "dispatch0 ran 0 1 450 ",
		"dispatch0 . queued":      "dispatch0 . full",
		"reuse0 decide predicted": "reuse0 decide item",
		"\nreuse0 came ":          "\nreuse1 came ",
		"\nreuse0 evicted ":       "\nreuse1 evicted ",
		"\nreuse0 kept ":          "\nreuse1 kept ",
		"\nkv0 . hit ":            "\nkv0 . take ",
		"\nkv0 . leave ":          "\nmeta0 . leave ",
		"\nkv0 find ":             "\nmeta0 find ",
		"\nkv0 pin ":              "\nmeta0 pin ",
	} {
		if !strings.Contains(log, was) {
			t.Fatalf("the log has no %q", was)
		}
		r, err := Run(strings.NewReader(strings.Replace(log, was, is, 1)))
		if err != nil || r.Different == 0 || len(r.Differences) == 0 || !strings.HasPrefix(r.Differences[0], "line ") {
			t.Errorf("%q instead of %q: %+v, %v", is, was, r, err)
		}
	}
	if _, err := Run(strings.NewReader("kv0 open lru - -\n")); err == nil {
		t.Error("a log without decisions replays")
	}
	if _, err := Run(strings.NewReader("dispatch0 open x\n")); err == nil {
		t.Error("a log that makes no sense replays")
	}
}

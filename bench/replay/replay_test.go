package replay

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"grebe/bench/drive"
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

// replayed are the decisions that a log of each kind has at least.
var replayed = map[string][]string{
	"": {
		"reuse order", "reuse returns", "reuse share", "dispatch run", "dispatch queued", "dispatch learnt",
		"kv put", "kv hit", "kv leave", "kv drop", "kv take", "meta frequency", "meta uses",
	},
	"blending":  {"kv write"},
	"deletions": {"kv write"},
	"disk":      {"kv write"},
	"overload":  {"kv write"},
	"reloads":   {"kv write"},
	"tiers":     {"kv write"},
}

// What servers decided before these rooms were pure is decided today. Package drive says what each kind of log is.
func TestRecorded(t *testing.T) {
	for _, kind := range drive.Kinds {
		t.Run(kind.Name, func(t *testing.T) {
			r, err := File("testdata/" + kind.Name + ".log.gz")
			if err != nil {
				t.Fatal(err)
			}
			if r.Different > 0 {
				t.Errorf("%d of %d decisions differ. The first is on %s", r.Different, r.Compared(), r.Differences[0])
			}
			if r.Requests < 100 {
				t.Errorf("the log is of %d requests", r.Requests)
			}
			for _, op := range slices.Concat(replayed[""], replayed[kind.Name]) {
				if r.Decisions[op] == 0 {
					t.Errorf("no %q among %v", op, r.Decisions)
				}
			}
		})
	}
}

// Single decisions on random inputs were recorded when reuse, dispatch and engine took them.
func TestRecordedAlone(t *testing.T) {
	log := unpack(t, "testdata/single/random.log.gz")
	r, err := Run(strings.NewReader(log))
	if err != nil {
		t.Fatal(err)
	}
	if r.Different > 0 {
		t.Errorf("%d decisions differ:\n%s", r.Different, strings.Join(r.Differences, "\n"))
	}
	for _, kind := range []string{"reuse returns", "reuse share", "reuse invests", "reuse pays", "reuse within",
		"dispatch slower", "dispatch within", "load near", "load most", "pace pace"} {
		if n := r.Decisions[kind]; n < 50 {
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
	log = log[:strings.LastIndex(log, "# grebe record")] // up to the restart
	for was, is := range map[string]string{
		"reuse0 . order user":     "reuse0 . order item",
		"dispatch0 . run [1]":     "dispatch0 . run [2]",
		"dispatch0 add 1 ":        "dispatch0 add 9 ",
		"dispatch0 ran 0 1 ":      "dispatch0 ran 0 2 ",
		"dispatch0 . queued":      "dispatch0 . full",
		"reuse0 decide predicted": "reuse0 decide none",
		"\nreuse0 came ":          "\nreuse9 came ",
		"\nreuse0 evicted ":       "\nreuse9 evicted ",
		"\nreuse0 kept ":          "\nreuse9 kept ",
		"\nkv0 . hit ":            "\nkv0 . take ",
		"\nkv0 . put ":            "\nkv9 . put ",
		"\nkv0 . take ":           "\nmeta0 . take ",
		"\nkv0 find ":             "\nmeta0 find ",
		"\nkv0 pin ":              "\nmeta0 pin ",
		"\nkv0 . write ":          "\nmeta0 . write ",
	} {
		if !strings.Contains(log, was) {
			t.Fatalf("the log has no %q", was)
		}
		r, err := Run(strings.NewReader(strings.ReplaceAll(log, was, is)))
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

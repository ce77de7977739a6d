package sim

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"strings"
	"testing"
)

// Logs of servers. In the first one steps of requests do not lie between those of others: grebe-bench sim-replay
// --record BINARY --requests 400 --seed 5. The second one is the beginning of a log of grebe-bench sim-check --where,
// with two threads: memory is reserved for a batch while the KV of the last one is published.
const (
	oneByOne = "testdata/node.log.gz"
	overlaps = "testdata/overlaps.log.gz"
)

func recorded(t *testing.T, file string) []byte {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A node decides what a server decided, of every kind of decision.
func TestReplay(t *testing.T) {
	r, err := ReplayFile(oneByOne)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range r.Differences {
		t.Error(d)
	}
	for _, kind := range []string{
		"admission", "what is cached", "prefix order", "cost", "queue", "batch", "computed", "prefill model", "returns",
		"KV hit", "KV put", "KV leave", "KV drop", "evicted user",
	} {
		if r.Decisions[kind] == 0 {
			t.Errorf("no decision of kind %q was compared", kind)
		}
	}
	log := string(recorded(t, oneByOne))
	for what, has := range map[string]bool{
		"user-first prompts": strings.Contains(log, "reuse0 . order user"),
		"item-first prompts": strings.Contains(log, "reuse0 . order item"),
		"refusals":           r.Requests > strings.Count(log, "reuse0 decide "),
		"batches of several": strings.Contains(log, "dispatch0 ran 0 2 "),
	} {
		if !has {
			t.Errorf("the log has no %s", what)
		}
	}
	t.Logf("%d requests, %d decisions, %d different: %v", r.Requests, r.Compared(), r.Different, r.Decisions)
}

// A node decides what a server decided that published KV of one batch and reserved memory for the next at the same
// time.
func TestReplayOverlaps(t *testing.T) {
	log := string(recorded(t, overlaps))
	ending, takes, needs := 0, 0, 0
	for line := range strings.Lines(log) {
		switch {
		case strings.HasPrefix(line, "reuse0 end "):
			ending++
		case strings.HasPrefix(line, "reuse0 left "):
			ending--
		case ending > 0 && strings.HasPrefix(line, "memory0 take "):
			takes++
		case ending > 0 && strings.HasPrefix(line, "kv0 need "):
			needs++
		}
	}
	if takes < 100 || needs < 20 {
		t.Fatalf("while requests published, memory was taken %d times and entries were evicted %d times", takes, needs)
	}
	r, err := Replay(strings.NewReader(log))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range r.Differences {
		t.Error(d)
	}
	if r.Decisions["memory"] == 0 {
		t.Error("no places of memory were compared")
	}
	t.Logf("%d requests, %d decisions, %d different: %v", r.Requests, r.Compared(), r.Different, r.Decisions)
	// The order of the log matters: memory that is freed later is not there for others.
	k := strings.Index(log, "memory0 put ")
	line := log[k : k+strings.Index(log[k:], "\n")+1]
	late := log[:k] + log[k+len(line):] + line
	if r, err := Replay(strings.NewReader(late)); err == nil && r.Different == 0 {
		t.Error("memory that is freed later makes no difference")
	}
}

// Nodes that decide otherwise than the server are found.
func TestReplayFindsFaults(t *testing.T) {
	both := []string{oneByOne, overlaps}
	faults := []struct {
		name  string
		plant func(*node)
		logs  []string // that have what the fault changes
	}{
		{"computed KV is worth less", func(n *node) { n.costs.Discount /= 2 }, both},
		{"memory lacks a chunk", func(n *node) { n.users.mem[0].total -= chain * n.users.token }, both},
		{"entries in use are evicted", func(n *node) { n.users.may = func(*held) bool { return true } }, both[:1]},
		{"batches aim for another latency", func(n *node) { n.batcher.SetSLO(n.f.scenario.SLO.Duration / 1000) }, both},
		{"waking is thought to take long", func(n *node) { n.admission.Woke(1e3) }, both[:1]},
	}
	for _, f := range faults {
		for _, file := range f.logs {
			r, err := replay(bytes.NewReader(recorded(t, file)), f.plant)
			if err == nil && r.Different == 0 {
				t.Errorf("%s, %s: no difference among %d decisions", file, f.name, r.Compared())
			}
		}
	}
}

package sim

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"strings"
	"testing"
)

// recorded returns the log of a server: grebe-bench sim-replay --record BINARY --requests 400 --seed 5.
func recorded(t *testing.T) []byte {
	t.Helper()
	f, err := os.Open("testdata/node.log.gz")
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
	r, err := ReplayFile("testdata/node.log.gz")
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
	log := string(recorded(t))
	for what, has := range map[string]bool{
		"user-first prompts": strings.Contains(log, "reuse0 . order user"), "item-first prompts": strings.Contains(log, "reuse0 . order item"),
		"refusals": r.Requests > strings.Count(log, "reuse0 decide "), "batches of several": strings.Contains(log, "dispatch0 ran 0 2 "),
	} {
		if !has {
			t.Errorf("the log has no %s", what)
		}
	}
	t.Logf("%d requests, %d decisions, %d different: %v", r.Requests, r.Compared(), r.Different, r.Decisions)
}

// Nodes that decide otherwise than the server are found.
func TestReplayFindsFaults(t *testing.T) {
	log := recorded(t)
	faults := []struct {
		name  string
		plant func(*node)
	}{
		{"computed KV is worth less", func(n *node) { n.costs.Discount /= 2 }},
		{"memory lacks a chunk", func(n *node) { n.users.mem[0].total -= chain * n.users.token }},
		{"entries in use are evicted", func(n *node) { n.users.may = func(*held) bool { return true } }},
		{"batches aim for another latency", func(n *node) { n.batcher.SetSLO(n.f.scenario.SLO.Duration / 1000) }},
		{"waking is thought to take long", func(n *node) { n.admission.Woke(1e3) }},
	}
	for _, f := range faults {
		r, err := replay(bytes.NewReader(log), f.plant)
		if err == nil && r.Different == 0 {
			t.Errorf("%s: no difference among %d decisions", f.name, r.Compared())
		}
	}
}

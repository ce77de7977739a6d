package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"grebe/cluster/status"
	"grebe/internal/cli"
)

// threeNodes is a cluster with something of everything.
func threeNodes() *status.Cluster {
	node := func(id, state string, backlog float64, known bool) status.Node {
		return status.Node{ID: id, State: state, Roles: []string{"node", "router"},
			API: "127.0.0.1:8080", Peer: "127.0.0.1:7070", Boot: "b" + id,
			Models: []status.Model{{Name: "shop", Version: "4f1c9a", BacklogMs: backlog, Entries: 1203, Known: known,
				AgeMs: 42}}, Routed: 12034}
	}
	c := &status.Cluster{Name: "demo", Self: "n1", Coordinator: "up", Epoch: 7, Routing: "predicted",
		Nodes: []status.Node{node("n1", "ACTIVE", 0, true), node("n2", "SUSPECT", 12.34, false),
			node("n3", "ACTIVE", 1500, true)},
		Placement: &status.Placement{Epoch: 4, Kind: "hrcs", Hot: 12, Moved: 12_300_000,
			Nodes: []status.Held{{ID: "n1", Items: 3180, Bytes: 5e6}, {ID: "n3", Items: 3180, Bytes: 5e6}}},
		Transfers: []status.Transfer{{From: "n3", To: "n1", Blocks: 1000, Bytes: 2e9, Late: 3, RateMB: 900, TripMs: 0.21}},
		Changes: []status.Change{{At: "2026-11-17T04:00:03.250Z", Node: "n2", From: "LEASE_LOST", To: "SUSPECT"},
			{At: "2026-11-17T04:00:00Z", Node: "n2", To: "ACTIVE"}},
	}
	c.Nodes[1].Models[0].AgeMs = -1
	c.Nodes[2].Failed, c.Nodes[2].Drained = 2, true
	return c
}

func TestClusterText(t *testing.T) {
	const want = `Cluster demo, as n1 sees it. Coordinator up, routing predicted.

node  state           roles        backlog  entries      age  routed  failed  address
n1 *  ACTIVE          node,router   0.0 ms    1,203  42.0 ms  12,034       0  127.0.0.1:8080
n2    SUSPECT         node,router  12.3 ms  unknown        -  12,034       0  127.0.0.1:8080
n3    ACTIVE,drained  node,router    1.5 s    1,203  42.0 ms  12,034       2  127.0.0.1:8080

Placement hrcs, epoch 4, 12 hot items on all nodes, 12.3 MB to be filled

node  items    size
n1    3,180  5.0 MB
n3    3,180  5.0 MB

Blocks of KV between nodes

from  to  blocks     size  late      rate    trip
n3    n1   1,000  2.00 GB     3  900 MB/s  0.2 ms

Last changes

`
	got := clusterText(threeNodes())
	if !strings.HasPrefix(got, want) || !strings.Contains(got, "n2  LEASE_LOST -> SUSPECT\n") ||
		!strings.HasSuffix(got, "n2  joined, ACTIVE\n") {
		t.Errorf("got\n%s", got)
	}
}

// A node of the placement map that is gone is marked, and the reader learns that its share stays for a while.
func TestClusterTextGone(t *testing.T) {
	const note = "A node that is gone keeps its share for some 30 s, so that a restart moves nothing.\n"
	c := threeNodes()
	if got := clusterText(c); strings.Contains(got, "gone") {
		t.Errorf("nobody is gone: got\n%s", got)
	}
	c.Placement.Nodes[1].Gone = true
	got := clusterText(c)
	if !strings.Contains(got, "\nn1         3,180  5.0 MB\nn3 (gone)  3,180  5.0 MB\n\n"+note+"\nBlocks of KV") {
		t.Errorf("got\n%s", got)
	}
}

// Entries that two models share are counted once, and sizes are shown where one is known.
func TestClusterTextCounts(t *testing.T) {
	c := threeNodes()
	other := c.Nodes[0].Models[0]
	other.Name, other.SharesWith = "shop-pointwise", "shop"
	c.Nodes[0].Models = append(c.Nodes[0].Models, other)
	for i := range c.Placement.Nodes {
		c.Placement.Nodes[i].Bytes = 0
	}
	got := clusterText(c)
	if !strings.Contains(got, "0.0 ms    1,203  42.0 ms") || !strings.Contains(got, "\nnode  items\nn1    3,180\n") {
		t.Errorf("got\n%s", got)
	}
}

// Whatever the nodes are called, a line has at most 100 columns, and what needs an operator is said.
func TestClusterTextFits(t *testing.T) {
	c := threeNodes()
	c.Coordinator = "away"
	for i := range c.Nodes {
		c.Nodes[i].ID = strings.Repeat("shop-рекс-", 4) + c.Nodes[i].ID
		c.Nodes[i].API = "grebe-node-with-a-long-name.shop.svc.cluster.local:8080"
		c.Nodes[i].Ejected = true
	}
	c.Nodes[1].Models[0].Version = "0123456789abcdef0123456789abcdef"
	got := clusterText(c)
	for line := range strings.Lines(got) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > clusterWidth {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	for _, says := range []string{"coordinator does not answer", "grebe doctor", "slower than predicted",
		"different checkpoints of model shop", "0123456789ab on"} {
		if !strings.Contains(strings.ReplaceAll(got, "\n", " "), says) {
			t.Errorf("no %q in\n%s", says, got)
		}
	}
	if empty := clusterText(&status.Cluster{Name: "x"}); !strings.Contains(empty, "Cluster x") {
		t.Errorf("got %q", empty)
	}
}

// clusterServer answers as a process of the cluster does.
func clusterServer(t *testing.T) (url string, calls *atomic.Int64, marks func() string) {
	t.Helper()
	calls = new(atomic.Int64)
	var marked atomic.Value
	marked.Store("")
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		switch {
		case r.Method == "GET" && r.URL.Path == "/v1/cluster":
		case r.Method == "POST" && strings.HasSuffix(r.URL.EscapedPath(), "/n%2F2:drain"),
			strings.HasSuffix(r.URL.Path, "n2:undrain"):
			marked.Store(marked.Load().(string) + r.URL.Path + "\n")
		default:
			w.WriteHeader(http.StatusNotFound)
			_,
				_ = w.Write([]byte(`{"error": {"code": "not_found", "message": "no node here: GET /v1/cluster lists the nodes"}}`))
			return
		}
		_ = json.NewEncoder(w).Encode(threeNodes())
	}))
	t.Cleanup(s.Close)
	return s.URL, calls, func() string { return marked.Load().(string) }
}

func TestClusterCommands(t *testing.T) {
	url, _, marks := clusterServer(t)
	if out, errs, code := command(t, "cluster", "status", "--server", url); code != cli.Done ||
		out != clusterText(threeNodes()) {
		t.Errorf("exits with %d: %s%s", code, out, errs)
	}
	var got status.Cluster
	out, errs, code := command(t, "cluster", "status", "--json", "--server", url)
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != cli.Done || len(got.Nodes) != 3 {
		t.Errorf("exits with %d, %v: %s%s", code, err, out, errs)
	}
	if out, errs, code := command(t, "cluster", "drain", "n/2", "--server", url); code != cli.Done ||
		!strings.Contains(out, "undrain") {
		t.Errorf("exits with %d: %s%s", code, out, errs)
	}
	if out, errs, code := command(t, "cluster", "undrain", "n2", "--server", url); code != cli.Done ||
		!strings.Contains(out, "again") {
		t.Errorf("exits with %d: %s%s", code, out, errs)
	}
	if got := marks(); got != "/v1/cluster/nodes/n/2:drain\n/v1/cluster/nodes/n2:undrain\n" {
		t.Errorf("marks %q", got)
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"drain", "n9", "--server", url}, cli.Failed, "lists the nodes"},
		{[]string{"status", "--server", "http://127.0.0.1:1"}, cli.Failed, "any other process of the cluster"},
		{[]string{"status", "--watch", "--server", "here"}, cli.Misuse, "not an address"},
		{[]string{"drain"}, cli.Misuse, "node"},
	} {
		if _, errs, code := command(t, append([]string{"cluster"}, c.args...)...); code != c.code ||
			!strings.Contains(errs, c.says) {
			t.Errorf("%q exits with %d and says %q, want %d and %q", c.args, code, errs, c.code, c.says)
		}
	}
}

func TestClusterNeedsAKey(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte(`{"error": {"code": "unauthenticated", "message": "no key"}}`))
	}))
	defer s.Close()
	if _, errs, code := command(t, "cluster", "status", "--server", s.URL); code != cli.Failed ||
		!strings.Contains(errs, "--key-file") {
		t.Errorf("exits with %d and says %q", code, errs)
	}
}

// --watch goes on until it is stopped, also while the server is away.
func TestClusterWatch(t *testing.T) {
	url, calls, _ := clusterServer(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan int, 1)
	var out, errs bytes.Buffer
	go func() {
		done <- run([]string{"cluster", "status", "--watch", "--server", url},
			&cli.World{Ctx: ctx, Stdout: &out, Stderr: &errs, Terminal: true})
	}()
	for calls.Load() < 2 {
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	if code := <-done; code != cli.Done || strings.Count(out.String(), "Cluster demo") < 1 || errs.Len() > 0 {
		t.Errorf("exits with %d: %s%s", code, out.String(), errs.String())
	}
}

func TestRolloutNote(t *testing.T) {
	r := &status.Rollout{Model: "shop", State: "running", Driver: "n1", Nodes: []status.RolloutNode{
		{ID: "n1", State: "changed"}, {ID: "n2", State: "changing", Step: "warming", Progress: .5},
		{ID: "n3", State: "waiting"}}}
	const want = "The reload of model shop by n1: running. Nodes: n1 changed, n2 warming 50 %, n3 waiting."
	if got := rolloutNote(r); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	r.State, r.Error = "rolled_back", "n2: no memory"
	if got := rolloutNote(r); !strings.HasSuffix(got, " n2: no memory.") {
		t.Errorf("got %q", got)
	}
	if r.State = "done"; rolloutNote(r) != "" {
		t.Error("a change that is done is still noted")
	}
}

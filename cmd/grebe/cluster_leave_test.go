package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"grebe/cluster/status"
	"grebe/internal/cli"
)

// leaving answers as a process that has these milliseconds of work at the readings after it was asked to leave; the
// last for ever.
func leaving(t *testing.T, backlog ...float64) (url string, left *atomic.Bool) {
	t.Helper()
	left = new(atomic.Bool)
	var reading atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ms := 1000.
		switch {
		case r.Method == "POST" && r.URL.Path == "/v1/cluster/nodes/n1:leave":
			left.Store(true)
		case left.Load():
			ms = backlog[min(int(reading.Add(1)), len(backlog))-1]
		}
		_ = json.NewEncoder(w).Encode(status.Cluster{Name: "shop", Self: "n1", Nodes: []status.Node{
			{ID: "n1", Models: []status.Model{{Name: "m", BacklogMs: ms}}},
			{ID: "n2", Models: []status.Model{{Name: "m", BacklogMs: 1000}}},
		}})
	}))
	t.Cleanup(s.Close)
	return s.URL, left
}

func TestClusterLeave(t *testing.T) {
	url, left := leaving(t, 20, 0, 5, 0, 0)
	out, errs, code := command(t, "cluster", "leave", "--server", url, "--timeout", "1m")
	if code != cli.Done || !strings.Contains(out, "n1 has left") || !left.Load() {
		t.Errorf("exits with %d: %s%s", code, out, errs)
	}
	url, left = leaving(t, 20)
	out, errs, code = command(t, "cluster", "leave", "--server", url, "--timeout", "1ms")
	if code != cli.Failed || !strings.Contains(errs, "20 ms of work are left") || !left.Load() {
		t.Errorf("exits with %d: %s%s", code, out, errs)
	}
	if _, errs, code := command(t, "cluster", "leave", "--server", "http://127.0.0.1:1"); code != cli.Failed ||
		errs == "" {
		t.Errorf("without a server it exits with %d: %s", code, errs)
	}
}

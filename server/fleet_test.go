package server

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"

	"grebe/cluster/status"
	"grebe/server/guard"
)

// trio is a fleet of three nodes.
type trio struct {
	mu      sync.Mutex
	drained map[string]bool
	left    bool
	away    error // of the coordinator
}

func newTrio() *trio { return &trio{drained: map[string]bool{}} }

func (f *trio) Status() *status.Cluster {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := &status.Cluster{Name: "shop", Self: "n1", Coordinator: "up", Epoch: 3, Routing: "predicted"}
	for _, id := range []string{"n1", "n2", "a/b: c"} {
		c.Nodes = append(c.Nodes, status.Node{ID: id, State: "ACTIVE", Drained: f.drained[id],
			Roles: []string{"node", "router"}})
	}
	return c
}

func (f *trio) Drain(ctx context.Context, node string, drained bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := errors.Join(ctx.Err(), f.away); err != nil {
		return err
	}
	f.drained[node] = drained
	return nil
}

func (f *trio) Leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left = true
}

// A process that leaves is not ready, and answers requests all the same. It takes no other process out.
func TestLeave(t *testing.T) {
	f := newTrio()
	w := newWorld(t, func(c *setup) { c.Fleet = f })
	wantError(t, w.ask("POST", "/v1/cluster/nodes/n2:leave", ""), http.StatusConflict, "conflict", "")
	if rec := w.ask("GET", "/v2/health/ready", ""); rec.Code != http.StatusOK || f.left {
		t.Fatalf("after another node was asked to leave: %d %s", rec.Code, rec.Body)
	}
	if rec := w.ask("POST", "/v1/cluster/nodes/n1:leave", ""); rec.Code != http.StatusOK || !f.left {
		t.Fatalf("%d %s", rec.Code, rec.Body)
	}
	wantError(t, w.ask("GET", "/v2/health/ready", ""), http.StatusServiceUnavailable, "unavailable", "")
	if rec := w.ask("GET", "/v2/health/live", ""); rec.Code != http.StatusOK {
		t.Errorf("it is not live: %d", rec.Code)
	}
	if rec := w.ask("GET", "/v1/models", ""); rec.Code != http.StatusOK {
		t.Errorf("it does not answer: %d %s", rec.Code, rec.Body)
	}
}

func TestNoCluster(t *testing.T) {
	w := newWorld(t)
	for _, handler := range []http.Handler{w.handler, w.AdminHandler()} {
		w.handler = handler
		wantError(t, w.ask("GET", "/v1/cluster", ""), http.StatusNotFound, "not_found", "")
		rec := w.ask("POST", "/v1/cluster/nodes/n2:drain", "")
		if !strings.Contains(rec.Body.String(), "cluster section") {
			t.Errorf("no remedy in %s", rec.Body)
		}
		wantError(t, rec, http.StatusNotFound, "not_found", "")
	}
}

// Both listeners tell of the cluster and take drains, also while the server is not ready.
func TestClusterCalls(t *testing.T) {
	f := newTrio()
	w := newWorld(t, func(c *setup) { c.Fleet = f })
	w.SetReady(false)
	for _, handler := range []http.Handler{w.handler, w.AdminHandler()} {
		w.handler = handler
		rec := w.ask("GET", "/v1/cluster", "")
		var got status.Cluster
		decodeJSON(t, rec.Body, &got)
		if rec.Code != http.StatusOK || got.Self != "n1" || len(got.Nodes) != 3 || got.Nodes[1].Drained {
			t.Errorf("%d: %+v", rec.Code, got)
		}
		for path, node := range map[string]string{"n2": "n2", "a%2Fb:%20c": "a/b: c"} {
			for _, verb := range []string{":drain", ":undrain"} {
				rec := w.ask("POST", "/v1/cluster/nodes/"+path+verb, "")
				if rec.Code != http.StatusOK || !strings.Contains(rec.Body.String(), `"self":"n1"`) {
					t.Errorf("%s%s: %d %s", path, verb, rec.Code, rec.Body)
				}
				if want := verb == ":drain"; f.drained[node] != want {
					t.Errorf("after %s%s: drained is %v", path, verb, f.drained[node])
				}
			}
		}
		wantError(t, w.ask("POST", "/v1/cluster/nodes/n9:drain", ""), http.StatusNotFound, "not_found", "")
		wantError(t, w.ask("POST", "/v1/cluster/nodes/:drain", ""), http.StatusNotFound, "not_found", "")
		wantError(t, w.ask("POST", "/v1/cluster/nodes/n2:reboot", ""), http.StatusNotFound, "not_found", "")
	}
	if len(f.drained) != 2 {
		t.Errorf("marks %v", f.drained)
	}
}

func TestDrainWithoutCoordinator(t *testing.T) {
	f := newTrio()
	f.away = errors.New("coord: the coordinator does not answer")
	w := newWorld(t, func(c *setup) { c.Fleet = f })
	rec := w.ask("POST", "/v1/cluster/nodes/n2:drain", "")
	if !strings.Contains(rec.Body.String(), "the coordinator does not answer") {
		t.Errorf("no cause in %s", rec.Body)
	}
	wantError(t, rec, http.StatusServiceUnavailable, "unavailable", "")
}

// With keys, the API listener shows the cluster to admins alone.
func TestClusterNeedsAdmin(t *testing.T) {
	var keys []guard.Key
	header := map[guard.Role]string{}
	for _, role := range []guard.Role{guard.Serve, guard.Catalog, guard.Admin} {
		key, digest := guard.NewKey()
		keys = append(keys, guard.Key{Name: string(role), SHA256: digest, Roles: []guard.Role{role}})
		header[role] = "Bearer " + key
	}
	g, err := guard.New(keys)
	must(t, err)
	w := newWorld(t, func(c *setup) { c.Guard, c.Fleet = g, newTrio() })
	for _, call := range [][2]string{
		{"GET", "/v1/cluster"}, {"POST", "/v1/cluster/nodes/n2:drain"}, {"POST", "/v1/cluster/nodes/n2:undrain"},
		{"POST", "/v1/cluster/nodes/n1:leave"},
	} {
		for role, want := range map[guard.Role]int{guard.Serve: 403, guard.Catalog: 403, guard.Admin: 200} {
			if rec := w.ask(call[0], call[1], "", "Authorization", header[role]); rec.Code != want {
				t.Errorf("%v as %s: %d, want %d", call, role, rec.Code, want)
			}
		}
		if rec := w.ask(call[0], call[1], ""); rec.Code != http.StatusUnauthorized {
			t.Errorf("%v without a key: %d", call, rec.Code)
		}
	}
}

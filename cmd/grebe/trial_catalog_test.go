package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/internal/datadir"
)

// A node that has another catalog than the cluster does not start, and says what to do. One without a catalog joins,
// and its files do not bring back what was deleted.
func TestTrialOtherCatalog(t *testing.T) {
	c := prepareTrial(t, 3)
	stranger, late := c.nodes[1], c.nodes[2]
	c.nodes = c.nodes[:1]
	other, err := catalog.Open(datadir.Catalog(filepath.Join(c.dir, stranger.id)), catalog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = other.PutItem(&grebev1.Item{Id: "other", Text: proto.String("of another shop")})
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	c.startAll()
	c.launch(stranger)
	select {
	case <-stranger.exited:
	case <-time.After(30 * time.Second):
		t.Fatal("a node with another catalog goes on")
	}
	log, err := os.ReadFile(stranger.log)
	if err != nil {
		t.Fatal(err)
	}
	if stranger.cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(log), "start it with an empty data_dir") {
		t.Errorf("a node with another catalog ends with %v and logs\n%s", stranger.cmd.ProcessState, log)
	}
	for _, path := range []string{"/v1/items/i1", "/v1/users/ana"} {
		if status, answer, err := c.nodes[0].send(http.MethodDelete, path, ""); err != nil || status/100 != 2 {
			t.Fatalf("delete %s: %d %s %v", path, status, answer, err)
		}
	}
	c.nodes = append(c.nodes, late)
	c.launch(late)
	c.settled(30*time.Second, c.nodes...)
	for _, m := range c.nodes {
		for path, want := range map[string]int{"/v1/items/i1": 404, "/v1/users/ana": 404, "/v1/items/i2": 200,
			"/v1/users/bo": 200} {
			if status, answer, err := m.send(http.MethodGet, path, ""); err != nil || status != want {
				t.Errorf("%s answers %s with %d %s %v, want %d", m.id, path, status, answer, err, want)
			}
		}
	}
}

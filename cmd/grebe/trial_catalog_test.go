package main

import (
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

// A node that has another catalog than the cluster does not start, and says what to do.
func TestTrialOtherCatalog(t *testing.T) {
	c := prepareTrial(t, 2)
	stranger := c.nodes[1]
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
	c.settled(30*time.Second, c.nodes...)
}

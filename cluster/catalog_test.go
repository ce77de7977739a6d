package cluster

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/cluster/coord/coordtest"
	"grebe/cluster/replica"
)

// Members have the same catalog, wherever a write enters. One that joins later gets it, and one that leaves is not
// missed.
func TestMembersShareACatalog(t *testing.T) {
	s := coordtest.NewServer()
	t.Cleanup(s.Close)
	dir := coordtest.Dir(t)
	var cats []*catalog.Catalog
	var nodes []*replica.Node
	for i := range 3 {
		name := fmt.Sprint("n", i)
		cat, err := catalog.Open(filepath.Join(dir, name), catalog.Options{Replicated: true, TrackDeletions: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := cat.Close(); err != nil {
				t.Error(err)
			}
		})
		var n *replica.Node
		joinWith(t, s, name, nil, func(c *Cluster) {
			if n, err = c.Share(cat, nil); err != nil {
				t.Fatal(err)
			}
		})
		t.Cleanup(n.Close)
		n.Start()
		cats, nodes = append(cats, cat), append(nodes, n)
		select {
		case <-n.CaughtUp():
		case <-time.After(time.Minute):
			t.Fatalf("not caught up: %+v", n.State())
		}
		if _, err := cat.PutItem(&grebev1.Item{Id: name}); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, func() bool {
		first := cats[0].Stats()
		return first.Version == 3 && cats[1].Stats() == first && cats[2].Stats() == first
	})
	nodes[0].Close()
	if _, err := cats[2].PutItem(&grebev1.Item{Id: "after"}); err != nil {
		t.Error(err)
	}
	waitFor(t, func() bool { _, ok := cats[1].Item("after"); return ok })
}

package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/cluster/coord/coordtest"
	"grebe/compute"
	"grebe/generate"
	"grebe/prompt"
)

// unpacked is a model without projections.
type unpacked struct{}

func (unpacked) Head([]int32) (compute.Linear, error) { return nil, nil }

// shop is a member whose models a and b generate items of the shared catalog.
type shop struct {
	*testNode
	catalog *catalog.Catalog
	keeper  *generate.Keeper
}

// openShop starts a member, and waits until it has the others' catalog.
func openShop(t *testing.T, s *coordtest.Server, dir, name string) *shop {
	t.Helper()
	cat, err := catalog.Open(filepath.Join(dir, name), catalog.Options{Replicated: true, TrackDeletions: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cat.Close(); err != nil {
			t.Error(err)
		}
	})
	b, err := prompt.New(prompt.Config{Codes: prompt.Codes{FirstToken: []int32{0, 20}, Size: []int32{20, 20}}}, nil, 100)
	if err != nil {
		t.Fatal(err)
	}
	k, err := generate.NewKeeper(cat, generate.KeeperOptions{Dir: filepath.Join(dir, name, "versions")},
		generate.Target{Name: "a", Generator: &generate.Generator{Prompt: b}, Model: unpacked{}},
		generate.Target{Name: "b", Generator: &generate.Generator{Prompt: b}, Model: unpacked{}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		k.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ran
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	sh := &shop{catalog: cat, keeper: k}
	sh.testNode = joinAs(t, s, &local{name: name, keeper: k}, nil, func(c *Cluster) {
		n, err := c.Share(cat, func() {})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(n.Close)
		n.Start()
	})
	waitFor(t, func() bool { return slices.Contains(slices.Collect(maps.Keys(sh.peers())), name) })
	return sh
}

// put adds an item with codes.
func (s *shop) put(t *testing.T, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	item := &grebev1.Item{Id: id, Codes: []int32{1, 2}}
	for { // a leader may just be elected; putting an item twice is putting it once
		err := s.catalog.ApplyWithin(ctx, "", []catalog.Op{{PutItem: item}})[0].Err
		if err == nil {
			return
		}
		if !errors.Is(err, catalog.ErrUnavailable) && !errors.Is(err, catalog.ErrUncertain) {
			t.Fatal(err)
		}
	}
}

// use returns what both models generate on each node.
func use(all []*shop) (out []string) {
	for _, s := range all {
		m := s.keeper.InUse()
		out = append(out, fmt.Sprint(m["a"], " ", m["b"]))
	}
	return out
}

// agree waits until all nodes generate the last version, which has all items, and returns its number.
func agree(t *testing.T, all []*shop, id string) string {
	t.Helper()
	waitFor(t, func() bool {
		for _, s := range all {
			if _, ok := s.catalog.Item(id); !ok || s.keeper.Versions()[0].Items != s.catalog.Stats().Items {
				return false
			}
		}
		last := all[0].keeper.Versions()[0].Version
		return generates(all, last, last)
	})
	return all[0].keeper.Versions()[0].Version
}

// generates reports whether all nodes generate a version with model a, and one with model b.
func generates(all []*shop, a, b string) bool {
	return !slices.ContainsFunc(use(all), func(now string) bool { return now != a+" "+b })
}

// A version is activated, and rolled back, on all nodes of a cluster, wherever that is asked for.
func TestVersionsAreActivatedEverywhere(t *testing.T) {
	s := coordtest.NewServer()
	t.Cleanup(s.Close)
	dir, ctx := coordtest.Dir(t), t.Context()
	var all []*shop
	for i := range 3 {
		all = append(all, openShop(t, s, dir, fmt.Sprint("n", i)))
	}
	for _, sh := range all {
		sh.waitUsable(t, 3)
	}
	all[0].put(t, "first")
	v1 := agree(t, all, "first")
	all[2].put(t, "second")
	v2 := agree(t, all, "second")
	want := func(what, version string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v; nodes generate %v, want %s", what, err, use(all), version)
		}
		waitFor(t, func() bool { return generates(all, version, version) }) // one that did not answer follows later
	}
	want("before", v2, nil)
	want("rollback", v1, all[1].Rollback(ctx, ""))
	want("activate", v2, all[2].Activate(ctx, "", v2, all[0].keeper.Versions()[0].Digest))
	want("activate the first", v1, all[0].Activate(ctx, "", v1, ""))
	if err := all[1].Activate(ctx, "", "999", ""); !errors.Is(err, generate.ErrNoVersion) {
		t.Errorf("no such version: %v", err)
	}
	if err := all[1].Activate(ctx, "", v2, "other"); !errors.Is(err, generate.ErrDigest) {
		t.Errorf("another digest: %v", err)
	}
	want("refused", v1, nil)
	if err := all[1].Activate(ctx, "b", v2, ""); err != nil {
		t.Fatalf("one model: %v, %v", err, use(all))
	}
	waitFor(t, func() bool { return generates(all, v1, v2) })

	// A node that joins later does not have the versions: it gets no requests while one of them is activated.
	late := openShop(t, s, dir, "late")
	waitFor(t, func() bool { return late.excluded() })
	want("follow", v2, all[0].Activate(ctx, "", generate.Auto, ""))
	waitFor(t, func() bool { return !late.excluded() })
	for _, sh := range all {
		sh.waitUsable(t, 4)
	}
	if err := all[0].Activate(ctx, "", v1, ""); err == nil || !strings.Contains(err.Error(), "late") {
		t.Errorf("a version that a node does not have: %v", err)
	}
	want("refused by one", v2, nil)
}

// A version is activated on all nodes also after the coordinator has lost what was activated before.
func TestActivationAfterTheKeyIsLost(t *testing.T) {
	s := coordtest.NewServer()
	t.Cleanup(s.Close)
	dir, ctx := coordtest.Dir(t), t.Context()
	all := []*shop{openShop(t, s, dir, "n0"), openShop(t, s, dir, "n1")}
	for _, sh := range all {
		sh.waitUsable(t, 2)
	}
	all[0].put(t, "first")
	v1 := agree(t, all, "first")
	all[0].put(t, "second")
	v2 := agree(t, all, "second")
	if err := all[0].Activate(ctx, "", v1, ""); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return generates(all, v1, v1) })
	e, err := all[0].cfg.Coordinator.Get(ctx, activeKey)
	if err == nil {
		err = all[0].cfg.Coordinator.Delete(ctx, activeKey, e.Version)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := all[1].Activate(ctx, "", v2, ""); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return generates(all, v2, v2) })
}

// waitUsable waits until so many nodes get requests.
func (n *testNode) waitUsable(t *testing.T, want int) {
	t.Helper()
	waitFor(t, func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		usable := 0
		for _, m := range n.members.Members() {
			if m.Usable() && n.known[m.ID] != nil {
				usable++
			}
		}
		return usable == want
	})
}

package cluster

import (
	"net"
	"strings"
	"testing"

	"grebe/cluster/coord/coordtest"
	"grebe/cluster/member"
	"grebe/route"
)

// Members that speak a version more than others are members like all others.
func TestMixedVersions(t *testing.T) {
	t.Parallel()
	s := coordtest.NewServer()
	t.Cleanup(s.Close)
	older := joinWith(t, s, "n1", nil, func(c *Cluster) { c.speaks = member.Protocol{Min: 1, Max: 1} })
	newer := joinWith(t, s, "n2", nil, func(c *Cluster) { c.speaks = member.Protocol{Min: 1, Max: 2} })
	older.waitKnown(t, 2)
	newer.waitKnown(t, 2)
	by := map[string]int{}
	for range 6 {
		r, err := older.rank(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		by[r.Node]++
	}
	if len(by) != 2 {
		t.Errorf("6 requests in turn were answered by %v", by)
	}
}

// A process that has no version in common with a member does not join, and says why.
func TestStartsOfOtherVersionsAreRefused(t *testing.T) {
	t.Parallel()
	s := coordtest.NewServer()
	t.Cleanup(s.Close)
	join(t, s, "n1", nil).waitKnown(t, 1)
	open := func(name string) *Cluster {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		c, err := Open(Config{Name: "test", Node: name, Listener: l, Peer: l.Addr().String(), Coordinator: s.Open(),
			Routing: route.RoundRobin,
			Models:  []Model{{Name: "m", Group: "m", Numerics: "test"}}, Users: 64, Items: 64})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		c.speaks = member.Protocol{Min: 8, Max: 9}
		return c
	}
	err := open("n2").Start(&local{})
	const want = "n1 speaks version 1 of the protocol between members and n2 versions 8 to 9: upgrade one release at a " +
		"time"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
	if err := open("n1").Start(&local{}); err != nil { // its own older process is no reason
		t.Errorf("a process that replaces its older self: %v", err)
	}
}

// A member that registered all the same, because the two started at the same moment, gets nothing and is shown.
func TestMembersOfOtherVersionsGetNothing(t *testing.T) {
	t.Parallel()
	s := coordtest.NewServer()
	t.Cleanup(s.Close)
	n1 := join(t, s, "n1", nil)
	n1.waitKnown(t, 1)
	r := n1.describe()
	r.ID, r.Boot, r.Peer, r.Protocol = "n9", "other", "127.0.0.1:1", member.Protocol{Min: 8, Max: 9}
	data, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	c := s.Open()
	t.Cleanup(func() { _ = c.Close() })
	if _, err := c.Swap(t.Context(), nodesKey+"n9", data, 0, nil); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return len(n1.Status().Nodes) == 2 })
	n9 := n1.Status().Nodes[1]
	if !strings.Contains(n9.Refused, "n9 speaks versions 8 to 9") || n9.ProtocolMin != 8 || n9.ProtocolMax != 9 {
		t.Errorf("the status says of it: %+v", n9)
	}
	waitFor(t, func() bool { _, err := n1.dial("n9", "127.0.0.1:1"); return err != nil }) // the catalog's connections
	for range 4 {
		if r, err := n1.rank(t.Context()); err != nil || r.Node != "n1" {
			t.Fatalf("answered by %v: %v", r, err)
		}
	}
	if n := n1.Status().Nodes[1].Routed; n != 0 {
		t.Errorf("%d requests were sent to it", n)
	}
}

package replica

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/catalog/redisusers"
	"grebe/embed/redisserver"
)

// heard reports whether a node knows that a user's KV must go: its subscribers heard of the deletion, its catalog lists
// the deletion from before its start, or it copied the leader's catalog, after which the KV of all users goes.
func (p *process) heard(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.deleted, id) || slices.Contains(p.catalog.PendingDeletions(), id) || p.replaced > 0
}

// Users that lie in Redis are deleted on all nodes, so that their KV goes everywhere: also on a node that was down
// meanwhile.
func TestDeletionsOfUsersInRedis(t *testing.T) {
	s, err := redisserver.Start()
	if errors.Is(err, redisserver.ErrAbsent) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	w, coordinator := virtual(t)
	defer coordinator.Close()
	defer w.close()
	store := redisusers.Open(redisusers.Config{Addresses: []string{s.Addr}, Prefix: filepath.Base(t.Name()) + ":"})
	defer store.Close()
	nodes := []*process{w.start("a"), w.start("b"), w.start("c")}
	w.leader()
	w.settle()
	users := catalog.NewUsers(store, nodes[1].catalog)
	for _, id := range []string{"u", "v"} {
		put := catalog.Op{PutUser: &grebev1.User{Id: id, Text: proto.String("a")}}
		if res := users.ApplyWithin(t.Context(), "", []catalog.Op{put})[0]; res.Err != nil || !res.Created {
			t.Fatalf("%+v", res)
		}
	}
	remove := func(id string) {
		t.Helper()
		if res := users.ApplyWithin(t.Context(), "", []catalog.Op{{DeleteUser: id}})[0]; res.Err != nil || !res.Changed {
			t.Fatalf("delete %s: %+v", id, res)
		}
		if _, ok, err := users.UserWithin(t.Context(), id); ok || err != nil {
			t.Errorf("%s is still there: %v", id, err)
		}
	}
	await := func(p *process, id string) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !p.heard(id); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("node %s has not heard that %s is deleted", p.id, id)
			}
		}
	}
	remove("u")
	for _, p := range nodes {
		await(p, "u")
		p.mu.Lock()
		copied := p.replaced > 0
		p.mu.Unlock()
		if copied {
			t.Errorf("node %s copied a catalog: it would count as having heard of everything", p.id)
		}
	}
	victim := nodes[2] // neither the leader, whose end means an election, nor the node of users
	if victim == w.leader() {
		victim = nodes[0]
	}
	victim.kill()
	remove("v")
	await(w.start(victim.id), "v")
}

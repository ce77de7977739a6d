package replica

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	clusterv1 "grebe/api/grebe/cluster/v1"
	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/cluster/coord"
	"grebe/cluster/coord/coordtest"
	"grebe/cluster/leader"
)

// three starts three nodes and waits until all are in sync.
func three(w *world) (nodes []*process) {
	for _, id := range []string{"a", "b", "c"} {
		nodes = append(nodes, w.start(id))
	}
	w.leader()
	w.settle()
	return nodes
}

// others returns the running nodes but one.
func (w *world) others(p *process) []*process {
	return slices.DeleteFunc(w.running(), func(q *process) bool { return q == p })
}

// Writes enter at any node, and are seen at all nodes in sync when they are acknowledged.
func TestWritesEnterAnywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := virtual(t)
		defer s.Close()
		defer w.close()
		nodes := []*process{w.start("a"), w.start("b"), w.start("c")}
		for _, p := range nodes {
			<-p.CaughtUp()
		}
		w.leader()
		w.settle()
		for i := range 30 {
			p := nodes[i%3]
			id := fmt.Sprint(i)
			if err := put(p.catalog, id, "text"); err != nil {
				t.Fatal(err)
			}
			for _, q := range nodes {
				if _, ok := q.catalog.Item(id); !ok {
					t.Fatalf("%s does not see a write that %s has acknowledged", q.id, p.id)
				}
			}
		}
		for i, p := range nodes {
			u, created, _, err := p.catalog.AppendEvents("u", []*grebev1.Event{{Item: "1"}})
			if err != nil || created != (i == 0) || len(u.Events) != i+1 {
				t.Errorf("events: %v, created %v, %v", u, created, err)
			}
		}
		w.settle()
		if v := nodes[2].catalog.Stats().Version; v != 33 {
			t.Errorf("version %d after 33 changes", v)
		}
		time.Sleep(2 * time.Second)
		var head Head
		e, err := nodes[0].client.Get(t.Context(), headKey)
		f, derr := leader.Decode(e.Data)
		err = errors.Join(err, derr, json.Unmarshal(f.Data, &head))
		if err != nil || head.Version != 33 || head.Index != nodes[1].State().Index {
			t.Errorf("%s is %+v, %v", headKey, head, err)
		}
	})
}

// A killed leader is replaced. What it acknowledged is there, and it follows when it returns.
func TestLeaderIsKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := virtual(t)
		defer s.Close()
		defer w.close()
		three(w)
		for i := range 6 {
			old := w.leader()
			if err := put(w.others(old)[0].catalog, fmt.Sprint("before", i), ""); err != nil {
				t.Fatal(err)
			}
			old.kill()
			began := time.Now()
			if err := put(w.running()[0].catalog, fmt.Sprint("after", i), ""); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took > 2*w.ttl {
				t.Errorf("the first write after the leader's death takes %v", took)
			}
			<-w.start(old.id).CaughtUp()
			w.settle()
		}
		for _, p := range w.running() {
			for i := range 6 {
				for _, id := range []string{"before", "after"} {
					if _, ok := p.catalog.Item(fmt.Sprint(id, i)); !ok {
						t.Errorf("%s lost %s%d", p.id, id, i)
					}
				}
			}
			if p.replaced > 0 {
				t.Errorf("%s took a snapshot", p.id)
			}
		}
	})
}

// isolate ends all connections of others to a node. It still reaches the coordinator.
func (p *process) isolate() {
	p.w.mu.Lock()
	p.w.cut[p.id] = true
	p.w.mu.Unlock()
	p.server.Stop()
	p.served.Wait()
}

// A write that only the leader stored is not acknowledged and not shown. It goes when the node returns under another
// leader.
func TestUnacknowledgedTail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := virtual(t)
		defer s.Close()
		defer w.close()
		three(w)
		old := w.leader()
		if err := put(old.catalog, "kept", ""); err != nil {
			t.Fatal(err)
		}
		old.isolate()
		if err := put(old.catalog, "tail", ""); !errors.Is(err, catalog.ErrUncertain) {
			t.Errorf("a write that nobody else stores: %v", err)
		}
		if err := put(old.catalog, "next", ""); !errors.Is(err, catalog.ErrUnavailable) ||
			errors.Is(err, catalog.ErrUncertain) {
			t.Errorf("the next write: %v", err)
		}
		if err := put(w.others(old)[0].catalog, "other", ""); !errors.Is(err, catalog.ErrUnavailable) {
			t.Errorf("a write at a node that does not reach the leader: %v", err)
		}
		if _, ok := old.catalog.Item("tail"); ok {
			t.Error("it is shown")
		}
		old.kill()
		w.mu.Lock()
		w.cut = map[string]bool{}
		w.mu.Unlock()
		if err := put(w.leader().catalog, "new", ""); err != nil {
			t.Fatal(err)
		}
		back := w.start(old.id)
		<-back.CaughtUp()
		w.settle()
		if _, ok := back.catalog.Item("tail"); ok || back.replaced != 1 {
			t.Errorf("the tail is there: %v, after %d snapshots", ok, back.replaced)
		}
		for _, id := range []string{"kept", "new"} {
			if _, ok := back.catalog.Item(id); !ok {
				t.Errorf("%s is lost", id)
			}
		}
	})
}

// If the others come back to the same leader, the write that waited takes effect, and writes go on.
func TestWaitingWriteIsCommittedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := virtual(t)
		defer s.Close()
		defer w.close()
		three(w)
		old := w.leader()
		followers := w.others(old)
		for _, p := range followers {
			p.kill()
			w.member(p.id, p) // still
		}
		if err := put(old.catalog, "waits", ""); !errors.Is(err, catalog.ErrUncertain) {
			t.Fatalf("a write without followers: %v", err)
		}
		w.start(followers[0].id)
		for _, ok := old.catalog.Item("waits"); !ok; _, ok = old.catalog.Item("waits") {
			time.Sleep(10 * time.Millisecond)
		}
		if err := put(old.catalog, "next", ""); err != nil {
			t.Error(err)
		}
		w.start(followers[1].id)
		w.settle()
	})
}

// A cluster of one node takes writes. It grows without a loss.
func TestGrowth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := virtual(t)
		defer s.Close()
		defer w.close()
		a := w.start("a")
		for i := range 20 {
			if err := put(a.catalog, fmt.Sprint(i), "text"); err != nil {
				t.Fatal(err)
			}
		}
		for _, id := range []string{"b", "c"} {
			p := w.start(id)
			<-p.CaughtUp()
			w.settle()
			if p.replaced != 0 {
				t.Error("an empty catalog counts as replaced")
			}
		}
	})
}

// A node that was away for longer than the log goes back takes a snapshot.
func TestFarBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := virtual(t)
		defer s.Close()
		defer w.close()
		w.bytes = 20_000
		three(w)
		c := w.others(w.leader())[0]
		for _, want := range []int{0, 1} {
			c.kill()
			for i := range 10 + want*300 {
				if err := put(w.leader().catalog, fmt.Sprint(i), fmt.Sprint(want)); err != nil {
					t.Fatal(err)
				}
			}
			c = w.start(c.id)
			<-c.CaughtUp()
			if c.replaced != want {
				t.Errorf("%d snapshots, want %d", c.replaced, want)
			}
			w.settle()
		}
	})
}

// A node that was down hears of deletions before it has caught up: from the log, or from the differences to a snapshot.
func TestDeletionWhileDown(t *testing.T) {
	for _, swept := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w, s := virtual(t)
			defer s.Close()
			defer w.close()
			three(w)
			for _, id := range []string{"gone", "stays"} {
				if _, err := w.leader().catalog.PutUser(&grebev1.User{Id: id}); err != nil {
					t.Fatal(err)
				}
			}
			w.settle()
			c := w.others(w.leader())[0]
			c.kill()
			for _, id := range []string{"gone", "unknown"} {
				if _, err := w.leader().catalog.DeleteUser(id); err != nil {
					t.Fatal(err)
				}
			}
			if swept {
				time.Sleep(time.Minute)
			}
			c = w.start(c.id)
			<-c.CaughtUp()
			want := []string{"gone", "unknown"}
			if swept {
				want = want[:1] // nobody knows the other's name any more: Replaced is called
			}
			if !slices.Equal(c.deleted, want) || (c.replaced == 1) != swept {
				t.Errorf("swept %v: heard of %v, %d snapshots", swept, c.deleted, c.replaced)
			}
			for _, id := range want {
				if c.catalog.PendingDeletion(id) == 0 {
					t.Errorf("the deletion of %s is not pending", id)
				}
			}
			w.settle()
		})
	}
}

// stale makes a node write in a term that is over, as a process does that was stopped after it looked at the clock.
type stale struct {
	*Node
	l *leading
}

func (s stale) Term() (uint64, error) { return s.l.term, nil }

// A leader that lost its term cannot acknowledge a write.
func TestPausedLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := virtual(t)
		defer s.Close()
		defer w.close()
		three(w)
		old := w.leader()
		l := old.leading
		old.client.(*coordtest.Client).Stall()
		for w.leader() == old {
			time.Sleep(time.Millisecond)
		}
		now := w.leader()
		old.catalog.Attach(stale{old.Node, l})
		if err := put(old.catalog, "split", ""); !errors.Is(err, catalog.ErrUncertain) {
			t.Errorf("a write in an old term: %v", err)
		}
		if err := put(now.catalog, "new", ""); err != nil {
			t.Fatal(err)
		}
		// A follower refuses the old leader's record, also after a restart: it has the new term on disk.
		f := w.others(now)[0]
		if f == old {
			f = w.others(now)[1]
		}
		f.kill()
		f = w.start(f.id)
		<-f.CaughtUp()
		state, _ := f.catalog.LogState()
		records, err := old.catalog.Records(state.Last.Index, 1)
		if err == nil && len(records) > 0 {
			records[0].Index = state.Last.Index + 1
			if err := f.catalog.Extend(t.Context(), records); !errors.Is(err, catalog.ErrGap) {
				t.Errorf("a record of an old term: %v", err)
			}
		}
		old.catalog.Attach(old.Node)
		old.client.(*coordtest.Client).Resume()
		w.settle()
		if _, ok := old.catalog.Item("split"); ok || old.replaced != 1 {
			t.Errorf("the old leader's write is there: %v, after %d snapshots", ok, old.replaced)
		}
	})
}

// A stream that a follower has given up reaches the leader late, after the one that it uses. The follower stays in
// sync.
func TestLateStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := virtual(t)
		defer s.Close()
		defer w.close()
		three(w)
		old, follower := w.leader(), w.others(w.leader())[0]
		conn, err := w.dial(follower.id, old.id, old.ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := clusterv1.NewReplicaClient(conn).Pull(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&clusterv1.PullRequest{Node: follower.id, Place: follower.place()}); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		cancel()
		for i := range 5 {
			if err := put(follower.catalog, fmt.Sprint("after", i), ""); err != nil {
				t.Fatal(err)
			}
			time.Sleep(w.ttl)
		}
		w.settle()
	})
}

// alone makes a catalog that never was in a cluster, with one item.
func (w *world) alone(id, item string) {
	w.t.Helper()
	c, err := catalog.Open(filepath.Join(w.dir, id), catalog.Options{})
	if err == nil {
		err = errors.Join(put(c, item, ""), c.Close())
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// A new cluster takes the catalog that one of its nodes has. A second one is not touched.
func TestCatalogsFromBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := virtual(t)
		defer s.Close()
		defer w.close()
		w.alone("b", "from b")
		nodes := three(w)
		for _, p := range nodes {
			if _, ok := p.catalog.Item("from b"); !ok {
				t.Errorf("%s lacks it", p.id)
			}
		}
		w.alone("d", "from d")
		d := w.start("d")
		if err := d.Await(t.Context()); err == nil || !strings.Contains(err.Error(), "start it with an empty data_dir") {
			t.Errorf("a node with another catalog gets %v", err)
		}
		if _, ok := d.catalog.Item("from d"); !ok {
			t.Error("another catalog was replaced")
		}
		select {
		case <-d.CaughtUp():
			t.Error("it counts as caught up")
		default:
		}
		if err := put(d.catalog, "x", ""); err == nil {
			t.Error("it takes writes, which it does not see")
		}
		d.kill()
		w.settle()
	})
}

// A coordinator that lost its data does not cost the catalog's: the node with the longest log leads, in a higher term.
func TestCoordinatorLosesItsData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := virtual(t)
		defer s.Close()
		defer w.close()
		nodes := three(w)
		for i := range 5 {
			w.leader().kill()
			for _, p := range nodes {
				if w.peers()[p.id] == "" {
					w.start(p.id)
				}
			}
			if err := put(w.leader().catalog, fmt.Sprint(i), ""); err != nil {
				t.Fatal(err)
			}
		}
		w.settle()
		c := w.others(w.leader())[0]
		c.kill()
		if err := put(w.leader().catalog, "last", ""); err != nil {
			t.Fatal(err)
		}
		before, _ := w.leader().catalog.LogState()
		for _, p := range w.running() {
			p.kill()
		}
		s2 := coordtest.NewServer()
		defer s2.Close()
		w.open = func() coord.Coordinator { return s2.Open() }
		three(w)
		for _, p := range w.running() {
			if _, ok := p.catalog.Item("last"); !ok {
				t.Errorf("%s lost the last write", p.id)
			}
		}
		if after, _ := w.leader().catalog.LogState(); after.Last.Term <= before.Last.Term {
			t.Errorf("term %d after %d", after.Last.Term, before.Last.Term)
		}
	})
}

// A write ends with its caller's deadline.
func TestWritesEndInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := virtual(t)
		defer s.Close()
		defer w.close()
		three(w)
		old := w.leader()
		old.kill()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		began := time.Now()
		res := w.running()[0].catalog.ApplyWithin(ctx, "", []catalog.Op{{DeleteItem: "x"}})
		if took := time.Since(began); res[0].Err == nil || took > 350*time.Millisecond {
			t.Errorf("%v after %v", res[0].Err, took)
		}
	})
}

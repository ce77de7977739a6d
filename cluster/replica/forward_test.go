package replica

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	clusterv1 "grebe/api/grebe/cluster/v1"
	"grebe/catalog"
	"grebe/cluster/leader"
)

// silentLeader takes whole writes and breaks the connection instead of a reply.
type silentLeader struct {
	clusterv1.UnimplementedReplicaServer
	writes atomic.Int32
	answer error
}

func (s *silentLeader) Write(stream clusterv1.Replica_WriteServer) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if m.Last {
			s.writes.Add(1)
			return s.answer
		}
	}
}

// member makes a process a member that others know; nil: it is none any more.
func (w *world) member(id string, p *process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p == nil {
		delete(w.nodes, id)
	} else {
		w.nodes[id] = p
	}
}

// A write with an unknown outcome is sent again only if that does no harm.
func TestUnknownOutcomes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := virtual(t)
		defer s.Close()
		defer w.close()
		ghost := &silentLeader{answer: status.Error(codes.Unavailable, "gone")}
		server, ln := grpc.NewServer(), bufconn.Listen(1<<16)
		clusterv1.RegisterReplicaServer(server, ghost)
		go func() { _ = server.Serve(ln) }()
		defer server.Stop()
		w.member("ghost", &process{w: w, id: "ghost", ln: ln})
		defer w.member("ghost", nil)
		client := w.open()
		defer client.Close()
		record := []byte(`{"term":1,"holder":"ghost/x","beat":1}`)
		if _, err := client.Swap(t.Context(), electionKey, record, 0, nil); err != nil {
			t.Fatal(err)
		}
		set := inSync{Catalog: "another", Members: []string{"ghost"}}
		if _, err := client.Swap(t.Context(), inSyncKey, leader.Fenced{Term: 1, Data: set.encode()}.Encode(), 0,
			nil); err != nil {
			t.Fatal(err)
		}
		p := w.start("a")
		large := make([]byte, 3*piece)
		if _, err := p.Forward(t.Context(), large, false); !errors.Is(err, catalog.ErrUncertain) || ghost.writes.Load() != 1 {
			t.Errorf("not repeatable: %v after %d writes", err, ghost.writes.Load())
		}
		if _, err := p.Forward(t.Context(), large, true); !errors.Is(err, catalog.ErrUncertain) || ghost.writes.Load() < 3 {
			t.Errorf("repeatable: %v after %d writes", err, ghost.writes.Load())
		}
		server.Stop()
		synctest.Wait() // until this end has seen that the connection is closed: a write before that has an unknown outcome
		before := ghost.writes.Load()
		if _, err := p.Forward(t.Context(), large, false); !errors.Is(err, catalog.ErrUnavailable) ||
			errors.Is(err, catalog.ErrUncertain) {
			t.Errorf("no connection: %v", err)
		}
		for away, says := range map[bool]string{
			false: "node ghost, which leads the catalog, does not answer; another node leads within seconds: try again",
			true:  "does not answer; the coordinator does not answer, so no node can take the lead: bring it back",
		} {
			p.away.Store(away)
			_, err := p.Forward(t.Context(), large, true)
			if err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "rpc error") {
				t.Errorf("coordinator away %v: %v", away, err)
			}
		}
		if ghost.writes.Load() != before {
			t.Error("a write without a connection")
		}
	})
}

package leader

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"grebe/cluster/coord"
	"grebe/cluster/coord/coordtest"
	"grebe/cluster/coord/embedded"
	"grebe/cluster/coord/etcd"
)

// The same history as in virtual time, on a real etcd: fewer faults, and real scheduling.
func TestPausedLeaderCannotWriteToEtcd(t *testing.T) {
	t.Parallel()
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: coordtest.Dir(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	s := &scene{ttl: 300 * time.Millisecond, clients: 3, events: 30, rng: rand.New(rand.NewPCG(1, 1)), t: t,
		open: func() coord.Coordinator {
			c, err := etcd.Open(etcd.Options{Endpoints: []string{server.Addr()}, Root: "/grebe/"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			return c
		}}
	ops := s.run()
	t.Logf("%d pauses and kills: %d terms, %d operations", s.events, len(s.terms), len(ops))
	if !porcupine.CheckOperations(model, ops) {
		t.Error("porcupine rejects the history")
	}
	if len(s.terms) < 3 {
		t.Errorf("only %d terms", len(s.terms))
	}
}

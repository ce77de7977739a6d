package leader

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"

	"grebe/cluster/coord"
	"grebe/cluster/coord/kube"
	"grebe/cluster/coord/kube/kubetest"
)

// The same history on Kubernetes' protocol, in virtual time: a leader that is paused beyond its term cannot write.
func TestPausedLeaderCannotWriteToKubernetes(t *testing.T) {
	for seed := range uint64(2) {
		var ops []porcupine.Operation
		var terms int
		synctest.Test(t, func(t *testing.T) {
			net := kubetest.NewNetwork(t, kubetest.New())
			s := &scene{ttl: 3 * time.Second, clients: 3, events: 100, rng: rand.New(rand.NewPCG(seed, 5)), t: t,
				open: func() coord.Coordinator {
					o := kube.Options{Server: "kubernetes:443", Namespace: "shop", Cluster: "c1", Dial: net.Link().Dial}
					c, err := kube.Open(o)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = c.Close() })
					return c
				}}
			ops, terms = s.run(), len(s.terms)
		})
		t.Logf("100 pauses and kills: %d terms, %d operations", terms, len(ops))
		if !porcupine.CheckOperations(model, ops) {
			t.Errorf("seed %d: porcupine rejects the history", seed)
		}
		if terms < 10 {
			t.Errorf("only %d terms", terms)
		}
	}
}

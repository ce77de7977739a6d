package main

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"sync"
	"syscall"
	"testing"
	"time"

	"grebe/internal/config"
	"grebe/shop/demo"
)

// service is the addresses of pods behind the chart's service for clients, as they change.
type service struct {
	mu   sync.Mutex
	pods []*podProcess
}

func (s *service) set(pods ...*podProcess) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pods = pods
}

// entry returns the address of a pod that is behind the service now.
func (s *service) entry(r *rand.Rand) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pods[r.IntN(len(s.pods))].listen
}

// A cluster as the chart describes it, in processes: three nodes and two routers, certificates for each pod, and
// Kubernetes as the coordinator. It passes the trials 1 to 4 of a cluster (docs/cluster.md), and an upgrade of all pods
// under load.
func TestTrialChart(t *testing.T) {
	k := newKubelet(t, "demo")
	set, deployment := k.find("StatefulSet", ""), k.find("Deployment", "")
	var nodes, routers []*podProcess
	for i := range set.Spec.Replicas {
		nodes = append(nodes, k.schedule(set, fmt.Sprint(set.Metadata.Name, "-", i)))
	}
	for i := range deployment.Spec.Replicas {
		routers = append(routers, k.schedule(deployment, fmt.Sprintf("%s-5d8f-%d", deployment.Metadata.Name, i)))
	}
	if len(nodes) != 3 || len(routers) != 2 {
		t.Fatalf("%d nodes and %d routers", len(nodes), len(routers))
	}
	for _, p := range k.pods {
		k.run(p)
	}
	k.await(k.pods...)
	k.settled(time.Minute, k.nodes...)
	k.sameModels()
	pool := questions(t, long(1000, 40), 31)

	// 1: any entry, the same bits
	by, cached := k.sameBits(pool)
	for _, r := range routers {
		if by[r.id] != 0 {
			t.Errorf("the router %s answered %d requests itself", r.id, by[r.id])
		}
	}
	if cached == 0 {
		t.Error("nothing was reused")
	}

	behind := &service{}
	behind.set(routers...)
	every := 2 * k.half(pool)

	// 2: a node is killed, clients enter at routers
	load := startTraffic(t, every, pool, behind.entry, nil)
	for i := range long(20, 1) {
		k.crash(nodes[i%3])
	}
	asked := len(load.stop())

	// 3: the API server fails
	load = startTraffic(t, every, pool, behind.entry, nil)
	boots := k.boots()
	k.api.Fail(1 << 30)
	time.Sleep(long(time.Minute, 2*time.Second))
	for _, p := range k.pods {
		if !p.ready() {
			t.Errorf("%s is not ready while the API server is away", p.id)
		}
	}
	k.api.Fail(0)
	k.settled(time.Minute, k.nodes...)
	if again := k.boots(); !reflect.DeepEqual(boots, again) {
		t.Errorf("processes restarted: %v, before %v", again, boots)
	}
	asked += len(load.stop())

	// 4: a router is killed, clients ask the other one once more
	load = startTraffic(t, every, pool, anyOf(routers[0].member), anyOf(routers[1].member))
	for range long(20, 1) {
		k.crash(routers[0])
	}
	asked += len(load.stop())

	// an upgrade of all pods
	load = startTraffic(t, every, pool, behind.entry, nil)
	k.upgrade(nodes, routers, behind)
	asked += len(load.stop())
	k.running()
	t.Logf("%d requests: none failed, no answer was wrong", asked)
	if k.api.Count("create configmaps") == 0 || k.api.Count("create leases") == 0 {
		t.Error("nobody stored anything in the API server")
	}
}

// sameModels checks that the chart's demo has the model that answers are compared with.
func (k *kubelet) sameModels() {
	k.Helper()
	want, err := config.Load(config.Source{File: filepath.Join(demoData, demo.ConfigFile)})
	if err != nil {
		k.Fatal(err)
	}
	got, err := config.Load(config.Source{File: filepath.Join(k.pods[0].dirs["/etc/grebe/config"], "node.yaml"), Env: k.pods[0].env})
	if err != nil {
		k.Fatal(err)
	}
	if !reflect.DeepEqual(got.Models, want.Models) {
		k.Fatalf("deploy/helm/grebe/ci/demo.yaml has the models\n%+v\nwant those of the demo\n%+v", got.Models, want.Models)
	}
}

// crash kills a process. Its container is started again in the same pod.
func (k *kubelet) crash(p *podProcess) {
	k.Helper()
	k.end(p.member, syscall.SIGKILL)
	k.run(p)
	k.await(p)
	k.settled(time.Minute, k.nodes...)
}

// upgrade replaces all pods: those of the StatefulSet one after the other, from the last to the first, those of the
// Deployment by new ones beside them. The next one is stopped when the one before is ready; the chart's minReadySeconds
// are not waited for.
func (k *kubelet) upgrade(nodes, routers []*podProcess, behind *service) {
	k.Helper()
	for i := len(nodes) - 1; i >= 0; i-- {
		old := nodes[i]
		k.stop(old)
		nodes[i] = k.schedule(old.of, old.id)
		k.run(nodes[i])
		k.await(nodes[i])
	}
	now := append([]*podProcess(nil), routers...)
	for i, old := range routers {
		next := k.schedule(old.of, fmt.Sprintf("%s-77c4-%d", old.of.Metadata.Name, i))
		k.run(next)
		k.await(next)
		now[i] = next
		behind.set(now...)
		k.stop(old)
	}
	k.settled(time.Minute, k.nodes...)
}

package main

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"sync"
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
// Kubernetes as the coordinator. It passes the trials 1 to 4 of a cluster (docs/results/2026-11-17-cluster.md), and an
// upgrade of all pods under load.
func TestTrialChart(t *testing.T) {
	k := newKubelet(t, "demo")
	k.install()
	nodes, routers := k.role("node", 3), k.role("router", 2)
	all := questions(t, long(10_000, 40), 31)
	k.await(k.pods...)
	k.settled(time.Minute, k.nodes...)
	k.sameModels()

	// 1: any entry, the same bits
	by, cached := k.sameBits(all)
	for _, r := range routers {
		if by[r.id] != 0 {
			t.Errorf("the router %s answered %d requests itself", r.id, by[r.id])
		}
	}
	if cached == 0 {
		t.Error("nothing was reused")
	}
	pool := all[:long(300, 40)]
	every := k.half(pool)
	if !trialFull() {
		every *= 2 // other tests run beside this one
	}

	// 2: nodes are killed, clients enter at routers
	k.killed(long(100, 1), long(2*time.Second, 0), every, pool, members(nodes), members(routers))

	// 3: the API server fails and hangs, then all leases are gone
	behind := &service{}
	behind.set(routers...)
	k.apiAway(every, pool, behind)

	// 4: a router is killed, clients ask the other one once more
	first, second := routers[0].member, routers[1].member
	k.routerKilled(long(20, 1), long(time.Second, 0), every, pool, first, second, members(nodes)...)
	k.await(routers[0])
	k.settled(time.Minute, k.nodes...)

	// an upgrade of all pods
	load := startTraffic(t, every, pool, behind.entry, nil)
	k.upgrade(nodes, routers, behind)
	t.Logf("an upgrade of all pods, %d requests: none failed, no answer was wrong", len(load.stop()))
	k.running()
	if k.api.Count("create configmaps") == 0 || k.api.Count("create leases") == 0 {
		t.Error("nobody stored anything in the API server")
	}
}

// apiAway lets the API server be away in all ways, and has it forget all leases. Pods stay ready.
func (k *kubelet) apiAway(every time.Duration, pool []*question, behind *service) {
	k.Helper()
	if trialFull() {
		k.warm(pool)
	}
	faults := apiFaults(k.api, k.link)
	var worst time.Duration
	for _, f := range faults[:long(len(faults), 1)] {
		up := f.up
		f.up = func() {
			for _, p := range k.pods {
				if !p.ready() {
					k.Errorf("%s: %s is not ready", f.name, p.id)
				}
			}
			up()
		}
		worst = max(worst, k.away(f, long(time.Minute, 2*time.Second), every, pool, behind.entry))
	}
	if !trialFull() {
		return
	}
	gone := func() int { return k.api.Delete("leases") }
	there := func() string {
		if n := len(k.api.Names("leases")); n < len(k.nodes) {
			return fmt.Sprintf("%d of %d processes have a lease", n, len(k.nodes))
		}
		return ""
	}
	worst = max(worst, k.leasesGone(gone, there, every, pool, behind.entry))
	if worst > 5*time.Second {
		k.Errorf("registered after %v, want at most 5 s", worst)
	}
}

// The chart's pods that hold KV and compute nothing, beside two nodes with little memory: the same bits. Killing one
// costs computation alone.
func TestTrialChartKV(t *testing.T) {
	if !trialFull() {
		t.Skip("it takes minutes: GREBE_TRIAL=full runs it, and TestTrialKillKV has a short form without the chart")
	}
	k := newKubelet(t, "kv")
	k.install()
	nodes, holders := k.role("node", 2), k.role("kv", 2)
	all := questions(t, 10_000, 32)
	k.await(k.pods...)
	k.settled(time.Minute, k.nodes...)
	k.sameModels()
	by, _ := k.sameBits(all)
	if by[nodes[0].id]+by[nodes[1].id] != len(all) {
		t.Errorf("a pod that computes nothing answered: %v", by)
	}
	for _, p := range holders {
		n, fetched, sent := k.held(p.member)
		t.Logf("%s holds %d entries, fetched %d blocks and sent %d", p.id, n, fetched, sent)
		if n == 0 || fetched == 0 || sent == 0 {
			t.Errorf("%s is of no use", p.id)
		}
	}
	pool := all[:500]
	k.killed(20, 2*time.Second, k.half(pool), pool, members(holders), k.nodes)
}

// After a node of the chart is killed, the tail of the answers' times comes back.
func TestTrialChartTail(t *testing.T) {
	if !trialFull() {
		t.Skip("measures time: GREBE_TRIAL=full, or `make cluster-test`")
	}
	k := newKubelet(t, "demo")
	k.extra = []string{"GREBE_DEVICE=none"}
	k.install()
	nodes, routers := k.role("node", 3), k.role("router", 2)
	k.await(k.pods...)
	k.settled(time.Minute, k.nodes...)
	k.tailAfterKill(questions(t, 200, 4, "device=none"), nodes[2].member, members(routers)...)
}

// sameModels checks that the chart's demo has the model that answers are compared with.
func (k *kubelet) sameModels() {
	k.Helper()
	want, err := config.Load(config.Source{File: filepath.Join(demoData, demo.ConfigFile)})
	if err != nil {
		k.Fatal(err)
	}
	got, err := config.Load(config.Source{File: filepath.Join(k.pods[0].dirs["/etc/grebe/config"], "node.yaml"),
		Env: k.pods[0].env})
	if err != nil {
		k.Fatal(err)
	}
	if !reflect.DeepEqual(got.Models, want.Models) {
		k.Fatalf("deploy/helm/grebe/ci/demo.yaml has the models\n%+v\nwant those of the demo\n%+v", got.Models, want.Models)
	}
}

// upgrade replaces all pods: those of the StatefulSet one after the other, from the last to the first, those of the
// Deployment by new ones beside them. The next one is stopped when the one before is ready. Instead of the chart's
// minReadySeconds, which give others the time to see a new node, it waits until they do.
func (k *kubelet) upgrade(nodes, routers []*podProcess, behind *service) {
	k.Helper()
	for i := len(nodes) - 1; i >= 0; i-- {
		old := nodes[i]
		k.stop(old)
		nodes[i] = k.schedule(old.of, old.id)
		k.run(nodes[i])
		k.await(nodes[i])
		k.settled(time.Minute, k.nodes...)
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

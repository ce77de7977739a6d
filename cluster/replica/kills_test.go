package replica

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/cluster/coord"
	"grebe/cluster/coord/coordtest"
	"grebe/cluster/coord/embedded"
	"grebe/cluster/coord/etcd"
)

// importer writes items, events and deletions of its own through any node, and remembers what was acknowledged.
type importer struct {
	w       *world
	name    string
	rng     *rand.Rand
	next    int
	items   map[string]string // id → text; empty: deleted
	unsure  map[string]bool   // ids whose last write was not acknowledged
	events  map[string]bool   // ids of acknowledged events
	refused int
}

func (im *importer) id(i int) string { return fmt.Sprint(im.name, "-", i) }

// line makes some changes, as one request of an import does.
func (im *importer) line() {
	nodes := im.w.running()
	if len(nodes) == 0 {
		return
	}
	c := nodes[im.rng.IntN(len(nodes))].catalog
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if im.rng.IntN(4) == 0 {
		id := im.id(im.next)
		im.next++
		_, _, _, err := c.AppendEventsWithin(ctx, im.name, []*grebev1.Event{{Item: "x", Id: id}})
		if err == nil {
			im.events[id] = true
		} else {
			im.refused++
		}
		return
	}
	var ops []catalog.Op
	var ids, texts []string
	for range 1 + im.rng.IntN(20) {
		i, text := im.next, fmt.Sprint("text ", im.rng.Uint64())
		if im.rng.IntN(4) == 0 && i > 0 {
			i = im.rng.IntN(i) // an earlier one
		} else {
			im.next++
		}
		op := catalog.Op{PutItem: &grebev1.Item{Id: im.id(i), Text: &text}}
		if im.rng.IntN(8) == 0 {
			op, text = catalog.Op{DeleteItem: im.id(i)}, ""
		}
		ops, ids, texts = append(ops, op), append(ids, im.id(i)), append(texts, text)
	}
	for i, r := range c.ApplyWithin(ctx, im.name, ops) {
		if r.Err == nil {
			im.items[ids[i]] = texts[i]
			delete(im.unsure, ids[i])
		} else {
			im.unsure[ids[i]] = true
			im.refused++
		}
	}
}

// check compares a catalog with what was acknowledged.
func (im *importer) check(t testing.TB, p *process) {
	t.Helper()
	lost := 0
	for id, text := range im.items {
		if im.unsure[id] {
			continue
		}
		it, ok := p.catalog.Item(id)
		if ok != (text != "") || ok && it.Text != text {
			lost++
		}
	}
	u, _ := p.catalog.User(im.name)
	times := map[string]int{}
	for _, e := range u.GetEvents() {
		times[e.Id]++
	}
	for id, n := range times {
		if n != 1 {
			t.Errorf("%s has event %s %d times", p.id, id, n)
		}
	}
	for id := range im.events {
		if times[id] != 1 {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%s lost %d acknowledged changes of %s", p.id, lost, im.name)
	}
}

// campaign imports through all nodes while leaders are killed, and compares.
func (w *world) campaign(kills int, seed uint64, pause time.Duration) {
	w.t.Helper()
	three(w)
	var stop atomic.Bool
	var wait sync.WaitGroup
	var all []*importer
	for k := range 3 {
		im := &importer{w: w, name: fmt.Sprint("w", k), rng: rand.New(rand.NewPCG(seed, uint64(k))),
			items: map[string]string{}, unsure: map[string]bool{}, events: map[string]bool{}}
		all = append(all, im)
		wait.Go(func() {
			for !stop.Load() {
				im.line()
				time.Sleep(time.Duration(im.rng.Int64N(int64(pause) / 10)))
			}
		})
	}
	rng := rand.New(rand.NewPCG(seed, 99))
	for i := range kills {
		time.Sleep(time.Duration(rng.Int64N(int64(pause))))
		p := w.leader()
		if i%3 == 2 {
			p = w.others(p)[rng.IntN(2)]
		}
		p.kill()
		time.Sleep(time.Duration(rng.Int64N(int64(3 * pause))))
		w.start(p.id)
	}
	w.leader()
	stop.Store(true)
	wait.Wait()
	w.settle()
	items, events, refused, snapshots := 0, 0, 0, 0
	for _, p := range w.running() {
		for _, im := range all {
			im.check(w.t, p)
		}
		p.mu.Lock()
		snapshots += p.replaced
		p.mu.Unlock()
	}
	for _, im := range all {
		items, events, refused = items+len(im.items), events+len(im.events), refused+im.refused
	}
	state, _ := w.running()[0].catalog.LogState()
	w.t.Logf("%d kills: %d items and %d events acknowledged, %d changes refused; term %d, %d records, %d snapshots in "+
		"the last lives",
		kills, items, events, refused, state.Last.Term, state.Last.Index, snapshots)
	if items == 0 || events == 0 {
		w.t.Error("nothing was imported")
	}
}

// Imports through all nodes while leaders are killed, in virtual time.
func TestImportWhileLeadersAreKilled(t *testing.T) {
	for seed := range uint64(3) {
		synctest.Test(t, func(t *testing.T) {
			w, s := virtual(t)
			defer s.Close()
			defer w.close()
			w.bytes = 30_000 << (4 * seed) // some nodes fall behind the log
			w.campaign(4, seed, 2*time.Second)
		})
	}
}

// The same with a real etcd and real sockets. GREBE_REPLICA_KILLS has the number of kills.
func TestImportWithEtcd(t *testing.T) {
	kills := 3
	if s := os.Getenv("GREBE_REPLICA_KILLS"); s != "" {
		var err error
		if kills, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: coordtest.Dir(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	w := newWorld(t, func() coord.Coordinator {
		c, err := etcd.Open(etcd.Options{Endpoints: []string{server.Addr()}, Root: "/grebe/"})
		if err != nil {
			t.Fatal(err)
		}
		return c
	})
	w.tcp, w.ttl = true, 500*time.Millisecond
	defer w.close()
	w.campaign(kills, 7, 300*time.Millisecond)
}

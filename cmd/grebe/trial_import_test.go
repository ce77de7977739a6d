package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"grebe/cluster/coord/etcd"
	"grebe/cluster/leader"
)

// catalogLeader returns the node that leads the catalog, as the coordinator has it; nil: nobody.
func (c *trial) catalogLeader() *member {
	c.Helper()
	k, err := etcd.Open(etcd.Options{Endpoints: []string{c.etcd.addr}, Root: "/grebe/v1/trial/"})
	if err != nil {
		c.Fatal(err)
	}
	defer k.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	e, err := k.Get(ctx, "leader/catalog")
	var r leader.Record
	if err == nil && len(e.Data) > 0 {
		err = json.Unmarshal(e.Data, &r)
	}
	if err != nil {
		c.Fatal(err)
	}
	id, _, _ := strings.Cut(r.Holder, "/")
	for _, m := range c.nodes {
		if m.id == id {
			return m
		}
	}
	return nil
}

// contents is what a node says of its catalog.
type contents struct {
	ID, Items, Users, Version, Digest string
}

func (m *member) contents() (x contents, err error) {
	data, err := fetch(http.MethodGet, "http://"+m.listen+"/v1/catalog", nil)
	if err != nil {
		return x, err
	}
	var a struct {
		ID, Version, Digest string
		Items, Users        json.Number
	}
	err = json.Unmarshal(data, &a)
	return contents{a.ID, a.Items.String(), a.Users.String(), a.Version, a.Digest}, err
}

// agreed waits until all nodes have the same catalog.
func (c *trial) agreed(within time.Duration) contents {
	c.Helper()
	var first contents
	c.until(within, func() string {
		for i, m := range c.nodes {
			x, err := m.contents()
			if err != nil {
				return err.Error()
			}
			if i == 0 {
				first = x
			} else if x != first {
				return fmt.Sprintf("%s has %+v, and %s %+v", c.nodes[0].id, first, m.id, x)
			}
		}
		return ""
	})
	return first
}

// has checks that all nodes have items with their texts.
func (c *trial) has(items map[string]string) {
	c.Helper()
	var ids []string
	for id := range items {
		ids = append(ids, id)
	}
	var lost atomic.Int64
	parallel(4, len(ids), func(i int) {
		for _, m := range c.nodes {
			status, answer, err := m.send(http.MethodGet, "/v1/items/"+ids[i], "")
			var a struct{ Text string }
			if err == nil && status == http.StatusOK {
				err = json.Unmarshal(answer, &a)
			}
			if (err != nil || a.Text != items[ids[i]]) && lost.Add(1) <= 5 {
				c.Errorf("%s has item %s as %s (%d, %v), and %q was acknowledged", m.id, ids[i], answer, status, err, items[ids[i]])
			}
		}
	})
	if n := lost.Load(); n > 0 {
		c.Errorf("%d acknowledged lines are lost", n)
	}
}

// alike checks that the nodes give the same answers to rankings of some items.
func (c *trial) alike(r *rand.Rand, ids []string) {
	c.Helper()
	for range 5 {
		var list []string
		for len(list) < 6 {
			list = append(list, fmt.Sprintf(`{"id":%q}`, ids[(len(list)*len(ids)/6+r.IntN(max(1, len(ids)/6)))%len(ids)]))
		}
		q := &question{path: "/v1/rank", body: fmt.Appendf(nil, `{"user":{"id":"ana"},"candidates":[%s],"prefix":%q}`,
			strings.Join(list, ","), []string{"user", "item"}[r.IntN(2)])}
		var want string
		for range 2 * len(c.nodes) { // wherever it is computed
			a, err := q.ask(c.nodes[r.IntN(len(c.nodes))].listen)
			if err != nil {
				c.Fatal(err)
			}
			if want == "" {
				want = string(a.Results)
			} else if want != string(a.Results) {
				c.Errorf("%s answers %s with\n%s\nwant\n%s", a.Node, q.body, a.Results, want)
			}
		}
	}
}

// importing sends the lines of an import, each until it is acknowledged. It enters at nodes that live.
type importing struct {
	id    string
	entry func() *member
	items map[string]string // acknowledged
	next  int
	tries int
}

// batch sends some lines.
func (im *importing) batch(lines map[string]string) error {
	var body strings.Builder
	for id, text := range lines {
		im.next++
		fmt.Fprintf(&body, "{\"id\":%q,\"text\":%q,\"identifier\":%d,\"attributes\":{\"category\":[\"new\"]}}\n", id, text,
			100+im.next)
	}
	for range 100 {
		im.tries++
		status, answer, err := im.entry().send(http.MethodPost, "/v1/items:batch?import="+im.id, body.String())
		var a struct {
			Failed json.Number
			Errors []struct{ Message string }
		}
		if err == nil && status == http.StatusOK {
			if err = json.Unmarshal(answer, &a); err == nil && len(a.Errors) == 0 {
				for id, text := range lines {
					im.items[id] = text
				}
				return nil
			}
		}
		time.Sleep(50 * time.Millisecond) // a client's pause
	}
	return fmt.Errorf("import %s: lines were refused 100 times", im.id)
}

// An import goes on under load while the node that leads the catalog is killed. No acknowledged line is lost, and all
// nodes end with the same catalog and answer alike.
func TestTrialImportWithKills(t *testing.T) {
	c := newTrial(t, 3, "cluster.routing=round-robin")
	pool := questions(t, long(100, 20), 14)
	kills := long(50, 2)
	r := rand.New(rand.NewPCG(15, 15))
	all, asked, tries := map[string]string{}, 0, 0
	var waited time.Duration
	for k := range kills {
		victim := c.catalogLeader()
		if victim == nil {
			t.Fatal("nobody leads the catalog")
		}
		var alive []*member
		for _, m := range c.nodes {
			if m != victim {
				alive = append(alive, m)
			}
		}
		load := startTraffic(t, 40*time.Millisecond, pool, anyOf(alive...), nil)
		turn := 0
		im := &importing{id: fmt.Sprint("import", k), items: map[string]string{},
			entry: func() *member { turn++; return alive[turn%2] }}
		done := make(chan error, 1)
		half := make(chan struct{})
		go func() {
			for b := range 12 {
				if b == 4 {
					close(half)
				}
				lines := map[string]string{}
				for i := range 20 {
					lines[fmt.Sprintf("k%db%dl%d", k, b, i)] = fmt.Sprintf("Line %d of batch %d, import %d.", i, b, k)
				}
				if err := im.batch(lines); err != nil {
					done <- err
					return
				}
			}
			status, answer, err := alive[0].send(http.MethodPost, "/v1/items:batch?end&import="+im.id, "")
			if err == nil && status != http.StatusOK {
				err = fmt.Errorf("end the import: %d %s", status, answer)
			}
			done <- err
		}()
		<-half
		time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
		c.end(victim, syscall.SIGKILL)
		killed := time.Now()
		c.launch(victim)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		waited = max(waited, time.Since(killed))
		c.settled(30*time.Second, c.nodes...)
		c.agreed(30 * time.Second)
		asked += len(load.stop())
		c.running()
		c.has(im.items)
		var ids []string
		for id, text := range im.items {
			all[id] = text
			ids = append(ids, id)
		}
		c.alike(r, ids)
		tries += im.tries
		if t.Failed() {
			t.Fatalf("kill %d, of %s", k+1, victim.id)
		}
	}
	c.has(all)
	t.Logf("%d kills of the catalog's leader: %d lines acknowledged in %d requests, none lost; all nodes have %+v; %d "+
		"rankings meanwhile, none failed; longest import after a kill %.1f s",
		kills, len(all), tries, c.agreed(time.Second), asked, waited.Seconds())
}

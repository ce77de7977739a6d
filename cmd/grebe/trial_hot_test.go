package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"testing"
	"time"

	"grebe/cluster/coord/etcd"
	"grebe/cluster/leader"
	"grebe/cluster/place"
	"grebe/placement"
)

// published returns a fenced value of the coordinator; nil: there is none.
func (c *trial) published(key string) []byte {
	c.Helper()
	k, err := etcd.Open(etcd.Options{Endpoints: []string{c.etcd.addr}, Root: "/grebe/v1/trial/"})
	if err != nil {
		c.Fatal(err)
	}
	defer k.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	e, err := k.Get(ctx, key)
	if err != nil {
		c.Fatal(err)
	}
	if len(e.Data) == 0 {
		return nil
	}
	f, err := leader.Decode(e.Data)
	if err != nil {
		c.Fatal(err)
	}
	return f.Data
}

// rest drains all nodes but one, or takes them back.
func (c *trial) rest(but *member) {
	c.Helper()
	for _, m := range c.nodes {
		how := ":drain"
		if m == but {
			how = ":undrain"
		}
		if _, err := fetch(http.MethodPost, "http://"+but.admin+"/v1/cluster/nodes/"+m.id+how, nil); err != nil {
			c.Fatal(err)
		}
	}
	c.until(time.Minute, func() string {
		s, err := but.status()
		if err != nil {
			return err.Error()
		}
		for _, n := range s.Nodes {
			if n.Drained == (n.ID == but.id) {
				return fmt.Sprintf("%s is drained: %t", n.ID, n.Drained)
			}
		}
		return ""
	})
}

var itemEntries = regexp.MustCompile(`(?m)^grebe_kv_entries\{[^}]*kind="item",tier="(?:device|host)"\} (\d+)`)

// items returns how many items' KV a node has in memory, as it says itself.
func (c *trial) items(m *member) (n int) {
	c.Helper()
	data, err := fetch(http.MethodGet, "http://"+m.admin+"/metrics", nil)
	if err != nil {
		c.Fatal(err)
	}
	for _, f := range itemEntries.FindAllSubmatch(data, -1) {
		k, _ := strconv.Atoi(string(f[1]))
		n += k
	}
	return n
}

// Requests at one node name an item again and again. Soon the others hold it too, without having had a request: the one
// that owns it and the one that does not. They find it in their own memory.
func TestTrialHotItems(t *testing.T) {
	c := newTrial(t, 3, "cache.ahead=on")
	first, others := c.nodes[0], c.nodes[1:]
	c.placed(time.Minute, c.nodes...)
	c.rest(first)
	const hottest, catalog = "i7", 48
	for i := range 30 {
		items := []map[string]any{{"id": hottest}}
		for k := range 5 {
			if id := fmt.Sprint("i", 1+(i*5+k)%catalog); id != hottest {
				items = append(items, map[string]any{"id": id})
			}
		}
		body, _ := json.Marshal(map[string]any{"user": map[string]any{"id": "ana"}, "candidates": items, "prefix": "user"})
		if a, err := (&question{path: "/v1/rank", body: body}).ask(first.listen); err != nil || a.Node != first.id {
			t.Fatalf("%s answers: %v", a.Node, err)
		}
	}
	var hot place.Hot
	c.until(time.Minute, func() string {
		for _, m := range c.nodes {
			if s, err := m.status(); err != nil || s.Placement == nil || s.Placement.Hot == 0 {
				return fmt.Sprintf("%s knows no hot items: %v", m.id, err)
			}
		}
		return ""
	})
	if err := json.Unmarshal(c.published("hot/demo"), &hot); err != nil || hot.Items[0] != hottest {
		t.Fatalf("hot items %+v: %v, want %s first", hot, err, hottest)
	}
	places, err := placement.Decode(c.published(place.Key("demo")))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range others {
		owned, more := 0, 0
		for i := range catalog {
			if place.Owner(places, fmt.Sprint("i", i+1)) == m.id {
				owned++
			}
		}
		for _, id := range hot.Items {
			if place.Owner(places, id) != m.id {
				more++
			}
		}
		c.until(time.Minute, func() string {
			if n := c.items(m); n < owned+more {
				return fmt.Sprintf("%s holds %d items, want %d of its own and %d hot ones", m.id, n, owned, more)
			}
			return ""
		})
		t.Logf("%s holds its %d items and %d of %d hot ones that it does not own", m.id, owned, more, len(hot.Items))
	}
	for _, m := range others {
		c.rest(m)
		body := fmt.Appendf(nil, `{"user":{"id":"bo"},"candidates":[{"id":%q},{"id":"i1"}],"prefix":"item","explain":true}`,
			hottest)
		a, err := (&question{path: "/v1/rank", body: body}).ask(m.listen)
		if err != nil || a.Node != m.id {
			t.Fatalf("%s answers instead of %s: %v", a.Node, m.id, err)
		}
		found := false
		for _, p := range a.Parts {
			if p.Kind == "item" { // the first one is the hottest
				found = p.Cached > 0 && p.Source == "host"
				break
			}
		}
		if !found {
			t.Errorf("%s does not find %s in its memory: %+v", m.id, hottest, a.Parts)
		}
	}
	c.running()
}

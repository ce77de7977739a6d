package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"grebe/ahead"
)

// indexed has a node compute its part of the catalog, and returns what it did.
func (c *trial) indexed(m *member) (p ahead.Progress) {
	c.Helper()
	call := func(method string) string {
		data, err := fetch(method, "http://"+m.listen+"/v1/items:index", strings.NewReader(""))
		var list struct{ Models []ahead.Progress }
		if err == nil {
			err = json.Unmarshal(data, &list)
		}
		switch {
		case err != nil:
			return err.Error()
		case len(list.Models) != 1:
			return fmt.Sprintf("%d models in %s", len(list.Models), data)
		}
		if p = list.Models[0]; p.State != ahead.Done {
			return "state " + string(p.State)
		}
		return ""
	}
	call(http.MethodPost)
	c.until(30*time.Second, func() string { return call(http.MethodGet) })
	return p
}

// placed waits until all of the given nodes use one map of all of them, and returns its epoch.
func (c *trial) placed(within time.Duration, nodes ...*member) (epoch uint64) {
	c.Helper()
	c.until(within, func() string {
		epoch = 0
		for _, m := range nodes {
			s, err := m.status()
			switch {
			case err != nil:
				return err.Error()
			case s.Placement == nil:
				return m.id + " has no map"
			case len(s.Placement.Nodes) != len(nodes) || epoch != 0 && s.Placement.Epoch != epoch:
				return fmt.Sprintf("%s has epoch %d of %d nodes", m.id, s.Placement.Epoch, len(s.Placement.Nodes))
			}
			epoch = s.Placement.Epoch
		}
		return ""
	})
	return epoch
}

// Three nodes compute the catalog once, not three times. When one is gone for good, the others compute or fetch its
// part.
func TestTrialIndexIsDivided(t *testing.T) {
	c := newTrial(t, 3)
	first := c.placed(30*time.Second, c.nodes...)
	sum, all := 0, 0
	for _, m := range c.nodes {
		p := c.indexed(m)
		t.Logf("%s owns %d items, computed %d and fetched %d", m.id, p.Items, p.Computed, p.Fetched)
		if p.Items == 0 || p.Failed > 0 {
			t.Errorf("%s: %+v", m.id, p)
		}
		sum, all = sum+p.Computed+p.Fetched, all+p.Items
	}
	s, err := c.nodes[0].status()
	if err != nil {
		t.Fatal(err)
	}
	items := 0
	for _, n := range s.Placement.Nodes {
		items += n.Items
	}
	t.Logf("epoch %d: %d items in the catalog, %d computed or fetched by three nodes", first, items, sum)
	if all < items-2 || all > items+2 || sum != all { // the status rounds
		t.Errorf("three nodes own %d items and computed %d, the catalog has %d", all, sum, items)
	}
	for _, m := range c.nodes { // nothing is computed twice
		if p := c.indexed(m); p.Computed+p.Fetched != 0 {
			t.Errorf("%s computed %d items again", m.id, p.Computed)
		}
	}
	if !trialFull() {
		return
	}
	c.end(c.nodes[2], syscall.SIGKILL)
	if next := c.placed(90*time.Second, c.nodes[:2]...); next <= first {
		t.Errorf("epoch %d after %d", next, first)
	}
	owned, again := 0, 0
	for _, m := range c.nodes[:2] {
		p := c.indexed(m)
		owned, again = owned+p.Items, again+p.Computed+p.Fetched
	}
	t.Logf("without %s: %d items are owned, %d moved", c.nodes[2].id, owned, again)
	if owned != all || again < all/6 || again > all/2 {
		t.Errorf("%d items are owned and %d moved, want about a third of %d", owned, again, all)
	}
}

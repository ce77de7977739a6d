package cluster

import (
	"slices"
	"strings"
	"sync"

	"grebe/ahead"
	"grebe/cluster/member"
	"grebe/cluster/place"
	"grebe/cluster/status"
	"grebe/placement"
)

// startPlacement follows the maps of items. Nodes also take part in making them.
func (c *Cluster) startPlacement() {
	c.run.Go(func() {
		place.Follow(c.ctx, c.cfg.Coordinator, c.cfg.Log, func(model string, m *placement.Map) {
			if f := c.fleets[model]; f != nil {
				f.places.Store(m)
			}
		}, sync.OnceFunc(func() { close(c.mapped) }))
	})
	c.run.Go(func() {
		place.FollowHot(c.ctx, c.cfg.Coordinator, c.cfg.Log, func(model string, h *place.Hot) {
			if f := c.fleets[model]; f != nil {
				f.hot.Store(h)
			}
		})
	})
	if !c.computes() {
		return
	}
	j := &place.Job{
		Self: c.cfg.Node + "/" + c.boot, Coordinator: c.cfg.Coordinator, Nodes: c.owners, Heat: c.heat, TTL: c.cfg.Lease,
		Log: c.cfg.Log,
	}
	for _, f := range c.groups {
		j.Models = append(j.Models, f.model.Name)
	}
	c.run.Go(func() {
		if err := j.Run(c.ctx); err != nil {
			c.cfg.Log.Error("items cannot be placed", "error", err)
		}
	})
}

// owners returns the nodes that may own a model's items: those of the class that most nodes have, because others cannot
// use their KV.
func (c *Cluster) owners(model string) []place.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.listed {
		return nil
	}
	by, best := map[string][]place.Node{}, ""
	for _, m := range c.members.Members() {
		if !m.Has(member.Node) {
			continue
		}
		for i := range m.Models {
			if class := m.Models[i].Numerics; m.Models[i].Name == model {
				by[class] = append(by[class], place.Node{ID: m.ID, Memory: m.Capacity.Device + m.Capacity.Host})
				if n := len(by[class]) - len(by[best]); best == "" || n > 0 || n == 0 && class < best {
					best = class
				}
			}
		}
	}
	slices.SortFunc(by[best], func(a, b place.Node) int { return strings.Compare(a.ID, b.ID) })
	return by[best]
}

// Index returns the part of the catalog that this node computes ahead of requests: the items that it owns, and those
// that all nodes hold.
func (c *Cluster) Index(model string) ahead.Share {
	f := c.fleets[model]
	if f == nil {
		return ahead.Share{}
	}
	m := f.places.Load()
	if m == nil || !place.Has(m, c.cfg.Node) {
		// A node of another class than the owners' never becomes one, and cannot use their KV.
		alone := m != nil && !slices.ContainsFunc(c.owners(f.model.Name),
			func(n place.Node) bool { return n.ID == c.cfg.Node })
		return ahead.Share{Wait: !alone}
	}
	hot := f.hot.Load()
	s := ahead.Share{Epoch: m.Epoch, Mine: func(id string) bool { return hot.Has(id) || place.Owner(m, id) == c.cfg.Node }}
	if hot != nil {
		s.Hot = hot.Items
	}
	return s
}

// placed describes the map of the first model.
func (c *Cluster) placed() *status.Placement {
	if len(c.groups) == 0 {
		return nil
	}
	m := c.groups[0].places.Load()
	if m == nil {
		return nil
	}
	out, items := &status.Placement{Epoch: m.Epoch, Kind: "hash"}, 0
	if c.catalog != nil {
		items = c.catalog.Stats().Items
	}
	if h := c.groups[0].hot.Load(); h != nil && len(h.Items) > 0 {
		out.Kind, out.Hot = "hot-cold", len(h.Items)
	}
	for _, x := range m.Members() {
		out.Nodes = append(out.Nodes, status.Held{ID: x.Name, Items: int(place.Share(m, x.Name)*float64(items) + .5)})
	}
	return out
}

package cluster

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	clusterv1 "grebe/api/grebe/cluster/v1"
	"grebe/cluster/place"
	"grebe/placement"
	"grebe/plan"
)

// heatWithin bounds the time in which a node says what is hot there. The next round asks a node again that did not
// answer.
const heatWithin = 500 * time.Millisecond

// toleratedShare is the time that requests may wait for KV of other nodes, as a share of the time of their prefill
// (BAT-4's alpha). The simulator has the same.
const toleratedShare = 1

// heat asks nodes which items are hot there.
func (c *Cluster) heat(ctx context.Context, model string, nodes []place.Node) (out []place.Report) {
	ctx, cancel := context.WithTimeout(ctx, heatWithin)
	defer cancel()
	var mu sync.Mutex
	var asked sync.WaitGroup
	for _, n := range nodes {
		c.mu.Lock()
		k := c.known[n.ID]
		c.mu.Unlock()
		if k == nil && n.ID != c.cfg.Node {
			continue
		}
		asked.Go(func() {
			var h *clusterv1.Heat
			var err error
			if n.ID == c.cfg.Node {
				h, err = c.heatOf(model)
			} else {
				h, err = clusterv1.NewPeerClient(k.conn).GetHeat(ctx, &clusterv1.GetHeatRequest{Model: model})
			}
			if err != nil { // it is away, or of a release that does not count
				return
			}
			mu.Lock()
			defer mu.Unlock()
			out = append(out, reportOf(n.ID, h))
		})
	}
	asked.Wait()
	return out
}

func reportOf(node string, h *clusterv1.Heat) place.Report {
	r := place.Report{Node: node + "/" + h.Boot, Total: float64(h.Total), Traffic: placement.Traffic{
		Alpha: toleratedShare, Prefill: h.PrefillMs / 1e3, Bandwidth: 1e3 / max(h.TokenMs, 1e-9),
		Candidates: int(h.Candidates + .5), ItemTokens: h.ItemTokens,
	}}
	for i := range min(len(h.Items), len(h.Uses)) {
		r.Items, r.Uses = append(r.Items, h.Items[i]), append(r.Uses, float64(h.Uses[i]))
	}
	return r
}

// heatOf says what is hot at this node.
func (c *Cluster) heatOf(model string) (*clusterv1.Heat, error) {
	f := c.fleets[model]
	if f == nil {
		return nil, grpcstatus.Errorf(codes.NotFound, "no model %q", model)
	}
	h := &clusterv1.Heat{Boot: c.boot}
	cache, l := f.cache(), c.local.Load()
	if cache == nil || l == nil {
		return h, nil
	}
	items, total := (*l).HotItems()
	h.Total = uint64(total)
	for _, x := range items {
		h.Items, h.Uses = append(h.Items, x.ID), append(h.Uses, uint64(x.Count))
	}
	m, costs := cache.Means(), cache.Costs()
	user, before := int(m.User), int(m.Candidates*m.Item)
	h.PrefillMs = max(0, costs.Model.Predict(user, user*before+user*(user+1)/2, 1))
	h.TokenMs, h.Candidates, h.ItemTokens = costs.Transfer[plan.Peer].Token, m.Candidates, m.Item
	return h, nil
}

// GetHeat answers the member that places items.
func (p probes) GetHeat(_ context.Context, r *clusterv1.GetHeatRequest) (*clusterv1.Heat, error) {
	return p.c.heatOf(r.Model)
}

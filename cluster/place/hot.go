package place

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"grebe/placement"
)

// Hot are the items of a model that all nodes hold, because requests name them most (BAT-4). Other items are held by
// their owners.
type Hot struct {
	Epoch uint64   `json:"epoch"` // counts sets from 1
	Items []string `json:"items"` // ids, the hottest first

	set map[string]bool // of the same
}

func newHot(epoch uint64, items []string) *Hot {
	h := &Hot{Epoch: epoch, Items: items}
	h.index()
	return h
}

func (h *Hot) index() {
	h.set = make(map[string]bool, len(h.Items))
	for _, id := range h.Items {
		h.set[id] = true
	}
}

// Has reports whether all nodes hold an item.
func (h *Hot) Has(id string) bool { return h != nil && h.set[id] }

func decodeHot(data []byte) (*Hot, error) {
	h := new(Hot)
	if err := json.Unmarshal(data, h); err != nil {
		return nil, fmt.Errorf("place: the set of hot items: %w", err)
	}
	if len(h.Items) > mostHot {
		return nil, fmt.Errorf("place: a set of %d hot items, at most %d", len(h.Items), mostHot)
	}
	h.index()
	return h, nil
}

// Report is how often a node's requests named items.
type Report struct {
	Node  string    // this start of a node
	Items []string  // that were named most
	Uses  []float64 // of these, at least, since the node started
	Total float64   // uses of all items
	// Traffic is what the node measured; its Nodes do not count. Without Candidates there was no request yet.
	Traffic placement.Traffic
}

const (
	heatEvery = 5 * time.Second  // between two looks at the nodes' reports
	hotEvery  = 60 * time.Second // between two sets, at least
	heatFades = .5               // weight of uses from before, after each hotEvery
	leastUses = 100              // that a set is made of
	mostHot   = 512              // items of a set
	hotBytes  = 64 << 10         // of their ids

	forgetNode = 10 * time.Minute // after which the last report of a node that left is forgotten
)

// HotPlanner decides which items all nodes hold. It is pure: times are arguments.
type HotPlanner struct {
	seen      map[string]said    // the last report of each node
	uses      map[string]float64 // of all nodes, faded
	others    float64            // uses of items that are not in uses
	faded     time.Time
	published time.Time
}

// said is a node's last report.
type said struct {
	total float64
	uses  map[string]float64
	at    time.Time
}

// Next returns the set that follows old, which may be nil, or old itself if it stays. Nodes is the number of nodes that
// own items.
func (p *HotPlanner) Next(now time.Time, old *Hot, reports []Report, nodes int) *Hot {
	p.add(now, reports)
	total := p.others
	for _, u := range p.uses {
		total += u
	}
	remote, known := remoteShare(reports, nodes)
	if !known || total < leastUses || !p.published.IsZero() && now.Sub(p.published) < hotEvery {
		return old
	}
	next := p.hottest(remote)
	if !p.shifted(old, next) {
		return old
	}
	p.published = now
	if old == nil {
		return newHot(1, next)
	}
	return newHot(old.Epoch+1, next)
}

// add counts what came since the last reports.
func (p *HotPlanner) add(now time.Time, reports []Report) {
	if p.uses == nil {
		p.uses, p.seen, p.faded = map[string]float64{}, map[string]said{}, now
	}
	for i := range reports {
		r := &reports[i]
		old, is := p.seen[r.Node], said{r.Total, make(map[string]float64, len(r.Items)), now}
		rest := r.Total - old.total
		for k, id := range r.Items {
			is.uses[id] = r.Uses[k]
			if more := r.Uses[k] - old.uses[id]; more > 0 {
				p.uses[id] += more
				rest -= more
			}
		}
		p.others += max(0, rest)
		p.seen[r.Node] = is
	}
	for node, s := range p.seen {
		if now.Sub(s.at) > forgetNode {
			delete(p.seen, node)
		}
	}
	if now.Sub(p.faded) < hotEvery {
		return
	}
	p.faded = now
	p.others *= heatFades
	for id, u := range p.uses {
		if p.uses[id] = u * heatFades; u < 1 {
			delete(p.uses, id)
		}
	}
}

// remoteShare returns the share of the uses that may come from other nodes, as the nodes measure it.
func remoteShare(reports []Report, nodes int) (share float64, known bool) {
	n := 0.
	for i := range reports {
		t := reports[i].Traffic
		if t.Nodes = nodes; t.Validate() == nil {
			share, n = share+t.Corrected(), n+1
		}
	}
	if n == 0 || nodes < 2 {
		return 0, false
	}
	return share / n, true
}

// hottest returns the hot set, the hottest first.
func (p *HotPlanner) hottest(remote float64) (out []string) {
	ids := make([]string, 0, len(p.uses))
	for id := range p.uses {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b string) int {
		return cmp.Or(cmp.Compare(p.uses[b], p.uses[a]), cmp.Compare(a, b))
	})
	list, size := make([]float64, len(ids)), 0
	for i, id := range ids {
		list[i] = p.uses[id]
	}
	for _, i := range placement.HotSet(list, p.others, remote) {
		if size += len(ids[i]); len(out) == mostHot || size > hotBytes {
			break
		}
		out = append(out, ids[i])
	}
	return out
}

// shifted reports whether another set is worth publishing.
func (p *HotPlanner) shifted(old *Hot, next []string) bool {
	var mass, came, left float64
	for _, id := range next {
		if mass += p.uses[id]; !old.Has(id) {
			came += p.uses[id]
		}
	}
	if old != nil {
		for _, id := range old.Items {
			if !slices.Contains(next, id) {
				left += p.uses[id]
			}
		}
	}
	return placement.Shifted(mass, came, left)
}

package place

import (
	"slices"

	"grebe/placement"
)

// Cost is what a map costs and saves. A request is counted on the node that holds most of its items.
type Cost struct {
	Map       string  `json:"map"`
	Hot       int     `json:"items_everywhere"`
	BytesMean int64   `json:"bytes_per_node"`
	BytesMax  int64   `json:"bytes_of_fullest_node"`
	BestMean  float64 `json:"best_node_share_mean"` // of a request's items
	BestHalf  float64 `json:"best_node_share_median"`
	Remote    float64 `json:"remote_tokens_per_request"` // that the best node lacks
	// that a node lacks which was chosen without a look at the items
	RemoteAny float64 `json:"remote_tokens_per_request_any_node"`
	FanOut    float64 `json:"fan_out"` // other nodes that the best node must ask
	// requests of the node that is the best one most often, by the mean
	Busiest   float64 `json:"busiest_node"`
	Moved     int     `json:"moved_items"` // from the current map; a copy on each node counts
	MovedSize int64   `json:"moved_bytes"`
	Cut       float64 `json:"cut"` // share of the weight of pairs that lies between nodes
}

// sizes says how large the KV of an item is.
type sizes struct {
	tokens float64 // per item
	bytes  int64   // per token
}

func (s sizes) item() int64 { return int64(s.tokens * float64(s.bytes)) }

// cost counts requests on a map.
func cost(m *placement.Map, requests [][]int32, s sizes) Cost {
	var c Cost
	held := make([]int64, m.Nodes())
	everywhere := 0
	for i := range int32(m.Items()) {
		owner, _, all := m.Place(i)
		if all {
			everywhere++
			continue
		}
		held[owner]++
	}
	c.Hot = everywhere
	for n := range held {
		held[n] = (held[n] + int64(everywhere)) * s.item()
		c.BytesMean += held[n] / int64(len(held))
	}
	c.BytesMax = slices.Max(held)

	nodes := m.Nodes()
	shares := make([]float64, 0, len(requests))
	busy := make([]int, nodes)
	count := make([]int, nodes)
	for n, r := range requests {
		clear(count)
		local := 0
		for _, i := range r {
			owner, _, all := m.Place(i)
			if all {
				local++
			} else {
				count[owner]++
			}
		}
		best := n % nodes // ties go round
		for k := range nodes {
			if at := (n + k) % nodes; count[at] > count[best] {
				best = at
			}
		}
		busy[best]++
		here := local + count[best]
		shares = append(shares, float64(here)/float64(len(r)))
		c.Remote += s.tokens * float64(len(r)-here)
		c.RemoteAny += s.tokens * float64(len(r)-local) * float64(nodes-1) / float64(nodes)
		for at, k := range count {
			if at != best && k > 0 {
				c.FanOut++
			}
		}
	}
	all := float64(len(requests))
	for _, x := range shares {
		c.BestMean += x
	}
	c.BestMean /= all
	slices.Sort(shares)
	c.BestHalf = (shares[(len(shares)-1)/2] + shares[len(shares)/2]) / 2
	c.Remote /= all
	c.RemoteAny /= all
	c.FanOut /= all
	c.Busiest = float64(slices.Max(busy)) * float64(nodes) / all
	return c
}

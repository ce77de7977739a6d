package sim

import "time"

// network connects the nodes' cards. A card sends one flow at a time and receives one at a time, in the order in which
// they come. A flow is received while it is sent, unless the receiver's card is busy.
type network struct {
	rate    float64 // bytes per second of a card, each way
	latency time.Duration
	out, in []time.Duration // by node: when its card is free
	links   [][]int64       // bytes by sender and receiver; nil: there are too many nodes
	sent    []int64         // bytes by node
	got     []int64
	lost    int64 // bytes whose receiver is gone
}

// mostLinks is the number of nodes up to which bytes are counted by link.
const mostLinks = 64

func newNetwork(s *Scenario, nodes int) network {
	w := network{
		rate: s.Network.Bandwidth.bytes(), latency: s.Network.Latency.Duration,
		out: make([]time.Duration, nodes), in: make([]time.Duration, nodes), sent: make([]int64, nodes),
		got: make([]int64, nodes),
	}
	for range nodes {
		if nodes <= mostLinks {
			w.links = append(w.links, make([]int64, nodes))
		}
	}
	return w
}

// takes returns how long a card sends or receives bytes.
func (w *network) takes(bytes int64) time.Duration {
	return time.Duration(float64(bytes) / w.rate * float64(time.Second))
}

// send queues a flow at its sender's card. It returns when the first byte reaches the receiver.
func (w *network) send(fl *flow, now time.Duration) time.Duration {
	start := max(now, w.out[fl.from])
	w.out[fl.from] = start + w.takes(fl.bytes)
	fl.sent = w.out[fl.from]
	w.sent[fl.from] += fl.bytes
	return start + w.latency
}

// receive queues a flow whose first byte arrives now. It returns when the last byte is there.
func (w *network) receive(fl *flow, now time.Duration) time.Duration {
	end := max(max(now, w.in[fl.to])+w.takes(fl.bytes), fl.sent+w.latency)
	w.in[fl.to] = end
	return end
}

// landed counts a flow that is complete.
func (w *network) landed(fl *flow) {
	w.got[fl.to] += fl.bytes
	if w.links != nil {
		w.links[fl.from][fl.to] += fl.bytes
	}
}

// flow is KV of items on its way from one node to another.
type flow struct {
	from, to int32
	call     int32 // that asked for it; -1: it fills memory in the background
	gen      uint32
	life     uint32 // gen of the receiving node
	live     bool
	items    []int32 // of a call: the indexes of its candidates; else ordinals
	bytes    int64
	sent     time.Duration // when the last byte leaves
}

// allFlows are the flows under way, by number.
type allFlows struct {
	all  []*flow
	free []int32
}

func (f *allFlows) get() int32 {
	if n := len(f.free); n > 0 {
		i := f.free[n-1]
		f.free = f.free[:n-1]
		f.all[i].live = true
		return i
	}
	f.all = append(f.all, &flow{live: true})
	return int32(len(f.all) - 1)
}

func (f *allFlows) put(i int32) {
	*f.all[i] = flow{items: f.all[i].items[:0]}
	f.free = append(f.free, i)
}

package sim

import (
	"slices"
	"time"

	"grebe/plan"
)

// Result is what a run found. Requests of the warm-up are not counted, except in Sent, Ended and the nodes' totals.
type Result struct {
	Name    string  `json:"name,omitempty"`
	Seed    uint64  `json:"seed"`
	Stopped bool    `json:"stopped,omitempty"` // it was interrupted
	Seconds float64 `json:"seconds"`           // of virtual time, after the warm-up
	Total   float64 `json:"total_seconds"`     // with the warm-up
	// requests per second that the scenario asks for; 0: as the trace has them, or a closed loop
	Offered float64 `json:"offered"`
	Sent    int     `json:"sent"`
	Ended   int     `json:"ended"`

	Requests  int `json:"requests"` // that arrived after the warm-up and ended
	Answered  int `json:"answered"`
	Refused   int `json:"refused"`
	Shed      int `json:"shed"`
	Lost      int `json:"lost"`
	Retries   int `json:"retries"`
	Snapshots int `json:"snapshots"` // of nodes that routers asked for
	Maps      int `json:"maps"`      // that were published after the first

	Rate       float64   `json:"rate"`       // requests per second that arrived
	Throughput float64   `json:"throughput"` // requests per second that were answered
	Within     float64   `json:"within"`     // share of the requests that were answered within the SLO
	Latency    Quantiles `json:"latency_ms"`
	Hits       Hits      `json:"hits"`
	Orders     Orders    `json:"orders"`

	RemoteBytes int64        `json:"remote_bytes"` // of KV that went from node to node, for requests and in the background
	FilledBytes int64        `json:"filled_bytes"` // of these, in the background
	LostBytes   int64        `json:"lost_bytes"`   // whose receiver was gone
	WastedBytes int64        `json:"wasted_bytes"` // that came after their request had stopped waiting
	Predicted   Prediction   `json:"predicted"`    // how good the routers' predictions were
	Nodes       []NodeResult `json:"nodes"`
	Links       [][]int64    `json:"links,omitempty"` // bytes by sender and receiver
	Series      []Sample     `json:"series"`
}

// Quantiles are those of the time from a request's arrival at a router until its answer is there, in milliseconds.
type Quantiles struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

// Hits are shares of the prompts' tokens, by the tier that had their KV. The rest was computed.
type Hits struct {
	Device float64 `json:"device"`
	Host   float64 `json:"host"`
	Peer   float64 `json:"peer"`
	Once   float64 `json:"once"` // computed for another request at the same time
	Total  float64 `json:"total"`
	Users  float64 `json:"users"` // share of the requests that found KV of their user
	// share of the embedding rows that requests read and that were cached; 0: the model reads none
	Rows float64 `json:"rows,omitempty"`
}

// Orders are shares of the answered requests.
type Orders struct {
	User float64 `json:"user"`
	Item float64 `json:"item"`
}

// Prediction compares what routers predicted with what happened.
type Prediction struct {
	Ms    float64 `json:"ms"`    // mean of predicted minus actual milliseconds
	Reuse float64 `json:"reuse"` // mean of predicted minus actual share of reused tokens
}

// nodeTotals count what a node did, including the warm-up.
type nodeTotals struct {
	Requests, Batches, PeerMisses, Late int
	Rows                                int64
	Busy, Waited                        time.Duration
	Wasted, Filled                      int64
}

// NodeResult is one node over the whole run.
type NodeResult struct {
	Requests   int     `json:"requests"`
	Batches    int     `json:"batches"`
	Busy       float64 `json:"busy"`       // share of its engines' time
	Rows       int64   `json:"rows"`       // tokens computed
	Entries    int     `json:"entries"`    // of KV at the end
	UsedBytes  int64   `json:"used_bytes"` // at the end, all levels of memory
	Evicted    int64   `json:"evicted"`    // entries that left memory
	SentBytes  int64   `json:"sent_bytes"`
	GotBytes   int64   `json:"got_bytes"`
	PeerMisses int     `json:"peer_misses"` // items that peers asked for and it did not have
	Late       int     `json:"late"`        // items that did not come from a peer in time
	Alpha      float64 `json:"alpha,omitempty"`
}

// Sample is a part of the run.
type Sample struct {
	At       float64   `json:"at"` // its end, in seconds
	Answered int       `json:"answered"`
	Missed   int       `json:"missed"` // not answered
	P50      float64   `json:"p50"`
	P99      float64   `json:"p99"`
	Device   float64   `json:"device"`
	Host     float64   `json:"host"`
	Peer     float64   `json:"peer"`
	Remote   int64     `json:"remote"`          // bytes
	Up       int       `json:"up"`              // nodes
	Alpha    []float64 `json:"alpha,omitempty"` // by node
}

// tokenCounts are tokens of prompts by where their KV came from.
type tokenCounts struct {
	total, spared int
	at            [plan.NumTiers]int
}

func (t *tokenCounts) add(c *call) {
	t.total += c.total
	t.spared += c.spared.Rows
	for i, n := range c.tokens {
		t.at[i] += n
	}
}

func (t *tokenCounts) share(tier plan.Tier) float64 {
	return float64(t.at[tier]) / float64(max(t.total, 1))
}

// recorder collects the result of a run.
type recorder struct {
	every     time.Duration // between samples
	latency   []float32     // milliseconds
	window    []float32     // of the current sample
	counts    [4]int        // by outcome
	ended     int
	within    int
	users     int
	looks     int // for grains of embedding rows
	found     int
	orders    [2]int
	tokens    tokenCounts
	recent    tokenCounts
	missed    int
	remote    int64 // bytes before the current sample
	retries   int
	snapshots int
	maps      int
	error     float64
	reuse     float64
	first     time.Duration // arrival of the first counted request
	last      time.Duration // end of the last one
	arrived   time.Duration // arrival of the last one
	series    []Sample
	counting  bool
}

// seriesLength is about how many samples a run has.
const seriesLength = 60

func newRecorder(s *Scenario) recorder {
	every := time.Second
	if d := s.Duration.Duration; d > 0 {
		every = max(d/seriesLength, 10*time.Millisecond)
	} else if s.Requests > 0 && s.Load.Rate > 0 {
		every = max(time.Duration(float64(s.Requests)/s.Load.Rate*float64(time.Second))/seriesLength, 10*time.Millisecond)
	}
	return recorder{every: every}
}

// answered counts a request that ended.
func (r *recorder) answered(f *fleet, c *call, took time.Duration) {
	r.ended++
	if tell := f.options.Ended; tell != nil {
		tell(c.how(took))
	}
	if c.outcome == answered {
		r.window = append(r.window, float32(took.Seconds()*1e3))
		r.recent.add(c)
	} else {
		r.missed++
	}
	if !c.counted {
		return
	}
	if !r.counting {
		r.counting, r.first = true, c.At
	}
	r.first, r.arrived, r.last = min(r.first, c.At), max(r.arrived, c.At), f.now
	r.counts[c.outcome]++
	if c.outcome != answered {
		return
	}
	if took <= f.scenario.SLO.Duration {
		r.within++
	}
	r.latency = append(r.latency, float32(took.Seconds()*1e3))
	r.tokens.add(c)
	if c.hit {
		r.users++
	}
	r.orders[c.order]++
	r.error += c.chosen - took.Seconds()*1e3
	reused := 0
	for _, n := range c.tokens {
		reused += n
	}
	r.reuse += float64(c.foreseen-reused) / float64(max(c.total, 1))
}

// how says how a call ended.
func (c *call) how(took time.Duration) *Ended {
	e := &Ended{At: c.At, Took: took, Answered: c.outcome == answered}
	if e.Answered {
		e.Queue, e.Compute = c.ran-c.queue.Arrival, c.ended-c.ran
		e.Node, e.Order = int(c.node), c.order
		e.Tokens, e.Computed = c.total, c.total-c.spared.Rows
		for _, n := range c.tokens {
			e.Computed -= n
		}
	}
	return e
}

// sample ends a part of the series.
func (r *recorder) sample(f *fleet) {
	s := Sample{At: f.now.Seconds(), Answered: len(r.window), Missed: r.missed}
	slices.Sort(r.window)
	s.P50, s.P99 = quantile(r.window, .5), quantile(r.window, .99)
	s.Device, s.Host, s.Peer = r.recent.share(plan.Device), r.recent.share(plan.Host), r.recent.share(plan.Peer)
	remote := f.remote()
	s.Remote, r.remote = remote-r.remote, remote
	for _, n := range f.nodes {
		if n.up {
			s.Up++
		}
		if n.emb != nil {
			s.Alpha = append(s.Alpha, n.alpha())
		}
	}
	r.series = append(r.series, s)
	r.window, r.missed, r.recent = r.window[:0], 0, tokenCounts{}
}

// remote returns the bytes that nodes received so far.
func (f *fleet) remote() (sum int64) {
	for _, n := range f.net.got {
		sum += n
	}
	return sum
}

func quantile(sorted []float32, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return float64(sorted[min(int(q*float64(len(sorted))), len(sorted)-1)])
}

// finish sums a run up.
func (r *recorder) finish(f *fleet, stopped bool) *Result {
	if len(r.window)+r.missed > 0 {
		r.sample(f)
	}
	slices.Sort(r.latency)
	out := &Result{
		Name: f.scenario.Name, Seed: f.scenario.Seed, Stopped: stopped, Sent: f.sent, Ended: r.ended, Retries: r.retries,
		Snapshots: r.snapshots, Maps: r.maps,
		Answered: r.counts[answered], Refused: r.counts[refused], Shed: r.counts[shed], Lost: r.counts[lost],
		Total: max(f.now.Seconds(), 1e-9), Offered: f.scenario.Load.Rate,
		Links: f.net.links, Series: r.series, RemoteBytes: f.remote(), LostBytes: f.net.lost,
	}
	for _, n := range r.counts {
		out.Requests += n
	}
	out.Seconds = max((r.last - r.first).Seconds(), 1e-9)
	out.Throughput = float64(out.Answered) / out.Seconds
	if span := (r.arrived - r.first).Seconds(); span > 0 {
		out.Rate = float64(out.Requests-1) / span
	}
	out.Within = float64(r.within) / float64(max(out.Requests, 1))
	for _, ms := range r.latency {
		out.Latency.Mean += float64(ms) / float64(len(r.latency))
	}
	out.Latency.P50, out.Latency.P90, out.Latency.P99 = quantile(r.latency, .5), quantile(r.latency, .9),
		quantile(r.latency, .99)
	out.Latency.Max = quantile(r.latency, 1)
	served := float64(max(out.Answered, 1))
	out.Hits = Hits{
		Device: r.tokens.share(plan.Device), Host: r.tokens.share(plan.Host), Peer: r.tokens.share(plan.Peer),
		Once: float64(r.tokens.spared) / float64(max(r.tokens.total, 1)), Users: float64(r.users) / served,
		Rows: float64(r.found) / float64(max(r.looks, 1)),
	}
	out.Hits.Total = out.Hits.Device + out.Hits.Host + out.Hits.Peer + out.Hits.Once
	out.Orders = Orders{User: float64(r.orders[plan.UserFirst]) / served, Item: float64(r.orders[plan.ItemFirst]) / served}
	out.Predicted = Prediction{Ms: r.error / served, Reuse: r.reuse / served}
	for i, n := range f.nodes {
		out.Nodes = append(out.Nodes, n.sumUp(f.now, f.net.sent[i], f.net.got[i]))
		out.FilledBytes += n.totals.Filled
		out.WastedBytes += n.totals.Wasted
	}
	return out
}

func (n *node) sumUp(now time.Duration, sent, got int64) NodeResult {
	t := &n.totals
	r := NodeResult{
		Requests: t.Requests, Batches: t.Batches, Rows: t.Rows, PeerMisses: t.PeerMisses, Late: t.Late, SentBytes: sent,
		GotBytes: got,
		Busy:     t.Busy.Seconds() / max(now.Seconds()*float64(max(len(n.engines), 1)), 1e-9), Alpha: n.alpha(),
	}
	stores := []*store{n.users}
	if n.items != n.users {
		stores = append(stores, n.items)
	}
	for _, s := range stores {
		r.Entries += s.books.Len()
		for level := range s.mem {
			r.UsedBytes += s.mem[level].used
			for _, k := range []plan.Kind{plan.User, plan.Item, plan.Preamble} {
				r.Evicted += s.books.Counts(level, k).Evicted
			}
		}
	}
	return r
}

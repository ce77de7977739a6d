package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"grebe/alloc"
	"grebe/embed"
	"grebe/placement"
)

// Stream makes the requests of a run.
type Stream interface {
	// Next sets r to the next request, using its slices again. It returns false after the last one. Times never go back.
	Next(r *Request) bool
	// Items returns the size of the catalog. Ordinals are below it.
	Items() int
	// ItemTokens returns the length of an item. A Stream that is also Past knows earlier requests.
	ItemTokens(item int32) int32
}

// Options change how a scenario is run.
type Options struct {
	Stream   Stream                // instead of the scenario's own; it is used up
	Map      *placement.Map        // the first one, instead of the scenario's own
	Progress func(done, total int) // called now and then with the requests that were sent, of about so many
	Check    bool                  // verify invariants while it runs, which is slow
	Ended    func(*Ended)          // called with each request when it ended; it MUST NOT keep its argument
}

// fleet is a run.
type fleet struct {
	scenario *Scenario
	options  Options
	heap     heap
	now      time.Duration
	hop      time.Duration // latency of the network
	prompt   prompt
	keys     keys
	page     int64 // bytes of a page of KV memory; 0: memory is never fragmented
	rng      *rand.Rand

	aside   *aside // nil: nothing is done aside
	source  Stream
	lengths lengths
	next    Request // that arrives next
	more    bool
	sent    int // requests so far
	expect  int // requests in all, about
	open    int // requests on their way

	nodes     []*node
	routers   []*router
	calls     calls
	flows     allFlows
	asked     []int32 // by node: the flow of the GET that is being made; -1: none
	bytesFrom []int64 // by node: bytes of the batch that is being made; all 0 between batches
	net       network
	places    *placement.Map // nil: none
	peers     bool           // items may be had from other nodes
	holders   bool           // feeds say from which
	learns    bool           // the map is made again from requests
	lives     uint64
	shards    *embed.Shards // maps grains to shards; nil: the model has no embeddings
	grains    []int32       // of the request that is being routed
	messages  []message
	spares    []int32 // messages to use again
	past      past
	result    recorder
}

func (f *fleet) push(e event) { f.heap.push(e) }

func inMs(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// Run simulates a scenario that Validate accepted. If ctx ends, it returns what it has, and Result.Stopped is set.
func Run(ctx context.Context, s *Scenario, opt Options) (*Result, error) {
	f, err := newFleet(s, opt)
	if err != nil {
		return nil, err
	}
	f.begin()
	return f.run(ctx)
}

func newFleet(s *Scenario, opt Options) (*fleet, error) {
	if len(s.profiles) == 0 {
		if err := s.Validate(); err != nil {
			return nil, err
		}
	}
	f := &fleet{
		scenario: s, options: opt, hop: s.Network.Latency.Duration, rng: newRand(s.Seed, 1), source: opt.Stream,
		page:   int64(s.Cache.Page),
		prompt: prompt{s.Prompt.Preamble, s.Prompt.LeadIn, s.Prompt.Question, s.Prompt.Pointwise, s.Prompt.Blend},
	}
	if f.source == nil {
		var err error
		if f.source, err = newStream(s); err != nil {
			return nil, err
		}
	}
	own := *s
	// More entries than there are keys would only make routers' tables larger, and so slower.
	own.Route.Items = min(s.Route.Items, f.source.Items()+len(f.keys.fixed))
	f.scenario, s = &own, &own
	f.lengths = f.source.ItemTokens
	if stream, ok := f.source.(Events); ok {
		count, _ := stream.Grains()
		f.shards = embed.NewShards(count, 0)
	}
	f.expect = s.Requests
	if t, ok := f.source.(*trace); ok && f.expect == 0 {
		f.expect = len(t.all)
	} else if f.expect == 0 {
		f.expect = int(s.Load.Rate * s.Duration.Seconds())
	}
	f.peers = s.Placement.Kind != "none" && len(s.profiles) > 1 && s.Network.Bandwidth > 0 && s.Network.Exchange
	f.holders = s.holdersWork()
	f.net = newNetwork(s, len(s.profiles))
	f.bytesFrom = make([]int64, len(s.profiles))
	f.result = newRecorder(s)
	for i, p := range s.profiles {
		n := &node{f: f, id: int32(i), profile: p, slow: 1, noise: newRand(s.Seed, 1000+uint64(i)),
			counted: make(chan struct{}, 1)}
		n.back.governor = alloc.Governor{Link: f.net.rate, Share: s.Placement.Fill}
		f.nodes, f.asked = append(f.nodes, n), append(f.asked, -1)
		if err := n.start(); err != nil {
			return nil, fmt.Errorf("sim: node %d: %w", i, err)
		}
		n.up = i < s.Fleet.Nodes
		n.member = n.up
	}
	if err := f.place(); err != nil {
		return nil, err
	}
	routers := s.Route.Routers
	if s.Route.Inside {
		routers = len(f.nodes)
	}
	for range routers {
		r, err := newRouter(f)
		if err != nil {
			return nil, fmt.Errorf("sim: %w", err)
		}
		if f.places != nil {
			r.view.SetMap(f.places)
		}
		f.routers = append(f.routers, r)
	}
	return f, nil
}

func newRand(seed, of uint64) *rand.Rand { return rand.New(rand.NewPCG(scramble(seed), scramble(of))) }

// begin adds the first events.
func (f *fleet) begin() {
	s := f.scenario
	for _, n := range f.nodes {
		if n.up {
			f.awake(n)
			f.introduce(n)
		}
	}
	for i, e := range s.Events {
		f.push(event{at: e.At.Duration, kind: fails, arg: int32(i)})
	}
	f.push(event{at: f.result.every, kind: samples})
	if f.learns = s.Placement.Kind == "hot-cold" || s.Placement.Kind == "similar"; f.learns {
		f.push(event{at: s.Placement.Refresh.Duration, kind: refreshes})
	}
	if s.Load.Clients > 0 {
		for range s.Load.Clients {
			f.push(event{at: 0, kind: arrives})
		}
		return
	}
	f.read()
}

// introduce lets all routers know a node. It is done before the first request: a router is ready when it has heard the
// nodes.
func (f *fleet) introduce(n *node) {
	i := f.newMessage()
	n.report(&f.messages[i])
	for _, r := range f.routers {
		r.hear(i)
	}
}

// awake begins the regular events of a node that is up. The first heartbeat comes at once.
func (f *fleet) awake(n *node) {
	f.push(event{at: f.now, kind: beats, node: n.id, gen: n.gen})
	f.push(event{at: f.now + countEvery, kind: counts, node: n.id, gen: n.gen})
	if n.emb != nil {
		f.push(event{at: f.now + epochPart, kind: epochs, node: n.id, gen: n.gen})
	}
}

// read takes the next request from the source. Clients of a closed loop send requests whatever their times are.
func (f *fleet) read() {
	s := f.scenario
	f.more = (s.Requests == 0 || f.sent < s.Requests) && f.source.Next(&f.next)
	if f.more && s.Load.Clients == 0 && s.Duration.Duration > 0 && f.next.At > s.Duration.Duration {
		f.more = false
	}
	if f.more && s.Load.Clients == 0 {
		f.push(event{at: max(f.now, f.next.At), kind: arrives})
	}
}

// lookEvery is the number of events between two looks at the context.
const lookEvery = 1 << 12

func (f *fleet) run(ctx context.Context) (*Result, error) {
	defer f.drawAhead()()
	defer f.countAside()()
	for n := 0; len(f.heap.events) > 0; n++ {
		if n%lookEvery == 0 {
			if ctx.Err() != nil {
				return f.result.finish(f, true), nil
			}
			if f.options.Progress != nil {
				f.options.Progress(f.sent, max(f.sent, f.expect))
			}
		}
		e := f.heap.pop()
		f.now = e.at
		f.happen(&e)
		if f.ended() {
			break
		}
		if f.options.Check {
			if err := f.check(); err != nil {
				return nil, err
			}
		}
	}
	if f.open > 0 {
		return nil, fmt.Errorf("sim: %d requests never ended", f.open)
	}
	return f.result.finish(f, false), nil
}

// ended reports whether all requests were answered.
func (f *fleet) ended() bool {
	if f.open > 0 || f.sent == 0 {
		return false
	}
	s := f.scenario
	if s.Load.Clients > 0 {
		return f.drained()
	}
	return !f.more
}

// drained reports whether a closed loop sends nothing more.
func (f *fleet) drained() bool {
	s := f.scenario
	return s.Requests > 0 && f.sent >= s.Requests || s.Duration.Duration > 0 && f.now >= s.Duration.Duration
}

// happen does what an event says.
func (f *fleet) happen(e *event) {
	switch e.kind {
	case arrives:
		f.arrive()
		return
	case answers:
		f.answer(e)
		return
	case hears:
		f.routers[e.node].hear(e.arg)
		return
	case fails:
		f.befall(e)
		return
	case refreshes:
		f.refresh()
		f.push(event{at: f.now + f.scenario.Placement.Refresh.Duration, kind: refreshes})
		return
	case boots:
		if n := f.nodes[e.node]; n.gen == e.gen {
			f.boot(n)
		}
		return
	case samples:
		f.result.sample(f)
		f.push(event{at: f.now + f.result.every, kind: samples})
		return
	case reaches:
		f.reach(e)
		return
	case asks:
		f.nodes[e.node].serve(e.arg)
		return
	case patience:
		if c := f.calls.all[e.arg]; c.gen == e.gen && c.waiting && c.node == e.node {
			f.nodes[e.node].settle()
			f.nodes[e.node].ready(e.arg)
		}
		return
	}
	n := f.nodes[e.node]
	if e.gen != n.gen || !n.up {
		if e.kind == flows || e.kind == lands {
			f.net.lost += f.flows.all[e.arg].bytes
			f.flows.put(e.arg)
		}
		return
	}
	if e.kind != beats { // they come at the same times as counts, and read no counts
		n.settle()
	}
	switch e.kind {
	case steps:
		if e.arg == n.wake {
			n.step()
		}
	case ends:
		n.ended(int(e.arg))
	case beats:
		n.beat()
	case counts:
		n.count()
		f.push(event{at: f.now + countEvery, kind: counts, node: n.id, gen: n.gen})
	case flows:
		f.push(event{at: f.net.receive(f.flows.all[e.arg], f.now), kind: lands, node: n.id, arg: e.arg, gen: e.gen})
	case lands:
		n.land(e.arg)
	case fills:
		n.fill()
	case empties:
		n.empty()
	case enters:
		n.enter(e.arg) // the call is there: nothing ends a call before it is queued, but the node's end
	case epochs:
		n.glance()
		f.push(event{at: f.now + epochPart, kind: epochs, node: n.id, gen: n.gen})
	}
}

// arrive takes the next request.
func (f *fleet) arrive() {
	s := f.scenario
	if s.Load.Clients > 0 {
		if f.drained() {
			return
		}
		if f.read(); !f.more {
			return
		}
		f.next.At = f.now
	}
	i := f.calls.get()
	c := f.calls.all[i]
	c.Request, f.next = f.next, c.Request // slices change hands
	c.At, c.deadline = f.now, f.now+s.Deadline.Duration
	c.counted = f.now >= s.Warmup.Duration
	c.router = f.entry(f.sent)
	f.sent++
	f.open++
	if f.learns {
		f.learn(&c.Request)
	}
	f.shardsOf(&c.Request)
	f.send(i)
	if s.Load.Clients == 0 {
		f.read()
	}
}

// entry returns the router at which a request enters: they take turns. Inside of nodes, only those that are up do.
func (f *fleet) entry(turn int) int32 {
	n := len(f.routers)
	for i := range n {
		if at := (turn + i) % n; !f.scenario.Route.Inside || f.nodes[at].up {
			return int32(at)
		}
	}
	return int32(turn % n)
}

// trip returns the time between a router and a node.
func (f *fleet) trip(router, node int32) time.Duration {
	if f.scenario.Route.Inside && router == node {
		return 0
	}
	return f.hop
}

// send has a router pick a node for a call.
func (f *fleet) send(i int32) {
	c := f.calls.all[i]
	c.node = f.routers[c.router].pick(c)
	if c.node < 0 {
		c.outcome = lost
		f.push(event{at: f.now, kind: answers, node: -1, arg: i, gen: c.gen})
		return
	}
	f.push(event{at: f.now + f.trip(c.router, c.node) + f.nodes[c.node].reads(c), kind: reaches, node: c.node, arg: i,
		gen: c.gen})
}

// reach has a call reach its node. If the node is gone, the connection is refused.
func (f *fleet) reach(e *event) {
	c := f.calls.all[e.arg]
	n := f.nodes[e.node]
	if n.up && !n.drains {
		n.settle()
		n.arrive(e.arg)
		return
	}
	f.failed(e.arg, c)
}

// failed ends a call whose node is gone: it is sent to another one, once, if there is time left.
func (f *fleet) failed(i int32, c *call) {
	f.routers[c.router].view.Lost(int(c.node))
	if c.tried++; c.tried > 1 || f.now >= c.deadline {
		c.outcome = lost
		f.push(event{at: f.now, kind: answers, node: -1, arg: i, gen: c.gen})
		return
	}
	f.result.retries++
	c.again()
	f.send(i)
}

// answer ends a call.
func (f *fleet) answer(e *event) {
	c := f.calls.all[e.arg]
	if c.gen != e.gen {
		return
	}
	took := f.now - c.At
	if e.node >= 0 {
		f.routers[c.router].view.Told(int(c.node), f.now-f.trip(c.router, c.node), inMs(c.backlog))
	}
	if e.node >= 0 && c.outcome == answered {
		f.routers[c.router].view.Answered(int(c.node), c.chosen, took.Seconds()*1e3, f.now)
	}
	if e.node >= 0 && f.nodes[e.node].emb != nil {
		f.nodes[e.node].emb.note(took, f.scenario.SLO.Duration)
	}
	f.result.answered(f, c, took)
	f.calls.put(e.arg)
	f.open--
	if f.scenario.Load.Clients > 0 {
		f.push(event{at: f.now, kind: arrives})
	}
}

func (f *fleet) newMessage() int32 {
	if n := len(f.spares); n > 0 {
		i := f.spares[n-1]
		f.spares = f.spares[:n-1]
		return i
	}
	f.messages = append(f.messages, message{})
	return int32(len(f.messages) - 1)
}

// lengths returns the tokens of items.
type lengths func(item int32) int32

func (l lengths) of(item int32) int32 { return l(item) }

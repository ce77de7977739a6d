package route

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"grebe/placement"
	"grebe/plan"
	"grebe/residency"
	"grebe/schedule"
)

// plain is a slow router that keeps everything in maps. Its state is that of a random scene.
type plain struct {
	config  Config
	places  *placement.Map
	lost    []bool
	known   []bool                       // the node's part of the index
	books   []map[uint64]residency.Entry // by node and hash of the key
	beats   []Heartbeat
	sends   [][]sent
	reports [][]report // by node: of its load, with what the router knew of it
	last    map[uint64]int
	turn    int
	rng     *rand.Rand // of the scene
	rows    *rand.Rand // of the scene's measured costs of rows
	random  *rand.Rand // as the router draws
	history []int32    // of all users; a few have another one
	other   []int32
	costs   [][2]float64 // of requests without KV and without rows
}

// report is a node's backlog at a time, and what it would have been without other routers.
type report struct {
	at           time.Duration
	backlog, own float64
}

const (
	plainUsers = 12
	plainItems = 60
)

// scene returns a random fleet as a router and as a plain one sees it.
func scene(t *testing.T, policy Policy, seed uint64) (*Router, *plain) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 77))
	nodes := []int{1, 2, 5, 16, 64, 70}[rng.IntN(6)]
	c := Config{
		Policy: policy, Users: 1 << 14, Items: plainItems, Shards: 100, Seed: seed,
		Orders: schedule.Policy(rng.IntN(2) * rng.IntN(5)),
		Owned:  []plan.Tier{plan.Missing, plan.Host, plan.Disk}[rng.IntN(3)],
		Alpha:  rng.Float64(), Beta: rng.Float64(), FullLoad: 20 + 100*rng.Float64(),
		MissKV: 10 * rng.Float64(), MissEMB: 10 * rng.Float64(), MissLoad: 10 * rng.Float64(),
	}
	rows := rand.New(rand.NewPCG(seed, 78))
	if rows.IntN(4) == 0 {
		c.MissKV, c.MissEMB, c.MissLoad = 0, 0, 0
	}
	c.PeerUsers, c.PeerItems = rng.IntN(4) > 0, rng.IntN(4) > 0
	c.Blend = schedule.Blending{Layers: 28, First: rng.IntN(3), Budget: rng.Float64(),
		Guess: schedule.Transfer{Token: .01}}
	classes := 1 + rng.IntN(2)
	for range nodes {
		n := Node{RTT: rng.Float64(), Staging: .01 * rng.Float64(), Engines: 1 + rng.IntN(2)}
		n.Class = uint8(rng.IntN(classes))
		n.Costs = schedule.DefaultCosts(schedule.PrefillModel{
			Fixed: rng.Float64(), Row: .02 * rng.Float64(), Key: 1e-5 * rng.Float64()})
		for tier := plan.Host; tier < plan.NumTiers; tier++ {
			n.Costs.Transfer[tier] = schedule.Transfer{Entry: .1 * rng.Float64(), Token: .02 * rng.Float64()}
		}
		c.Nodes = append(c.Nodes, n)
	}
	p := &plain{
		lost: make([]bool, nodes), known: make([]bool, nodes), books: make([]map[uint64]residency.Entry, nodes),
		beats: make([]Heartbeat, nodes), sends: make([][]sent, nodes), reports: make([][]report, nodes),
		last: map[uint64]int{}, rng: rng, rows: rows,
		random: rand.New(rand.NewPCG(seed, 0x726f757465)), history: make([]int32, 400), other: make([]int32, 400),
	}
	for i := range p.history {
		p.history[i], p.other[i] = int32(i), int32(-i-1)
	}
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	p.config, p.turn = r.config, p.random.IntN(nodes) // with defaults
	members := placement.Members(nodes)
	if p.places, err = placement.Hash(placement.Config{Members: members, Items: plainItems}); err != nil {
		t.Fatal(err)
	}
	if rng.IntN(4) == 0 { // all items are everywhere
		if p.places, err = placement.Replicate(placement.Config{Members: members, Items: plainItems}); err != nil {
			t.Fatal(err)
		}
	}
	r.SetMap(p.places)
	for n := range nodes {
		p.fill(r, n)
		p.beat(r, n, 0)
		if n > 0 && rng.IntN(6) == 0 {
			r.Lost(n)
			p.lost[n], p.known[n] = true, false
		}
	}
	return r, p
}

// fill gives a node random entries, and tells the router about them, or about some and then of a gap.
func (p *plain) fill(r *Router, n int) {
	p.books[n] = map[uint64]residency.Entry{}
	var events []residency.Event
	put := func(hash uint64, e residency.Entry) {
		e.Tier = plan.Device + plan.Tier(p.rng.IntN(3))
		p.books[n][hash] = e
		events = append(events, residency.Event{Seq: uint64(len(events) + 1), Key: key(hash), Entry: e})
	}
	for u := range plainUsers {
		if p.rng.IntN(4) == 0 {
			history := p.history
			if p.rng.IntN(4) == 0 {
				history = p.other
			}
			tokens := history[:1+p.rng.IntN(len(history))]
			put(userHash(u), residency.Entry{Kind: plan.User, Tokens: int32(len(tokens)), Digest: residency.Digest(tokens)})
		}
	}
	share := p.rng.IntN(5)
	for i := range int32(plainItems) {
		if p.rng.IntN(5) < share {
			put(itemHash(i), residency.Entry{Kind: plan.Item, Tokens: 20})
		}
	}
	half := len(events) / 2
	r.Snapshot(n, 7, uint64(half), events[:half], true)
	if p.known[n] = p.rng.IntN(6) > 0; !p.known[n] {
		half = min(half+1, len(events)) // an event is lost
		events = append(events, residency.Event{Seq: uint64(len(events) + 3)})
	}
	r.Apply(n, 7, events[min(half, len(events)):])
}

// beat sends a random heartbeat, made at a time.
func (p *plain) beat(r *Router, n int, at time.Duration) {
	h := Heartbeat{At: at, Backlog: time.Duration(p.rng.IntN(30)) * milli * time.Duration(p.rng.IntN(2))}
	for range 40 {
		h.Shards = append(h.Shards, uint32(p.rng.IntN(120)))
	}
	h.RowMs = []float64{0, p.rows.Float64() / 10}[p.rows.IntN(2)]
	if p.rng.IntN(2) == 0 && len(p.reports[n]) > 0 { // with an answer
		h.Shards, h.RowMs = p.beats[n].Shards, p.beats[n].RowMs
		r.Told(n, at, h.Backlog)
	} else {
		r.Heard(n, &h, at)
	}
	own := 0.0
	if len(p.reports[n]) > 0 {
		own = p.left(n, at, at)
	}
	p.beats[n] = h
	p.reports[n] = append(p.reports[n], report{at, float64(h.Backlog) / 1e6, own})
	p.sends[n] = slices.DeleteFunc(p.sends[n], func(s sent) bool { return s.at <= at })
}

// ask makes a random request.
func (p *plain) ask() *Request {
	q := &Request{User: userHash(p.rng.IntN(plainUsers)), Tokens: p.history[:1+p.rng.IntN(len(p.history))]}
	q.Prompt = schedule.Request{
		Preamble: int32(p.rng.IntN(20)), LeadIn: int32(p.rng.IntN(5)), SharedCached: p.rng.IntN(2) == 0,
		Question: int32(1 + p.rng.IntN(20)),
		PerItem:  p.rng.IntN(3) == 0, User: int32(len(q.Tokens)), Returns: p.rng.Float64(), ReturnsKnown: true,
	}
	q.UserRows, q.ItemRows = p.rows.IntN(2)*len(q.Tokens), p.rows.IntN(30)
	q.Blend, q.Prototypes = Blend(max(0, p.rng.IntN(5)-2)), int32(p.rng.IntN(300))
	for range p.rng.IntN(40) {
		i := int32(p.rng.IntN(plainItems))
		q.Items, q.Keys = append(q.Items, i), append(q.Keys, itemHash(i))
		q.Prompt.Items = append(q.Prompt.Items, int32(1+p.rng.IntN(40)))
	}
	for range p.rng.IntN(30) {
		q.Shards = append(q.Shards, uint32(p.rng.IntN(110)))
	}
	return q
}

// held returns the tier in which a node has an item, as far as the router knows.
func (p *plain) held(n int, item int32) plan.Tier {
	owner, _, everywhere := p.places.Place(item)
	switch e, ok := p.books[n][itemHash(item)]; {
	case !p.known[n]:
		return plan.Missing
	case ok:
		return e.Tier
	case owner == n && !everywhere:
		return p.config.Owned
	}
	return plan.Missing
}

// prefix returns a node's copy of a user, as far as it is one.
func (p *plain) prefix(n int, q *Request) residency.Entry {
	e := p.books[n][q.User]
	if !p.known[n] || e.Tokens > int32(len(q.Tokens)) ||
		e.Tokens > 0 && residency.Digest(q.Tokens[:e.Tokens]) != e.Digest {
		return residency.Entry{}
	}
	return e
}

func (p *plain) up() (out []int) {
	for n, lost := range p.lost {
		if !lost {
			out = append(out, n)
		}
	}
	return out
}

// input returns what a node's decision is made of.
func (p *plain) input(n int, q *Request, now time.Duration) schedule.Request {
	in := q.Prompt
	in.UserCached = [plan.NumTiers]int32{}
	own := p.prefix(n, q)
	in.UserCached[own.Tier] = own.Tokens
	mates := slices.DeleteFunc(p.up(), func(m int) bool {
		return m == n || p.config.Nodes[m].Class != p.config.Nodes[n].Class
	})
	for _, m := range mates {
		if !p.config.PeerUsers {
			break
		}
		in.UserCached[plan.Peer] = max(in.UserCached[plan.Peer], p.prefix(m, q).Tokens-own.Tokens)
	}
	in.ItemTier = nil
	for _, item := range q.Items {
		tier := p.held(n, item)
		if tier == plan.Missing && p.config.PeerItems &&
			slices.ContainsFunc(mates, func(m int) bool { return p.held(m, item) != plan.Missing }) {
			tier = plan.Peer
		}
		in.ItemTier = append(in.ItemTier, tier)
	}
	in.Queue = p.queue(n, now)
	return in
}

// queue replays what a node has to do since its heartbeat.
// queue returns the work that a request finds: what the router knows of, and what others sent since the last report, at
// the mean rate at which they did.
func (p *plain) queue(n int, now time.Duration) float64 {
	now += duration(p.config.Nodes[n].RTT / 2)
	last := p.beats[n].At
	more, span := 0.0, 0.0
	for i := 1; i < len(p.reports[n]); i++ {
		q, weight := p.reports[n][i], math.Exp2(-(last - p.reports[n][i].at).Seconds())
		more += weight * (q.backlog - q.own)
		span += weight * float64(q.at-p.reports[n][i-1].at) / 1e6
	}
	others := 0.0
	if span > 0 {
		others = max(0, more/span) * float64(now-last) / 1e6
	}
	return p.left(n, now, now+time.Hour) + others
}

// left returns the work that is left at a time of the last report and of the requests that arrived until another time.
func (p *plain) left(n int, now, until time.Duration) float64 {
	left, at := float64(p.beats[n].Backlog)/1e6, p.beats[n].At
	for _, s := range append(slices.Clone(p.sends[n]), sent{at: now}) {
		if s.at > until {
			continue
		}
		if s.at > at {
			left, at = max(0, left-float64(s.at-at)/1e6), s.at
		}
		left += s.ms
	}
	return left
}

func (p *plain) load(n int, now time.Duration) float64 {
	return min(1, p.queue(n, now)/p.config.FullLoad)
}

// price is the formula of the package's documentation.
func (p *plain) price(n int, q *Request, now time.Duration) priced {
	node := &p.config.Nodes[n]
	in := p.input(n, q, now)
	d := schedule.Decide(&in, &node.Costs, p.config.Orders)
	o := d.Chosen()
	tokens := int(in.Preamble + in.User)
	if d.Order == plan.ItemFirst {
		tokens += int(in.LeadIn)
	}
	for _, t := range in.Items {
		tokens += int(t)
		if in.PerItem {
			tokens += int(in.Question)
		}
	}
	if !in.PerItem {
		tokens += int(in.Question)
	}
	compute := node.Costs.Model.Predict(o.Rows, o.Keys, 1)
	staging := node.Staging * float64(tokens-o.Rows)
	misses := 0.0
	for _, s := range q.Shards { // each stands for as many rows
		if s >= 100 || !slices.Contains(p.beats[n].Shards, s) {
			misses += p.rowMs() / float64(len(q.Shards))
		}
	}
	embedded := in.User
	for _, tokens := range in.UserCached {
		embedded -= tokens
	}
	misses *= float64(q.UserRows)*math.Max(0, float64(embedded))/math.Max(1, float64(in.User)) + float64(q.ItemRows)
	wait := math.Max(in.Queue+misses/float64(node.Engines), misses) - in.Queue // for rows, behind the queue
	exact := priced{
		ms:    max(in.Queue, o.Transfer) + compute + staging + wait + node.RTT,
		own:   math.Max(compute+staging, misses) / float64(node.Engines),
		reuse: tokens - o.Rows,
	}
	if q.Blend == BlendNever {
		return exact
	}
	// Peers send nothing for blended prompts, and all nodes have prototypes.
	user := max(min(q.Prototypes, in.User), p.prefix(n, q).Tokens)
	in.UserCached = [plan.NumTiers]int32{plan.Host: user}
	reuse := float64(0)
	for i, item := range q.Items {
		if in.ItemTier[i] = p.held(n, item); in.ItemTier[i] != plan.Missing {
			reuse += float64(in.Items[i])
		}
	}
	own, pays := p.config.Blend.Pays(&in, &node.Costs.Model, o)
	if !pays && q.Blend == BlendFaster {
		return exact
	}
	blended := int(user) + int(reuse*(1-p.config.Blend.Budget))
	staging = node.Staging * float64(blended)
	return priced{in.Queue + own + staging + wait + node.RTT, math.Max(own+staging, misses) / float64(node.Engines),
		blended}
}

// argmax returns the node with the highest score. The first one from turn on wins ties.
func (p *plain) argmax(score func(n int) float64) int {
	up := p.up()
	slices.SortStableFunc(up, func(a, b int) int {
		late := func(n int) int {
			if n < p.turn {
				return 1
			}
			return 0
		}
		return late(a) - late(b)
	})
	node := up[0]
	for _, n := range up {
		if score(n) > score(node) {
			node = n
		}
	}
	p.turn = node + 1
	return node
}

// affinity is RCL-4: α·hit(r, p) − β·load(p), hit being the share of the requested items that are cached on p.
func (p *plain) affinity(q *Request, now time.Duration) int {
	return p.argmax(func(n int) float64 {
		hit := 0.0
		for _, item := range q.Items {
			if p.held(n, item) != plan.Missing {
				hit++
			}
		}
		return p.config.Alpha*(hit/math.Max(1, float64(len(q.Items)))) - p.config.Beta*p.load(n, now)
	})
}

// joint is HLM-5's Algorithm 1, with its line numbers.
func (p *plain) joint(q *Request, now time.Duration) int {
	ckv, cemb, cld := p.config.MissKV, p.config.MissEMB, p.config.MissLoad
	if ckv == 0 && cemb == 0 && cld == 0 {
		ckv, cemb = p.means(q)
		cld = p.config.FullLoad
	}
	if p.config.Policy == KVOnly {
		cemb = 0
	}
	if p.config.Policy == EMBOnly {
		ckv = 0
	}
	z := ckv + cemb + cld
	profile := q.Shards
	if len(profile) > 20 {
		profile = profile[:20]
	}
	naff, ok := p.last[q.User] // 4
	if !ok {
		naff = -1
	}
	score := func(n int) float64 { // 5
		hkv := 0.0 // 6
		if p.prefix(n, q).Tokens > 0 {
			hkv = 1
		}
		hemb := 0.0 // 7
		for _, s := range profile {
			if s < 100 && slices.Contains(p.beats[n].Shards, s) {
				hemb++
			}
		}
		hemb /= math.Max(1, float64(len(profile)))
		b := 0.0
		if n == naff {
			b = .05
		}
		return ckv/z*hkv + cemb/z*hemb + cld/z*(1-p.load(n, now)) + b // 8
	}
	node := p.argmax(score)      // 9
	if p.load(node, now) > .85 { // 10
		node = p.argmax(func(n int) float64 { return -p.load(n, now) }) // 11
	}
	p.last[q.User] = node // 12
	return node
}

// rowMs returns what a row costs: the lower median of what nodes report.
func (p *plain) rowMs() float64 {
	all := []float64{0}
	for n, b := range p.beats {
		if !p.lost[n] && b.RowMs > 0 {
			all = append(all, b.RowMs)
		}
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// means returns the exponential means of what requests so far, and this one, cost without KV and without rows.
func (p *plain) means(q *Request) (kv, emb float64) {
	user, up, cached := int(q.Prompt.User), p.up(), int32(0)
	for n := range p.books {
		cached = max(cached, p.prefix(n, q).Tokens)
	}
	for _, n := range up {
		m := p.config.Nodes[n].Costs.Model
		kv += (m.Predict(user, user*(user+1)/2, 1) - m.Predict(0, 0, 1)) / float64(len(up))
		rows := float64(q.UserRows)*(1-float64(cached)/float64(user)) + float64(q.ItemRows)
		emb += p.rowMs() * rows / float64(len(up))
	}
	p.costs = append(p.costs, [2]float64{kv, emb})
	kv, emb = p.costs[0][0], p.costs[0][1]
	for _, c := range p.costs[1:] {
		kv, emb = kv*63/64+c[0]/64, emb*63/64+c[1]/64
	}
	return kv, emb
}

// predicted prices the candidates of CLUSTER.md.
func (p *plain) predicted(q *Request, now time.Duration) (node, count int) {
	up := p.up()
	score := func(n int) uint64 { return mix(q.User ^ mix(uint64(n)+1)) }
	home := slices.MaxFunc(up, func(a, b int) int {
		if score(a) < score(b) {
			return -1
		}
		return 1
	})
	best := func(most int, held func(n int) int) (out []int) {
		all := slices.DeleteFunc(slices.Clone(up), func(n int) bool { return held(n) < 0 })
		slices.SortStableFunc(all, func(a, b int) int {
			switch wa, wb := p.queue(a, now), p.queue(b, now); {
			case held(a) != held(b):
				return held(b) - held(a)
			case wa < wb:
				return -1
			case wa > wb:
				return 1
			}
			return 0
		})
		return all[:min(most, len(all))]
	}
	candidates := []int{home}
	holders := best(4, func(n int) int {
		if tokens := p.prefix(n, q).Tokens; tokens > 0 {
			return int(tokens)
		}
		return -1
	})
	covers := best(2, func(n int) (count int) {
		for _, item := range q.Items {
			if p.held(n, item) != plan.Missing {
				count++
			}
		}
		return count
	})
	rows := best(2, func(n int) (count int) {
		for _, s := range q.Shards {
			if s < 100 && slices.Contains(p.beats[n].Shards, s) {
				count++
			}
		}
		return count
	})
	if len(q.Shards) == 0 {
		rows = nil
	}
	idle := p.argmax(func(n int) float64 { return -p.queue(n, now) })
	for _, n := range slices.Concat(holders, covers, rows, []int{idle, up[p.random.IntN(len(up))]}) {
		if !slices.Contains(candidates, n) {
			candidates = append(candidates, n)
		}
	}
	queues, shortest := 0.0, math.Inf(1)
	for _, n := range up {
		queues += p.queue(n, now)
	}
	for _, n := range candidates {
		shortest = min(shortest, p.price(n, q, now).own)
	}
	total := func(n int) float64 {
		price := p.price(n, q, now)
		return price.ms + price.own*min(8, queues/float64(len(up))/shortest)
	}
	node = slices.MinFunc(candidates, func(a, b int) int { return int(math.Copysign(1, total(a)-total(b))) })
	if total(home) <= 1.01*total(node) {
		node = home
	}
	return node, len(candidates)
}

// pick picks a node as the router should.
func (p *plain) pick(q *Request, now time.Duration) Choice {
	node, count := 0, 1
	switch up := p.up(); p.config.Policy {
	case Predicted:
		node, count = p.predicted(q, now)
	case Affinity:
		node = p.affinity(q, now)
	case Joint, KVOnly, EMBOnly:
		node = p.joint(q, now)
	case LeastLoaded:
		node = p.argmax(func(n int) float64 { return -p.queue(n, now) })
	case RoundRobin:
		i := max(0, slices.IndexFunc(up, func(n int) bool { return n >= p.turn }))
		node = up[i]
		p.turn = node + 1
	case UserHash:
		score := func(n int) uint64 { return mix(q.User ^ mix(uint64(n)+1)) }
		node = up[0]
		for _, n := range up {
			if score(n) > score(node) {
				node = n
			}
		}
	}
	price := p.price(node, q, now)
	p.sends[node] = append(p.sends[node], sent{now + duration(p.config.Nodes[node].RTT/2), price.own})
	return Choice{Node: node, Ms: price.ms, Reuse: price.reuse, Priced: count}
}

// Each policy picks what its definition picks, and predicts what schedule.Decide says with the whole input.
func TestPoliciesAgreeWithTheirDefinitions(t *testing.T) {
	for policy := range numPolicies {
		reused, picked := 0, map[int]bool{}
		for seed := range uint64(100) {
			r, p := scene(t, policy, seed)
			now := time.Duration(0)
			for step := range 30 {
				now += time.Duration(p.rng.IntN(8)) * milli
				if n := p.rng.IntN(len(p.lost)); p.rng.IntN(3) == 0 && !p.lost[n] {
					p.beat(r, n, now)
				}
				q := p.ask()
				want := p.pick(q, now)
				got := r.Pick(q, now)
				if got.Node != want.Node || got.Reuse != want.Reuse || got.Priced != want.Priced || !near(got.Ms, want.Ms) {
					t.Fatalf("%v, seed %d, request %d: got %+v, want %+v", policy, seed, step, got, want)
				}
				r.look(q, now)
				for n := range p.lost { // not only the one that was picked
					if p.lost[n] || step%6 > 0 {
						continue
					}
					g, w := r.price(n, q), p.price(n, q, now)
					if !near(g.ms, w.ms) || !near(g.own, w.own) || g.reuse != w.reuse {
						t.Fatalf("%v, seed %d, request %d: node %d costs %+v, want %+v", policy, seed, step, n, g, w)
					}
				}
				reused += got.Reuse
				picked[got.Node] = true
			}
		}
		if reused == 0 || len(picked) < 16 {
			t.Errorf("%v: %d tokens reused, %d nodes picked: the draw tests too little", policy, reused, len(picked))
		}
	}
}

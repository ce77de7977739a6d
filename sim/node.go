package sim

import (
	"math"
	"math/rand/v2"
	"time"

	"grebe/plan"
	"grebe/residency"
	"grebe/schedule"
)

// node is a machine of the fleet. It does what packages serve, reuse, dispatch and kv do with a ranking, in their
// order, with the same pure rooms.
type node struct {
	f       *fleet
	id      int32
	profile *Profile
	gen     uint32 // raised when the node stops, so that its events are ignored
	up      bool
	member  bool // it is part of the fleet, though it may be down
	drains  bool // it takes no new requests
	again   bool // it starts again after it drained
	drained time.Duration
	slow    float64 // times that a batch takes longer than it should
	noise   *rand.Rand

	users, items *store // the same one, unless the scenario gives items a memory of their own
	hot          *residency.Hotness
	counting     bool // hot is in use aside; see settle
	counted      chan struct{}
	returns      *schedule.Returns
	feed         *residency.Feed
	costs        schedule.Costs

	batcher   *schedule.Batcher
	admission *schedule.Admission
	tuner     *schedule.Tuner
	model     schedule.PrefillModel
	waiting   int
	queued    schedule.Job // rows and keys of the waiting calls
	engines   []batch
	wake      int32 // number of the last wake that was asked for
	batched   batched
	underway  underway
	here      int // calls on the node

	saw     func(*call, *schedule.Request)              // may change what a decision is made from; may be nil
	decided func(*schedule.Request, *schedule.Decision) // told of decisions; may be nil

	keys  []plan.Key
	uses  []float32
	owner []int32
	// Of lookAround and farUser.
	hashes, sets []uint64
	copies       []residency.Copy

	back    backlog
	missing []task
	emb     *embeddings
	totals  nodeTotals
}

// batch is what an engine runs.
type batch struct {
	calls     []int32
	busy      bool
	began     time.Duration
	delay     time.Duration // by work outside of batches on the same cores
	predicted float64       // milliseconds
	work      Work
	sample    schedule.Sample // of work
}

const (
	tunerMemory = 256                    // as in package dispatch
	countEvery  = 200 * time.Millisecond // as in package reuse
	// Estimated costs of moving KV, as in package reuse.
	hostMsPerMiB = 0.1
	// peerMsPerEntry is the estimated cost of one key of a GET.
	peerMsPerEntry = 0.002
	// woke is the milliseconds from the end of a batch until a caller continues.
	woke = 0.05
)

// start puts an empty node up.
func (n *node) start() error {
	n.settle()
	s := n.f.scenario
	n.boots()
	var err error
	c := storeConfig{
		device: n.profile.DeviceBytes, host: n.profile.HostBytes, slots: s.Cache.Slots, policy: s.Cache.Policy,
		predict: s.Cache.Predict,
		token:   n.profile.KVTokenBytes, page: n.f.page,
	}
	own := int64(s.Cache.ItemMemory)
	if own > 0 {
		c.host -= own
	}
	if n.users, err = newStore(c); err != nil {
		return err
	}
	n.items = n.users
	if own > 0 {
		c.device, c.host = 0, own
		if n.items, err = newStore(c); err != nil {
			return err
		}
	}
	if n.hot, err = residency.NewHotness(residency.HotnessConfig{
		Users: s.Cache.Users, Items: s.Cache.Items, Buffer: 1 << 12}); err != nil {
		return err
	}
	n.users.books.SetHotness(n.hot)
	n.users.books.SetFeed(n.feed)
	n.items.books.SetFeed(n.feed)
	n.returns = schedule.NewReturns()
	n.users.dropped = func(h *held) {
		if h.Kind != plan.User {
			return
		}
		n.returns.Evicted(residency.Hash(h.Key), n.f.now)
		if n.emb != nil {
			n.emb.evicted(h.Key, h.Bytes)
		}
	}
	n.price()
	if err := n.open(); err != nil {
		return err
	}
	if n.emb = n.newEmbeddings(); n.emb != nil {
		n.divide(s.Embeddings.Share)
	}
	return nil
}

// boots begins a new life.
func (n *node) boots() {
	n.f.lives++
	n.feed = residency.NewFeed(n.f.lives, n.f.scenario.Route.Ring)
	n.up, n.drains = true, false
	n.here = 0
	n.batched, n.underway = newBatched(), underway{all: map[uint64]*pending{}}
}

// price sets the costs that decisions use, as reuse.New does.
func (n *node) price() {
	mib := float64(n.profile.KVTokenBytes) / (1 << 20)
	n.costs = schedule.DefaultCosts(n.profile.Prefill)
	n.costs.Transfer[plan.Host] = schedule.Transfer{Token: mib * hostMsPerMiB}
	n.costs.Keep = n.users.tiers[0]
	if b := n.f.scenario.Network.Bandwidth; b > 0 {
		n.costs.Transfer[plan.Peer] = schedule.Transfer{
			Entry: peerMsPerEntry, Token: 1e3 * float64(n.profile.KVTokenBytes) / b.bytes()}
	}
}

// open makes the queue, as dispatch.New does.
func (n *node) open() error {
	s := n.f.scenario
	c := schedule.DefaultBatcher(s.Queue, s.SLO.Duration)
	c.MaxRows = n.profile.MaxRows
	if s.Batch == 1 {
		c.MaxRows = 1
	}
	var err error
	if n.batcher, err = schedule.NewBatcher(c, n.profile.Prefill); err != nil {
		return err
	}
	if n.tuner, err = schedule.NewTuner(n.profile.Prefill, tunerMemory); err != nil {
		return err
	}
	n.model = n.tuner.Model()
	n.engines = make([]batch, s.Fleet.Workers)
	n.admission = schedule.NewAdmission(n.batcher, len(n.engines))
	n.waiting, n.queued = 0, schedule.Job{}
	return nil
}

// backlogMs returns the predicted milliseconds of work ahead of a request that arrives now.
func (n *node) backlogMs() float64 {
	ahead := n.admission.Running() + n.model.Predict(n.queued.Rows, n.queued.Keys, n.waiting)
	ahead /= float64(len(n.engines))
	if n.emb != nil { // its rows come after those of others, while they compute
		ahead = max(ahead, (n.emb.link-n.f.now).Seconds()*1e3)
	}
	return ahead
}

// reads returns the time of a server's work for a call outside of batches. On shared cores that delays the batches that
// run.
func (n *node) reads(c *call) time.Duration {
	front := &n.profile.Front
	ms := front.ms(len(c.Items), n.f.prompt.length(c))
	delay := inMs(ms)
	if front.Delay > 0 {
		delay = inMs(front.Delay)
	}
	busy := 0
	for e := range n.engines {
		if n.engines[e].busy {
			busy++
			if front.Shared {
				n.engines[e].delay += delay
			}
		}
	}
	if busy == len(n.engines) {
		return inMs(ms*front.Beside.draw(n.noise) + front.Busy)
	}
	return inMs(ms * front.Idle.draw(n.noise))
}

// arrive takes a call.
func (n *node) arrive(i int32) {
	c := n.f.calls.all[i]
	c.begun = n.f.now
	c.here = true
	n.here++
	n.totals.Requests++
	place, price := n.admission.Admit(schedule.Single, len(c.Items), n.f.now, c.deadline)
	if price.Late > 0 {
		n.leave(i, refused)
		return
	}
	c.place, c.admitted = place, true
	n.decide(c, float64(c.deadline-n.f.now)/float64(time.Millisecond), n.f.scenario.policy)
	if n.emb != nil {
		n.f.push(event{at: n.look(c), kind: enters, node: n.id, arg: i, gen: n.gen})
		return
	}
	if !n.ask(i) && (!n.f.scenario.Network.Overlap || !n.fetch(i)) {
		n.enter(i)
	}
}

// decide finds the cached KV of a call and chooses its prefix order, as reuse.Begin does.
// Slack is in milliseconds.
func (n *node) decide(c *call, slack float64, policy schedule.Policy) {
	s, now := n.f.scenario, n.f.now
	n.lookUp(c)
	if b := &s.Prompt.Blend; b.on() && !b.Auto {
		n.blend(c)
		return
	}
	user := n.f.keys.user(c.User)
	in := schedule.Request{
		Preamble: int32(n.f.prompt.preamble), LeadIn: int32(n.f.prompt.leadIn), Question: int32(n.f.prompt.question),
		PerItem: n.f.prompt.perItem,
		Orders:  s.orders, User: c.UserTokens, Items: c.ItemTokens, ItemTier: c.tiers, ItemFrequency: n.uses,
		Slack: slack,
	}
	in.SharedCached = n.has(0) && n.has(1)
	own := 0
	if h := n.users.books.Get(user); h != nil {
		own = min(h.Tokens, int(c.UserTokens))
		in.UserCached[n.users.tiers[h.Level()]] = int32(own)
	}
	asked := 0
	if n.f.holders {
		asked = n.lookAround(c)
		if n.farUser(c, own) {
			in.UserCached[plan.Peer] = c.far - int32(own)
			asked++
		}
	}
	in.Frequency, in.Coldest = n.hot.User(user, now)
	in.Returns, in.ReturnsKnown = n.returns.Expect(in.Frequency), true
	in.UserRoom = own > 0 || n.hasRoom(int(c.UserTokens))
	in.Queue = n.backlogMs()
	if n.saw != nil {
		n.saw(c, &in)
	} else if !in.UserRoom {
		in.Returns *= n.returns.Gain(in.Frequency)
	}
	costs := n.costs
	costs.Model = n.model
	if asked > 0 {
		costs.Transfer[plan.Peer] = n.priceOthers(asked)
	}
	d := schedule.Decide(&in, &costs, policy)
	if n.decided != nil {
		in, d := in, d // so that only these are allocated
		n.decided(&in, &d)
	}
	c.order, c.reuse, c.freq, c.returns = d.Order, d.Reuse, in.Frequency, in.Returns
	c.hit = d.Reuse && d.Order == plan.UserFirst && own > 0
	if s.Prompt.Blend.on() && d.Reuse && n.blendPays(&in, &d) {
		n.blend(c)
		return
	}
	if c.patience = 0; asked > 0 {
		if c.patience = n.patient(c, &in, &d, costs.Transfer[plan.Peer]); c.patience > 0 {
			return // what it uses is known when the others have answered
		}
		n.lookHere(c)
	}
	n.attach(c, d.Chosen())
}

// blendPays reports whether a blended prompt is predicted to be faster, as Visit.BlendPays does.
func (n *node) blendPays(in *schedule.Request, d *schedule.Decision) bool {
	const layers = 1 << 10 // Blending takes whole layers
	how := &n.f.prompt.blend
	b := schedule.Blending{Layers: layers, First: int(layers * how.Whole), Budget: how.Items}
	_, pays := b.Pays(in, &n.model, d.Chosen())
	return pays
}

// blend has a call take the KV of items that the node has, wherever they stand in the prompt.
func (n *node) blend(c *call) {
	c.blended, c.reuse, c.order = true, true, plan.ItemFirst
	n.attach(c, nil)
	history := int(float64(c.UserTokens) * (1 - n.f.prompt.blend.History))
	c.tokens[plan.Host] += history
	if n.profile.DeviceBytes > 0 {
		c.hostRead += int64(history) * n.users.token
	}
}

// lookUp sets the tiers of the call's items and their expected uses. An item that this node does not have is expected
// at the node that the map names.
func (n *node) lookUp(c *call) {
	n.keys = n.keys[:0]
	for _, item := range c.Items {
		n.keys = append(n.keys, n.f.keys.item(item))
	}
	c.tiers = resize(c.tiers, len(c.Items))
	n.uses = resize(n.uses, len(c.Items))
	n.items.books.Status(n.keys, c.tiers)
	n.hot.Items(n.keys, c.tiers, n.f.now, n.uses)
	n.owner = resize(n.owner, len(c.Items))
	if !n.f.peers {
		return
	}
	for i, item := range c.Items {
		if c.tiers[i] == plan.Missing {
			if n.owner[i] = n.f.ownerOf(item, n.id); n.owner[i] >= 0 {
				c.tiers[i] = plan.Peer
			}
		}
	}
}

func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/4)
	}
	return s[:n]
}

// has reports whether the preamble (0) or the lead-in (1) is cached.
func (n *node) has(number int) bool {
	return n.f.prompt.fixed(number) == 0 || n.users.books.Get(n.f.keys.shared(number)) != nil
}

// hasRoom reports whether a user can be kept without evicting anything.
func (n *node) hasRoom(tokens int) bool {
	top := &n.users.mem[0]
	room, full := schedule.HasRoom(int64(tokens)*n.users.token, top.used, top.total, n.users.full)
	n.users.full = full
	return room
}

// attach pins the entries that the chosen order uses, as Visit.Attach does, and counts what is left to compute.
func (n *node) attach(c *call, chosen *schedule.Option) {
	if !c.reuse || c.order == plan.UserFirst { // items are computed, whoever has their KV
		for i := range c.tiers {
			c.tiers[i] = plan.Missing
		}
	}
	if !c.reuse {
		return
	}
	n.attachShared(c)
	if c.order == plan.UserFirst {
		n.attachUser(c)
		return
	}
	c.items = resize(c.items, len(c.Items))
	clear(c.items)
	n.items.books.Warm(n.keys)
	for i := range c.Items {
		switch {
		case c.tiers[i] == plan.Missing && n.items.pace == nil:
			c.items[i] = n.expect(c, n.keys[i], int(c.ItemTokens[i]))
			continue
		case c.tiers[i] == plan.Peer:
			if !c.blended && n.f.scenario.Network.Overlap && !chosen.Load.Has(plan.Peer) {
				c.tiers[i] = plan.Missing
			}
			continue
		}
		h, at := (*held)(nil), plan.Missing
		if n.items.look(n.keys[i]) {
			h, at = n.items.use(n.keys[i])
		}
		if c.tiers[i] = at; h == nil {
			c.items[i] = n.expect(c, n.keys[i], int(c.ItemTokens[i]))
			continue
		}
		n.found(c, n.items, h, c.from(i, at), int(c.ItemTokens[i]))
	}
}

// attachShared finds the preamble, and the lead-in if items come first.
func (n *node) attachShared(c *call) {
	for k := range c.shared {
		if c.shared[k] = n.f.prompt.fixed(k) == 0; c.shared[k] || k == 1 && c.order == plan.UserFirst {
			continue
		}
		if n.users.look(n.f.keys.shared(k)) {
			if h, at := n.users.use(n.f.keys.shared(k)); h != nil {
				c.shared[k] = true
				n.found(c, n.users, h, at, h.Tokens)
				continue
			}
		}
		n.expect(c, n.f.keys.shared(k), n.f.prompt.fixed(k))
	}
}

func (n *node) attachUser(c *call) {
	key, tokens := n.f.keys.user(c.User), int(c.UserTokens)
	c.keep = true
	there := n.users.look(key)
	if h := n.users.books.Get(key); h != nil && there {
		known := min(h.Tokens, tokens)
		n.users.books.Asked(h, tokens, known)
		if h, at := n.users.use(key); h != nil {
			if known < h.Tokens { // what is behind the user's tokens may be evicted
				h = n.users.leading(h, known)
				defer n.users.unpin(h)
			}
			if c.userCame {
				at = plan.Peer
			}
			c.cached, c.userAt, c.older = known, at, h
			c.keep = known < tokens
			n.found(c, n.users, h, at, known)
		}
	}
	if c.keep {
		c.awaited = n.expect(c, key, tokens)
	}
}

// found pins an entry and counts its tokens.
func (n *node) found(c *call, s *store, h *held, at plan.Tier, tokens int) {
	s.pin(h)
	c.pinned = append(c.pinned, pin{h: h, s: s})
	c.tokens[at] += tokens
	if at == plan.Host && n.profile.DeviceBytes > 0 {
		c.hostRead += int64(tokens) * s.token
	}
}

// enter queues a call that is not refused.
func (n *node) enter(i int32) {
	if !n.queues(i) {
		n.leave(i, refused)
		return
	}
	n.step()
}

func (n *node) queues(i int32) bool {
	_, queued := n.add(i, n.f.now)
	return queued
}

// add queues a call, as Dispatcher.add does. It returns false if the call is refused.
func (n *node) add(i int32, arrival time.Duration) (price schedule.Price, queued bool) {
	c := n.f.calls.all[i]
	c.queue = schedule.Job{ID: uint64(i), Arrival: arrival, Deadline: c.deadline}
	c.work = n.f.prompt.cost(c, n.profile.Tile())
	c.queue.Rows, c.queue.Keys = c.work.Rows, c.work.Keys
	if c.admitted {
		price, _ = n.admission.Enter(&c.place, n.model.Predict(c.queue.Rows, c.queue.Keys, 1), n.f.now, c.deadline)
		if price.Late > 0 {
			return price, false
		}
	}
	if !n.batcher.Add(c.queue) {
		return price, false
	}
	n.waiting++
	n.queued.Rows += c.queue.Rows
	n.queued.Keys += c.queue.Keys
	return price, true
}

// step gives free engines their next batches, as Dispatcher.take does.
func (n *node) step() {
	for e := range n.engines {
		if n.engines[e].busy {
			continue
		}
		at, ran := n.take(e)
		if ran {
			continue
		}
		if n.wake++; at != schedule.Never {
			n.f.push(event{at: max(at, n.f.now), kind: steps, node: n.id, arg: n.wake, gen: n.gen})
		}
		return
	}
}

// take asks the Batcher for a batch of an engine. If there is none, it returns when to ask again.
func (n *node) take(e int) (at time.Duration, ran bool) {
	jobs, gone, _, at := n.choose()
	for i := range gone {
		n.leave(int32(gone[i].ID), shed)
	}
	if len(jobs) == 0 {
		return at, false
	}
	n.launch(e, jobs)
	n.f.push(event{at: n.f.now + inMs(n.engines[e].sample.Ms), kind: ends, node: n.id, arg: int32(e), gen: n.gen})
	return 0, true
}

// choose takes the jobs of the next batch and those that are too late out of the queue, as Dispatcher.step does. It
// reports whether the batch is one job that would be too late and is tried.
func (n *node) choose() (jobs, gone []schedule.Job, tries bool, at time.Duration) {
	jobs, gone, at = n.batcher.Step(n.f.now)
	tries = len(jobs) == 0 && len(gone) > 0 && n.admission.Tries(n.model.Predict(gone[0].Rows, gone[0].Keys, 1), n.f.now,
		gone[0].Deadline)
	if tries {
		jobs, gone = gone[:1], gone[1:]
	}
	for i := range gone {
		n.dequeue(&gone[i])
	}
	for i := range jobs {
		n.dequeue(&jobs[i])
	}
	return jobs, gone, tries, at
}

// launch begins a batch on an engine.
func (n *node) launch(e int, jobs []schedule.Job) {
	b := &n.engines[e]
	b.calls, b.busy, b.began, b.delay = b.calls[:0], true, n.f.now, 0
	var rows, keys int
	for i := range jobs {
		b.calls = append(b.calls, int32(jobs[i].ID))
		rows, keys = rows+jobs[i].Rows, keys+jobs[i].Keys
	}
	b.predicted = n.model.Predict(rows, keys, len(jobs))
	n.admission.Begin(e, b.predicted, n.f.now)
	n.begin(b)
}

func (n *node) dequeue(j *schedule.Job) {
	n.waiting--
	n.queued.Rows -= j.Rows
	n.queued.Keys -= j.Keys
}

// begin reserves memory for what a batch computes and keeps, and sets how long the batch takes. What several of its
// calls need, or what was computed since they looked, is computed once.
func (n *node) begin(b *batch) {
	var host int64
	var wait time.Duration
	b.work = Work{}
	if n.f.peers && !n.f.scenario.Network.Overlap {
		wait = n.fetchNow(b)
	}
	n.gather(b)
	for _, i := range b.calls {
		c := n.f.calls.all[i]
		b.work.Add(&c.work)
		b.work.sub(&c.spared)
		host += c.hostRead
	}
	b.sample = schedule.Sample{Requests: len(b.calls), Rows: b.work.Rows, Keys: b.work.Keys}
	ms := n.profile.Served(&b.work) * n.profile.Ratios.draw(n.noise)
	if n.profile.Noise > 0 && len(n.profile.Ratios) == 0 {
		ms *= math.Exp(n.profile.Noise * n.noise.NormFloat64())
	}
	if host > 0 {
		ms = max(ms, 1e3*float64(host)/n.profile.HostLink)
	}
	b.sample.Ms = ms*n.slow + wait.Seconds()*1e3 // where fetches do not overlap, they count as compute
}

// computing marks an item that the call computes and keeps.
const computing = plan.NumTiers

// ended ends a batch, as Dispatcher.work does.
func (n *node) ended(e int) {
	if b := &n.engines[e]; b.delay > 0 {
		b.sample.Ms += b.delay.Seconds() * 1e3
		n.f.push(event{at: n.f.now + b.delay, kind: ends, node: n.id, arg: int32(e), gen: n.gen})
		b.delay = 0
		return
	}
	n.free(e)
	n.measured(&n.engines[e])
	b := &n.engines[e]
	n.totals.Batches++
	n.totals.Busy += n.f.now - b.began
	if n.emb != nil {
		n.emb.epoch.busy += n.f.now - b.began
	}
	n.totals.Rows += int64(b.sample.Rows)
	for _, i := range b.calls {
		n.admission.Woke(woke)
		c := n.f.calls.all[i]
		c.ran, c.ended = b.began, n.f.now
		if c.full {
			if n.restart(c); !n.queues(i) {
				n.leave(i, refused)
			}
			continue
		}
		c.place.Done(true)
		n.leave(i, answered)
	}
	b.calls = b.calls[:0]
	n.step()
}

// free ends the batch of an engine: others may use what it computed.
func (n *node) free(e int) {
	b := &n.engines[e]
	b.busy = false
	n.deliver(b)
	n.admission.Ended(e, b.predicted)
}

// measured learns from a batch, as Dispatcher.observe does.
func (n *node) measured(b *batch) {
	predicted := b.predicted
	if rows := b.sample.Rows; rows > 0 {
		predicted = n.model.Predict(rows, b.sample.Keys, b.sample.Requests)
	}
	n.admission.Measured(b.sample.Ms, predicted)
	n.tuner.Observe(b.sample)
	n.model = n.tuner.Model()
	n.batcher.SetModel(n.model)
	n.batcher.SetSlack(n.admission.Slack())
}

// leave ends a call on the node, as Visit.End and Place.Leave do, and sends its answer.
func (n *node) leave(i int32, how outcome) {
	c := n.f.calls.all[i]
	c.here = false
	n.here--
	if c.admitted {
		n.end(c)
		for _, m := range c.made {
			if how == answered {
				n.publish(m)
			} else {
				m.s.unpin(m.h)
			}
		}
		n.release(c)
		n.admission.Leave(&c.place, n.f.now)
	}
	c.outcome, c.backlog = how, n.backlogMs()
	n.f.push(event{at: n.f.now + n.f.trip(c.router, n.id), kind: answers, node: n.id, arg: i, gen: c.gen})
}

// end notes the accesses of a call.
func (n *node) end(c *call) {
	now, key := n.f.now, n.f.keys.user(c.User)
	user := residency.Hash(key)
	n.returns.Came(user, c.freq, now)
	switch {
	case c.hit:
		n.returns.Hit(user)
	case c.reuse && c.order == plan.UserFirst:
		n.returns.Kept(user, c.returns)
	}
	n.hot.NoteUser(key, now, c.hit)
	if c.reuse {
		n.keys = n.keys[:0]
		for _, item := range c.Items {
			n.keys = append(n.keys, n.f.keys.item(item))
		}
		n.hot.NoteItems(n.keys, now)
	}
	c.total = n.f.prompt.length(c)
}

// publish publishes an entry that a call computed.
func (n *node) publish(m pin) {
	m.s.publish(m.h)
	if m.h.Kind == plan.Item {
		n.offer(m.h.Value.item)
	}
	m.s.unpin(m.h)
}

// release ends the use of entries by a call.
func (n *node) release(c *call) {
	for _, p := range c.pinned {
		p.s.unpin(p.h)
	}
	for _, p := range c.expected {
		n.leaves(p)
	}
	c.made, c.pinned, c.expected = c.made[:0], c.pinned[:0], c.expected[:0]
}

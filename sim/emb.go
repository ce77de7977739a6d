package sim

import (
	"slices"
	"time"

	"grebe/alloc"
	"grebe/embed"
	"grebe/evict"
	"grebe/plan"
	"grebe/residency"
	"grebe/sim/grains"
)

// Events is a Stream of requests to a model of events: a user's tokens are events, and events and candidates look up
// embedding rows, in grains of rows that are popular alike. Grains are numbered by popularity, the hottest first.
type Events interface {
	// Grains returns how many there are, and the rows of each.
	Grains() (count, rows int)
	// AppendGrains appends the grains that a request reads if so many of its user's first events have their KV cached.
	AppendGrains(dst []int32, r *Request, cached int) []int32
}

// Embeddings says how nodes divide the device's memory between embeddings and KV, for models of events.
type Embeddings struct {
	Share      float64 `yaml:"share"`      // of embeddings, at the beginning; 0.5
	Controller string  `yaml:"controller"` // climb or static; climb
}

// embeddings is a node's cache of embedding rows, and the boundary between it and KV.
type embeddings struct {
	stream     Events
	cache      *grains.Cache
	rows       int   // of a grain
	grain      int64 // bytes of a grain
	total      int64 // bytes of both caches
	alpha      float64
	controller alloc.Controller
	governor   alloc.Governor
	link       time.Duration // the link is free then
	ghost      *alloc.Ghost  // of users' KV
	read       []int32
	keys       []uint64
	misses     []int32 // of keys
	looks      *embed.Shards
	held       []byte

	epoch, part tally // counts since the last epoch, and since the last glance
	glances     int
	last        alloc.Observation
}

// tally counts what a controller observes.
type tally struct {
	requests, hot, hits, looks, found, events, late int
	busy                                            time.Duration // of engines
	moved                                           int64         // bytes over the link
	gains                                           alloc.Gains
	latency                                         []float32
}

// newEmbeddings returns the embeddings of a node; nil if its model has none.
func (n *node) newEmbeddings() *embeddings {
	stream, ok := n.f.source.(Events)
	p, s := n.profile, n.f.scenario
	if !ok || p.RowBytes == 0 || p.DeviceBytes == 0 {
		return nil
	}
	count, rows := stream.Grains()
	bytes := rows * int(p.RowBytes)
	most, first := grains.MostSets(bytes, p.DeviceBytes), grains.MostSets(bytes, rowsOf(p.DeviceBytes, s.Embeddings.Share))
	if s.Embeddings.Controller == "static" {
		most = first
	}
	e := &embeddings{
		stream: stream, rows: rows, grain: int64(bytes), total: p.DeviceBytes,
		ghost:      alloc.NewGhost(4096 * s.Fleet.Workers),
		controller: alloc.Static(s.Embeddings.Share), cache: grains.New(count, bytes, most, p.DeviceBytes),
	}
	e.looks = embed.NewShards(count, first*evict.SlabSlots)
	e.governor = alloc.Governor{Link: p.RowLink * float64(s.Fleet.Workers), Share: s.Placement.Fill}
	if s.Embeddings.Controller == "climb" {
		e.controller = &alloc.Climb{SLO: s.SLO.Seconds() * 1e3}
	}
	return e
}

// divide moves the boundary: KV and embeddings give up what they have too much.
func (n *node) divide(alpha float64) {
	e := n.emb
	e.alpha = alpha
	top := &n.users.mem[0]
	top.total = max(int64((1-alpha)*float64(e.total)), 1)
	n.users.books.Resize(0, top.total)
	n.users.fit(0)
	_, most := e.cache.Sets()
	e.cache.Resize(min(grains.MostSets(int(e.grain), rowsOf(e.total, alpha)), most))
}

// rowsOf returns the bytes of embeddings that have a share of memory.
func rowsOf(total int64, share float64) int64 { return int64(share * float64(total)) }

// look looks up the rows of a call, and returns when those that are missing are there.
func (n *node) look(c *call) time.Duration {
	e, now := n.emb, n.f.now
	e.fill(now)
	e.read = e.stream.AppendGrains(e.read[:0], &c.Request, c.cached)
	e.keys, e.misses = e.keys[:0], e.misses[:0]
	ms := 1e3 * float64(e.grain) / n.profile.RowLink
	for i, g := range e.read {
		if !e.cache.Use(g, ms, &e.epoch.gains.Emb) {
			e.misses = append(e.misses, int32(i))
		}
		e.keys = append(e.keys, uint64(g))
	}
	missed := len(e.misses)
	e.looks.Count(e.keys, e.misses)
	e.observe(n, c, len(e.read), len(e.read)-missed)
	if c.counted {
		n.f.result.looks += len(e.read)
		n.f.result.found += len(e.read) - missed
	}
	bytes := int64(missed) * e.grain
	c.rowsMiss = missed * e.rows
	e.governor.Demand(now.Seconds(), bytes)
	alone := time.Duration(float64(bytes) / n.profile.RowLink * float64(time.Second))
	e.link = max(e.link, now) + alone/time.Duration(len(n.engines))
	there := max(e.link, now+alone)
	if missed > 0 {
		e.looks.Fetched(missed, there-now)
	}
	return there
}

// observe counts a request for the controller.
func (e *embeddings) observe(n *node, c *call, looks, found int) {
	key := residency.Hash(userKey(c.User))
	t := &e.epoch
	if c.cached == 0 {
		if depth, ok := e.ghost.Missed(key); ok {
			m := &n.model
			whole := int(c.UserTokens)
			t.gains.KV.Add(depth, e.total, m.Predict(whole, causal(0, whole, 0), 1)-m.Predict(0, 0, 1))
			t.gains.KVLink.Add(depth, e.total, 1e3*float64(int64(looks)*e.grain)/n.profile.RowLink)
		}
	}
	t.requests++
	t.events += int(c.UserTokens)
	t.looks += looks
	t.found += found
	t.moved += int64(looks-found) * e.grain
	if c.freq > 0 {
		t.hot++
	}
	if c.cached > 0 {
		t.hits++
	}
}

// fill moves grains into new sets with what the governor grants, while the link is idle.
func (e *embeddings) fill(now time.Duration) {
	if e.cache.Settled() || e.link > now {
		return
	}
	e.governor.Spend(e.cache.Rehome(e.governor.Grant(now.Seconds(), e.total)))
}

// evicted notes that a user's KV left memory.
func (e *embeddings) evicted(key plan.Key, bytes int64) {
	e.ghost.Evicted(max(residency.Hash(key), 1), bytes)
}

// note counts a call that ended.
func (e *embeddings) note(took, slo time.Duration) {
	e.epoch.latency = append(e.epoch.latency, float32(took.Seconds()*1e3))
	if took > slo {
		e.epoch.late++
	}
}

// since returns what was counted after before was.
func (t *tally) since(before *tally) tally {
	d := *t
	d.requests -= before.requests
	d.hot -= before.hot
	d.hits -= before.hits
	d.looks -= before.looks
	d.found -= before.found
	d.events -= before.events
	d.busy -= before.busy
	d.moved -= before.moved
	d.gains = t.gains.Less(&before.gains)
	return d
}

// observation describes a part of the run to a controller, but for latencies.
func (n *node) observation(t *tally, over time.Duration) alloc.Observation {
	r, seconds := float64(max(t.requests, 1)), over.Seconds()*float64(len(n.engines))
	return alloc.Observation{
		State: alloc.State{
			Hot: float64(t.hot) / r, KVHit: float64(t.hits) / r, EmbHit: float64(t.found) / float64(max(t.looks, 1)),
			Events: float64(t.events) / r, Alpha: n.emb.alpha,
		},
		Requests: t.requests, LinkLoad: float64(t.moved) / n.profile.RowLink / seconds, GPULoad: t.busy.Seconds() / seconds,
		Gains: t.gains,
	}
}

// epochPart is the time between two looks of a controller.
const epochPart = alloc.Epoch * time.Second / alloc.Glances

// glance shows the controller a part of an epoch, and at its end the epoch.
func (n *node) glance() {
	e := n.emb
	if e.glances++; e.glances%alloc.Glances != 0 {
		if w, ok := e.controller.(alloc.Watcher); ok {
			part := e.epoch.since(&e.part)
			o := n.observation(&part, epochPart)
			o.P99, o.Late = e.last.P99, e.last.Late
			if d, ok := w.Glance(&o); ok {
				n.divide(d.To)
			}
		}
		e.part = e.epoch
		return
	}
	t := &e.epoch
	o := n.observation(t, alloc.Epoch*time.Second)
	slices.Sort(t.latency)
	o.P99, o.Late = quantile(t.latency, .99), float64(t.late)/float64(max(len(t.latency), 1))
	e.last = o
	if d := e.controller.Decide(&o); d.To != e.alpha {
		n.divide(d.To)
	}
	*t = tally{latency: t.latency[:0]}
	e.part = tally{}
}

// alpha returns the share of memory that embeddings have.
func (n *node) alpha() float64 {
	if n.emb == nil {
		return 0
	}
	return n.emb.alpha
}

// shards appends the embedding shards that the node holds.
func (n *node) shards(dst []uint32) []uint32 {
	if n.emb == nil {
		return dst
	}
	e := n.emb
	e.held = e.looks.AppendHeld(e.held[:0])
	for s := range uint32(embed.MostShards) {
		if e.held[s/8]>>(s%8)&1 == 1 {
			dst = append(dst, s)
		}
	}
	return dst
}

// rowMs returns the milliseconds to fetch a grain, as the node has measured it; 0 if it has fetched none.
func (n *node) rowMs() float64 {
	if n.emb == nil {
		return 0
	}
	return n.emb.looks.RowMs()
}

// shardsOf sets the shards of most of the grains that a request reads, the hottest first, and how many grains it reads.
func (f *fleet) shardsOf(r *Request) {
	stream, ok := f.source.(Events)
	if r.Shards = r.Shards[:0]; !ok || f.shards == nil {
		return
	}
	f.grains = stream.AppendGrains(f.grains[:0], r, int(r.UserTokens))
	r.ItemRows = len(f.grains)
	f.grains = stream.AppendGrains(f.grains[:0], r, 0)
	r.UserRows = len(f.grains) - r.ItemRows
	r.Shards = f.shards.Hottest(r.Shards, func(yield func(key uint64) bool) {
		for _, g := range f.grains {
			if !yield(uint64(g)) {
				return
			}
		}
	})
}

// Package reuse ranks without computing again what an earlier request computed (BAT).
//
// For each request it finds the cached KV of the user and the items and lets package schedule choose the prefix order.
// It pins the entries that this order can use and passes them to the engine's job. When the job is done it publishes
// the computed KV that may be used again: the user with user-first, the items with item-first, preamble and lead-in
// with both.
//
// A user with an id has its own entry under that id, so that deleting the user deletes the entry. Tokens without an id
// (inline histories, queries of /v1/score and /v1/rerank) are found by their content. The store keeps them as known
// prefixes. Any request may use the part of a known prefix that its own tokens begin with, including users whose entry
// is missing or shorter. A named user's tokens never become a known prefix.
//
// Reuse is exact: entries are found by the content that they depend on, so the result is the same as without a cache.
//
// A Cache is safe for concurrent use. A Visit belongs to one request.
package reuse

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"grebe/compute"
	"grebe/engine"
	"grebe/evict"
	"grebe/internal/record"
	"grebe/internal/tick"
	"grebe/kv"
	"grebe/plan"
	"grebe/pool"
	"grebe/prompt"
	"grebe/residency"
	"grebe/schedule"
)

// Load reports how much work waits, and how long work takes. dispatch.Dispatcher implements it.
type Load interface {
	Backlog() (ms float64, requests int)
	Model() schedule.PrefillModel
}

// Options configure a Cache.
type Options struct {
	Store  *kv.Store
	Pool   *pool.Pool
	Load   Load
	Shape  compute.Shape
	Policy schedule.Policy // for automatic choices
	Orders schedule.Orders // for automatic choices; empty: both
	// Model is a hash of everything in the model that KV depends on: weights, configuration, formats.
	Model plan.Key
	// Shared is shared with other caches over the same store; nil: there are none.
	Shared *Shared
	// Spare is the idle time in which changed items are computed again. The caches of a machine share one; nil: this
	// cache is alone.
	Spare *Spare
	// Least is how many tokens of a user cached KV must have to be used; 0: any. A model whose tokens are hashes asks for
	// as many as tell users apart.
	Least int
	// Now is the clock of frequencies, so that a replay can be faster than real time. Default: time since Share.
	Now func() time.Duration
	// Record records requests and decisions; nil: nothing is recorded.
	Record *record.Room
}

// Cache reuses the KV of one model.
type Cache struct {
	opt              Options
	prompt           *prompt.Builder
	preamble, leadIn shared
	userSpace        plan.Key // context of users' keys
	itemSpace        plan.Key // context of items' keys
	question         int32
	bytesPerToken    int64
	costs            schedule.Costs
	home             plan.Tier // tier of computed KV
	owner            uint32    // of the store's entries
	visits           sync.Pool // of *Visit
	changed          changed
	returns          *returns
	full             atomic.Bool // an entry was evicted to make room
	decisions        [2][schedule.NumReasons]atomic.Int64
	loads            loads
	means            means
	peers            atomic.Pointer[Peers]
	recorded         int // decisions so far; guarded by the record's lock
}

// shared is a fixed segment at the beginning of prompts.
type shared struct {
	tokens []int32
	key    plan.Key
}

// New makes a cache for prompts of b.
func New(b *prompt.Builder, opt Options) *Cache {
	if opt.Shared == nil {
		opt.Shared = Share(opt.Store)
	}
	if opt.Now == nil {
		opt.Now = opt.Shared.now
	}
	c := &Cache{opt: opt, prompt: b, returns: &returns{core: schedule.NewReturns(), rec: opt.Record},
		question: int32(len(b.Instruction()))}
	c.loads.init()
	c.loads.pace.Record(opt.Record.Sub("pace"))
	c.changed.some, c.changed.items = make(chan struct{}, 1), map[plan.Key]*changedItem{}
	if c.opt.Spare == nil {
		c.opt.Spare = NewSpare()
	}
	base := kv.KeyOf(opt.Model, nil, fmt.Sprintf("grebe kv %d %v", kv.ComputeVersion, opt.Shape.KV))
	c.preamble = shared{b.Preamble(), kv.KeyOf(base, b.Preamble(), "preamble")}
	c.leadIn = shared{b.LeadIn(), kv.KeyOf(c.preamble.key, b.LeadIn(), "lead-in")}
	c.userSpace = kv.KeyOf(c.preamble.key, nil, "user")
	c.itemSpace = kv.KeyOf(c.leadIn.key, nil, "item")
	c.bytesPerToken = int64(opt.Shape.ChunkBytes(kv.ChainTokens, false)) / kv.ChainTokens
	c.costs = schedule.DefaultCosts(schedule.PrefillModel{})
	mib := float64(c.bytesPerToken) / (1 << 20)
	c.costs.Transfer[plan.Host] = schedule.Transfer{Token: mib * hostMsPerMiB}
	c.costs.Transfer[plan.Disk] = schedule.Transfer{Entry: diskMsPerEntry, Token: mib * diskMsPerMiB}
	c.visits.New = func() any { return &Visit{} }
	c.home = opt.Store.Top()
	c.costs.Keep = c.home
	c.owner = opt.Store.Owner(opt.Model)
	c.opt.Shared.join(c)
	c.recordOpen()
	return c
}

// dropped learns from an entry that left memory.
func (c *Cache) dropped(key plan.Key, kind plan.Kind) {
	if kind == plan.User {
		c.returns.evicted(residency.Hash(key), c.opt.Now())
	}
	c.noteFull()
}

// forgotten learns from a known prefix that was evicted.
func (c *Cache) forgotten(key plan.Key) {
	c.returns.evicted(residency.Hash(key), c.opt.Now())
	c.noteFull()
}

// noteFull is called when an entry was dropped. It records whether that was to make room, and not a deletion.
func (c *Cache) noteFull() {
	if books := c.opt.Pool.Stats(); schedule.Crowded(books.Used, books.Total) {
		c.full.Store(true)
	}
}

// Estimated costs of bringing KV to where it is used: copies in memory, and reads and checks of records on disk at
// about 1 GiB/s. What copies to a device's memory and reads are measured to take beyond that is added, see
// schedule.Drift.
const (
	hostMsPerMiB   = 0.1
	diskMsPerMiB   = 1
	diskMsPerEntry = 0.05
)

// UserKey returns the key of a user's entry, by id. A user without an id has no entry; its key, by tokens, only counts
// its requests.
func (c *Cache) UserKey(id string, tokens []int32) plan.Key {
	if id != "" {
		return kv.KeyOf(c.userSpace, nil, id)
	}
	return kv.PrefixKey(c.userSpace, tokens)
}

// ItemKey returns the key of an item's entry.
func (c *Cache) ItemKey(tokens []int32) plan.Key { return kv.KeyOf(c.itemSpace, tokens, "") }

// Request is a ranking to plan.
type Request struct {
	UserID    string // "": found by its tokens only
	User      []int32
	Items     [][]int32
	Pointwise bool
	Policy    schedule.Policy // requested by the client
	Slack     time.Duration   // time to its deadline
}

// Visit is the use of the cache by one request. Its owner MUST call End.
type Visit struct {
	cache    *Cache
	Decision schedule.Decision

	user     plan.Key
	named    bool // the user has an id
	tokens   []int32
	items    []plan.Key
	pinned   []*kv.Entry
	in       schedule.Request
	lengths  []int32
	tiers    []plan.Tier
	uses     []float32
	hit      bool
	segments []engine.Segment // of the job
	expected []*pending
	far      int               // leading tokens of the user that a peer has
	farCost  schedule.Transfer // of entries that peers have
	wants    []Want            // asked of peers
	came     []bool            // items that peers sent
	userCame bool
	other    []plan.Tier // see withoutPeers
	source   plan.Tier   // tier of the entry found last
	number   int         // in records
}

// Policy returns the policy of automatic choices.
func (c *Cache) Policy() schedule.Policy { return c.opt.Policy }

// Begin finds the cached KV for a request and decides its prefix order.
func (c *Cache) Begin(r *Request) *Visit {
	v := c.visits.Get().(*Visit)
	v.begin(c, r.User, r.Items)
	v.user, v.named = c.UserKey(r.UserID, r.User), r.UserID != ""
	now := c.opt.Now()
	v.uses = resize(v.uses, len(v.items))
	c.opt.Store.Uses(v.items, v.tiers, now, v.uses)
	in := &v.in
	*in = schedule.Request{
		Preamble: int32(len(c.preamble.tokens)), LeadIn: int32(len(c.leadIn.tokens)),
		Question: c.question, PerItem: r.Pointwise, Orders: c.opt.Orders, User: int32(len(r.User)),
		Items: v.lengths, ItemTier: v.tiers, ItemFrequency: v.uses,
		Slack: float64(r.Slack) / float64(time.Millisecond),
	}
	in.SharedCached = c.has(&c.preamble) && c.has(&c.leadIn)
	own := v.peekUser(in)
	peers := c.peer()
	asked := v.peekPeers(peers, in)
	in.Frequency, in.Coldest = c.opt.Store.Frequency(v.user, now)
	in.Returns, in.ReturnsKnown = c.returns.expect(in.Frequency), true
	if in.UserRoom = own > 0 || c.room(len(r.User)); !in.UserRoom {
		in.Returns *= c.returns.gain(in.Frequency)
	}
	in.Queue, _ = c.opt.Load.Backlog()
	costs := c.Costs()
	v.pricePeers(peers, &costs, asked)
	v.Decision = schedule.Decide(in, &costs, r.Policy)
	if c.opt.Record.On() {
		c.recordDecision(v, &costs, r.Policy)
	}
	c.decisions[v.Decision.Order][v.Decision.Reason].Add(1)
	tokens := 0
	for _, n := range v.lengths {
		tokens += int(n)
	}
	c.means.note(len(r.User), len(r.Items), tokens)
	v.hit = v.Decision.Reuse && v.Decision.Order == plan.UserFirst && own > 0
	return v
}

// peekUser fills in how much of the user is cached in each tier. It returns how much of that, in memory, is the user's
// own. KV of others who begin with the same tokens is no sign of a return, unless it is half of the user.
func (v *Visit) peekUser(in *schedule.Request) (own int) {
	store := v.cache.opt.Store
	at := plan.Missing
	if v.named {
		own, at = store.PeekPrefix(v.user, v.tokens)
	}
	cached := own
	if known, place := store.PeekMatch(v.cache.userSpace, v.tokens); known > own {
		if cached, at = known, place; 2*known >= len(v.tokens) {
			own = known
		}
	}
	e, ok := v.cache.opt.Store.Lookup(v.user)
	if ok && v.named && e.Tier == plan.Disk && int(e.Tokens) > cached {
		in.UserCached[plan.Disk] = min(e.Tokens, in.User) // if the tokens have not changed
		return 0
	}
	in.UserCached[at] = int32(cached)
	return own
}

// room reports whether a user can be kept without evicting anything.
func (c *Cache) room(tokens int) bool {
	books, was := c.opt.Pool.Stats(), c.full.Load()
	room, full := schedule.HasRoom(int64(tokens)*c.bytesPerToken, books.Used, books.Total, was)
	if was && !full {
		c.full.Store(false)
	}
	return room
}

// begin looks up the tiers of the items.
func (v *Visit) begin(c *Cache, user []int32, items [][]int32) {
	v.cache, v.tokens, v.named = c, user, false
	v.items, v.lengths = v.items[:0], v.lengths[:0]
	for _, tokens := range items {
		v.items = append(v.items, c.ItemKey(tokens))
		v.lengths = append(v.lengths, int32(len(tokens)))
	}
	v.tiers = resize(v.tiers, len(v.items))
	c.opt.Store.Status(v.items, v.tiers)
}

func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/4)
	}
	return s[:n]
}

func (c *Cache) has(s *shared) bool {
	if len(s.tokens) == 0 {
		return true
	}
	var n [1]int32
	c.opt.Store.Peek([]plan.Key{s.key}, n[:])
	return n[0] > 0
}

// Order returns the chosen order, for the prompt's builder.
func (v *Visit) Order() plan.Order { return v.Decision.Order }

// Attach gives a job, laid out in the chosen order, the entries that it can reuse, and marks the segments to keep. It
// waits for peers and for reads from disk as long as there is time to compute instead; ctx has the request's deadline.
// Segments that have not arrived are computed.
func (v *Visit) Attach(ctx context.Context, l *prompt.Layout, job *engine.Job) {
	job.Number = v.number
	if !v.Decision.Reuse {
		return
	}
	n := len(l.Plan.Segments)
	v.segments = resize(v.segments, n)
	clear(v.segments)
	job.Segments, job.Once = v.segments, true
	c := v.cache
	for i, s := range v.shared(l) {
		if !answers(job, i) {
			v.attach(i, v.found(c.get(s.key)), len(s.tokens))
			v.expect(i, len(s.tokens), s.key, nil)
		}
	}
	if v.Decision.Chosen().Load.Has(plan.Peer) {
		v.askPeers(ctx)
	}
	var bring func(plan.Key) bool
	if v.Decision.Chosen().Load.Has(plan.Disk) {
		within, cancel := c.inTime(ctx, l.Plan)
		defer cancel()
		bring = func(key plan.Key) bool { return v.fetch(within, key) }
	}
	if v.Decision.Order == plan.UserFirst {
		user, last := v.tokens, answers(job, l.User)
		if len(user) > 0 && last {
			user = user[:len(user)-1]
		}
		if len(user) > 0 {
			v.attach(l.User, v.userEntry(user, bring), len(v.tokens))
			v.expectUser(l.User, last)
		}
		return
	}
	for i := range v.items {
		v.attach(l.Items+i, v.itemEntry(i, bring), int(v.lengths[i]))
		v.expect(l.Items+i, int(v.lengths[i]), v.items[i], nil)
	}
}

// answers reports whether a segment's last token answers and so must be computed.
func answers(job *engine.Job, segment int) bool {
	return slices.Contains(job.Hidden, segment) ||
		slices.ContainsFunc(job.Want, func(w engine.Want) bool { return w.Segment == segment })
}

// userEntry returns the cached KV of these tokens of the user: the user's own entry, or a longer known prefix. It loads
// them from disk if needed, unless bring is nil.
func (v *Visit) userEntry(tokens []int32, bring func(plan.Key) bool) *kv.Entry {
	store, space := v.cache.opt.Store, v.cache.userSpace
	var own *kv.Entry
	at, disk := plan.Missing, false
	if v.named {
		own, at = v.cache.getPrefix(v.user, tokens)
		if disk = own == nil && bring != nil && bring(v.user); disk {
			own, at = v.cache.getPrefix(v.user, tokens)
		}
	}
	own = v.enough(own)
	have := 0
	if own != nil {
		have = own.Len()
	}
	if known, _ := store.PeekMatch(space, tokens); known > have {
		e, place := store.Match(space, tokens)
		if e = v.enough(e); e != nil { // that long, unless something was just evicted
			if own != nil {
				own.Release()
			}
			return v.found(e, place)
		}
	}
	if disk {
		return v.fetched(own, at)
	}
	v.found(own, at)
	if v.userCame {
		v.source = plan.Peer
	}
	return own
}

// enough releases an entry of a user, which may be nil, if it has too few tokens to be used.
func (v *Visit) enough(e *kv.Entry) *kv.Entry {
	if e != nil && e.Len() < v.cache.opt.Least {
		e.Release()
		return nil
	}
	return e
}

// found records the tier of an entry.
func (v *Visit) found(e *kv.Entry, at plan.Tier) *kv.Entry {
	v.source = plan.Host
	if at == plan.Device {
		v.source = plan.Device
	}
	return e
}

// fetched records that an entry was loaded from disk.
func (v *Visit) fetched(e *kv.Entry, _ plan.Tier) *kv.Entry {
	v.source = plan.Disk
	return e
}

// itemEntry returns an item's entry. It loads it from disk if needed, unless bring is nil.
func (v *Visit) itemEntry(i int, bring func(plan.Key) bool) *kv.Entry {
	e := v.found(v.cache.get(v.items[i]))
	if len(v.came) > 0 && v.came[i] {
		v.source = plan.Peer
	}
	if e != nil || bring == nil || v.tiers[i] != plan.Disk || !bring(v.items[i]) {
		return e
	}
	return v.fetched(v.cache.get(v.items[i]))
}

// inTime returns a context that ends when a plan's segments must be computed instead of waiting for their reads, or
// with ctx.
func (c *Cache) inTime(ctx context.Context, p *plan.Plan) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	rows, keys := 0, 0
	for i := range p.Segments {
		n, seen := len(p.Segments[i].Tokens), 0
		for _, k := range p.Segments[i].Sees {
			seen += len(p.Segments[k].Tokens)
		}
		rows, keys = rows+n, keys+n*seen+n*(n+1)/2
	}
	model := c.opt.Load.Model()
	queue, _ := c.opt.Load.Backlog()
	left, compute := time.Duration(0), model.Predict(rows, keys, 1)
	if ok {
		left = time.Until(deadline)
	}
	wait := schedule.PrefixWait(left, ok, queue, compute)
	if c.opt.Record.On() {
		c.recordPatience(left, ok, queue, compute, wait)
	}
	if wait == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, wait)
}

// fetch loads an entry into memory, unless ctx ends first.
func (v *Visit) fetch(ctx context.Context, key plan.Key) bool {
	c := v.cache
	if c.read(ctx, key) == plan.Missing {
		if ctx.Err() == nil {
			c.noteFull()
		}
		return false
	}
	return true
}

// shared returns the fixed segments of a layout by index.
func (v *Visit) shared(l *prompt.Layout) []shared {
	first := l.User
	if v.Decision.Order == plan.ItemFirst {
		first = l.Items
	}
	c := v.cache
	switch all := [...]shared{c.preamble, c.leadIn}; {
	case first == 2:
		return all[:]
	case first == 1 && len(c.preamble.tokens) > 0:
		return all[:1]
	case first == 1:
		return all[1:]
	}
	return nil
}

// attach pins an entry for a segment. If the entry has fewer than tokens, the segment is kept.
func (v *Visit) attach(segment int, e *kv.Entry, tokens int) {
	v.pin(segment, e)
	v.segments[segment].Keep = e == nil || e.Len() < tokens
}

// End publishes what the job computed (nil if it failed) and releases its entries.
func (v *Visit) End(l *prompt.Layout, r *engine.Result) {
	c, now := v.cache, v.cache.opt.Now()
	user := residency.Hash(v.user)
	if c.opt.Record.On() {
		c.opt.Record.In("end", [32]byte(v.user), now, r != nil, v.number)
	}
	c.returns.note(user, v.in.Frequency, now)
	switch {
	case v.hit:
		c.returns.hit(user)
	case v.Decision.Reuse && v.Decision.Order == plan.UserFirst:
		c.returns.kept(user, v.in.Returns)
	}
	c.opt.Store.NoteUser(v.user, now, v.hit)
	if v.Decision.Reuse { // in both orders: otherwise a cold server would never learn that items return
		c.opt.Store.NoteItems(v.items, now)
	}
	v.finish(l, r)
}

// finish publishes and releases.
func (v *Visit) finish(l *prompt.Layout, r *engine.Result) {
	c := v.cache
	if r != nil && r.Kept != nil {
		v.publish(l, r)
	}
	for _, e := range v.pinned {
		e.Release()
	}
	for _, p := range v.expected {
		c.opt.Shared.underway.leave(p)
	}
	if v.number > 0 && c.opt.Record.On() {
		c.opt.Record.In("left", v.number)
	}
	clear(v.segments)
	clear(v.pinned)
	clear(v.expected)
	v.expected = v.expected[:0]
	v.pinned, v.tokens, v.in, v.number = v.pinned[:0], nil, schedule.Request{}, 0
	v.came, v.userCame, v.far = v.came[:0], false, 0
	c.visits.Put(v)
}

func (v *Visit) publish(l *prompt.Layout, r *engine.Result) {
	c := v.cache
	put := func(segment int, kind plan.Kind, key plan.Key, tokens []int32) {
		e := r.Kept[segment]
		switch {
		case e == nil:
			return
		case e == v.segments[segment].Entry: // nothing was added to it
		case r.Shared.Has(segment): // who computed it publishes it
		case kind == plan.User && !v.named:
			c.opt.Store.Insert(c.userSpace, tokens, e)
		default:
			c.opt.Store.PublishFor(c.owner, kind, key, tokens, e)
		}
		e.Release()
	}
	for i, s := range v.shared(l) {
		put(i, plan.Preamble, s.key, nil)
	}
	if v.Decision.Order == plan.UserFirst {
		if l.User >= 0 {
			put(l.User, plan.User, v.user, v.tokens)
		}
		return
	}
	for i := range v.items {
		put(l.Items+i, plan.Item, v.items[i], nil)
	}
}

// Discard removes the cached KV that the visit gave to its job, from every tier, because it is bad. It MUST be called
// before the visit ends. Known prefixes stay: this process computed them, for jobs whose answers were finite.
func (v *Visit) Discard(l *prompt.Layout) {
	var keys []plan.Key
	used := func(segment int, key plan.Key) {
		if v.segments[segment].Entry != nil {
			keys = append(keys, key)
		}
	}
	for i, s := range v.shared(l) {
		used(i, s.key)
	}
	switch {
	case v.Decision.Order != plan.UserFirst:
		for i := range v.items {
			used(l.Items+i, v.items[i])
		}
	case v.named && l.User >= 0:
		used(l.User, v.user)
	}
	v.cache.opt.Store.Drop(keys...)
}

// DropUser removes users' KV from every tier, for this cache and others that share its store.
func (c *Cache) DropUser(ids ...string) error {
	return c.opt.Store.Delete(c.opt.Shared.userKeys(ids)...)
}

// DropUsers removes the KV of all users of the store from every tier.
func (c *Cache) DropUsers() error {
	var keys []plan.Key
	c.opt.Store.Scan(func(piece []residency.Event) bool {
		for i := range piece {
			if piece[i].Kind == plan.User {
				keys = append(keys, piece[i].Key)
			}
		}
		return true
	})
	return c.opt.Store.Delete(keys...)
}

// DropItem removes the KV of items with these tokens from every tier.
func (c *Cache) DropItem(items ...[]int32) error {
	keys := make([]plan.Key, len(items))
	for i, tokens := range items {
		keys[i] = c.ItemKey(tokens)
	}
	return c.opt.Store.Delete(keys...)
}

// applyEvery is the interval at which noted accesses are counted.
const applyEvery = 200 * time.Millisecond

// Run counts noted accesses in the background until ctx ends, then settles the cache.
func (c *Cache) Run(ctx context.Context) error {
	timer := time.NewTimer(tick.Wait(applyEvery))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return c.Settle()
		case <-timer.C:
			timer.Reset(tick.Wait(applyEvery))
			c.opt.Store.Count(c.opt.Now())
		}
	}
}

// Decisions counts the requests so far by prefix order and reason, such as "item cheaper".
func (c *Cache) Decisions() map[string]int64 {
	out := map[string]int64{}
	for order := range c.decisions {
		for reason := range c.decisions[order] {
			if n := c.decisions[order][reason].Load(); n > 0 {
				out[plan.Order(order).String()+" "+schedule.Reason(reason).String()] = n
			}
		}
	}
	return out
}

// Stats counts the cached entries of a kind, in all tiers or in those given.
func (c *Cache) Stats(kind plan.Kind, at ...plan.Tier) kv.Stats {
	return c.opt.Store.Stats(kind, at...)
}

// Books returns the statistics of the pool that entries are in.
func (c *Cache) Books() pool.Stats { return c.opt.Pool.Stats() }

// Known returns the number of the cache's entries, in memory or on disk.
func (c *Cache) Known() int { return c.opt.Store.Owned(c.owner) }

// Forecasts returns statistics of the predictions that eviction uses.
func (c *Cache) Forecasts() kv.Forecasts { return c.opt.Store.Forecasts() }

// Floor compares eviction with LRU. It returns false if the policy does not.
func (c *Cache) Floor() (evict.FloorStats, bool) { return c.opt.Store.Floor() }

package reuse

import (
	"context"
	"fmt"
	"slices"

	"grebe/blend"
	"grebe/engine"
	"grebe/internal/durable"
	"grebe/kv"
	"grebe/plan"
	"grebe/prompt"
	"grebe/schedule"
)

// Blend configures how ordinary prompts reuse KV that is not a prefix (RCL-1): blocks of items, moved to their
// positions in the prompt, and prototypes of histories. It is the only kind of reuse that is not exact.
type Blend struct {
	Budget blend.Budget
	Drift  float32 // weight of a prototype's drift beside attention
	Limit  float32 // largest drift of a prototype that is used; 0: no limit
	Layers int     // layers that compute all tokens, see engine.Blend
	Auto   bool    // an automatic choice may blend
	// ItemsFirst puts the items before the user (BAT-8). Then no part of the user is a prefix that could be cached.
	ItemsFirst bool
	// Importance says which tokens of items are computed again; nil: those that receive much attention.
	Importance *blend.Importance
	// Prototypes finds KV that may replace tokens of a history; nil: none.
	Prototypes *Prototypes
	// Unused is a file of prototypes that exist but are not used, "" for none. A single user cannot be removed from it,
	// so the first deletion of any user removes the file.
	Unused string
}

// DropUser removes a user's prototypes.
func (b *Blend) DropUser(id string) error {
	if b.Prototypes != nil {
		return b.Prototypes.DropUser(id)
	}
	if b.Unused == "" {
		return nil
	}
	if err := durable.Remove(b.Unused); err != nil {
		return fmt.Errorf("reuse: remove prototypes that are not used: %w", err)
	}
	return nil
}

// Blended is a Visit for an ordinary prompt. Its owner MUST call End.
type Blended struct {
	*Visit
	parts   []engine.Part
	missing []wanted // entries on disk
	load    *load    // reads them; nil: there are none
	fill    []int    // items whose blocks are computed beside the prompt
	filled  int      // index of the first of their segments in the job's plan
	job     *engine.Job
	matches Matches
	first   int // index of the first part from a prototype
	matched int // number of such parts
}

// BeginBlend finds the cached KV for a request with an ordinary prompt.
func (c *Cache) BeginBlend(r *Request) *Blended {
	copied := *r
	copied.Policy = schedule.User
	return &Blended{Visit: c.Begin(&copied)}
}

// Order returns the order of the prompt.
func (b *Blend) Order() plan.Order {
	if b != nil && b.ItemsFirst {
		return plan.CausalItems
	}
	return plan.Causal
}

// Attach gives a job, laid out in the order of how, the KV that it can reuse. The preamble and the user are prefixes
// and exact. Items are blocks. A user of whom little is cached may use prototypes. Entries on disk are read while the
// job waits for its turn and computes its first layers.
func (v *Blended) Attach(ctx context.Context, l *prompt.Layout, job *engine.Job, how *Blend, budget blend.Budget) {
	v.Visit.Attach(ctx, v.before(l), job)
	v.job = job
	if how.ItemsFirst { // parts are in the order of segments
		v.findBlocks(l)
		v.findPrototypes(l, job, how, budget)
	} else {
		v.findPrototypes(l, job, how, budget)
		v.findBlocks(l)
	}
	job.Blend = &engine.Blend{Parts: v.parts, Budget: budget, Drift: how.Drift, Layers: how.Layers,
		Importance: how.Importance}
	v.makeBlocks(l, job)
	v.missing = v.matches.wanted(v.missing, v.first)
	if len(v.missing) > 0 {
		v.load = v.cache.startLoad(v.missing)
		job.Blend.Load = v.load.Loading
	}
}

// before returns the layout as a visit with the user first expects it. A user after the items is not a prefix, so the
// visit then sees only the segments before the items.
func (v *Blended) before(l *prompt.Layout) *prompt.Layout {
	if l.User < l.Items {
		return l
	}
	out := *l
	out.User, v.tokens = l.Items, nil
	return &out
}

// findBlocks replaces items by their blocks.
func (v *Blended) findBlocks(l *prompt.Layout) {
	start := l.Plan.Segments[l.Items].Start
	base := len(v.cache.preamble.tokens) + len(v.cache.leadIn.tokens)
	for i, at := range l.ItemAt {
		part := engine.Part{
			Segment: l.Items, At: at, Tokens: int(v.lengths[i]), Turn: start + at - base, Source: plan.Block,
		}
		if part.Tokens == 0 {
			continue
		}
		if v.tiers[i] != plan.Missing {
			if part.Entry = v.itemEntry(i, nil); part.Entry != nil {
				v.pinned, part.Tier = append(v.pinned, part.Entry), v.source
				v.parts = append(v.parts, part)
				continue
			}
			if v.tiers[i] == plan.Disk || v.cache.opt.Store.Below(v.items[i]) { // or it was just moved to disk
				v.missing = append(v.missing, wanted{key: v.items[i], tokens: part.Tokens, parts: []int{len(v.parts)}})
				part.Tier = plan.Disk
				v.parts = append(v.parts, part)
				continue
			}
		}
		if v.uses[i] > 0 && !slices.ContainsFunc(v.fill, func(j int) bool { return v.items[j] == v.items[i] }) {
			v.fill = append(v.fill, i)
		}
	}
}

// findPrototypes replaces tokens of a user by prototypes if little of the user is cached, unless the user is worth
// keeping. A user computed with prototypes is not kept, because it is not exact.
func (v *Blended) findPrototypes(l *prompt.Layout, job *engine.Job, how *Blend, budget blend.Budget) {
	from := how.Prototypes
	user := &l.Plan.Segments[l.User]
	v.first = len(v.parts)
	if from == nil || job.Segments == nil {
		return
	}
	e := job.Segments[l.User].Entry
	p := schedule.Prototypes{Tokens: len(user.Tokens), Layers: v.cache.opt.Shape.Layers, Budget: budget.History}
	if e != nil {
		p.Cached = e.Len()
	}
	if !p.Search() {
		return
	}
	from.Find(&v.matches, user.Tokens, 0, user.Start, how.Limit)
	p.Matched = v.matches.Tokens()
	if p.Few() || job.Segments[l.User].Keep && v.invests(&p) {
		v.matches.Release()
		return
	}
	v.parts = v.matches.Append(v.parts, l.User)
	v.matched = len(v.parts) - v.first
	job.Segments[l.User] = engine.Segment{} // the cached part of the user is not used
}

// invests reports whether to compute the user exactly and keep it, rather than use prototypes.
func (v *Blended) invests(p *schedule.Prototypes) bool {
	model := v.cache.opt.Load.Model()
	exact, near, invests := p.Invest(&v.in, &model)
	if v.cache.opt.Record.On() {
		v.recordInvest(&model, p, exact, near, invests)
	}
	return invests
}

// makeBlocks adds to the job the blocks of items that were requested before and have none. They are computed beside the
// prompt: an item-first ranking would have computed them, but a blended prompt does not. The layout stays that of the
// prompt.
func (v *Blended) makeBlocks(l *prompt.Layout, job *engine.Job) {
	if len(v.fill) == 0 {
		return
	}
	c := v.cache
	segments := slices.Clone(l.Plan.Segments)
	add := func(s plan.Segment, e *kv.Entry) int32 {
		segments = append(segments, s)
		// not part of the prompt, so not counted by tier
		v.segments = append(v.segments, engine.Segment{Entry: e, Keep: e == nil})
		return int32(len(segments) - 1)
	}
	var sees []int32
	pos := len(c.preamble.tokens)
	if pos > 0 {
		sees = append(sees, 0)
	}
	if len(c.leadIn.tokens) > 0 {
		e, _ := c.get(c.leadIn.key)
		if e != nil {
			v.pinned = append(v.pinned, e)
		}
		sees = append(sees, add(plan.Segment{Kind: plan.Preamble, Tokens: c.leadIn.tokens, Start: pos, Sees: sees}, e))
		v.segments[len(v.segments)-1].Keep = false // item-first rankings keep it
		pos += len(c.leadIn.tokens)
	}
	v.filled = len(segments)
	line := &l.Plan.Segments[l.Items]
	for _, i := range v.fill {
		at := l.ItemAt[i]
		add(plan.Segment{Kind: plan.Item, Tokens: line.Tokens[at : at+int(v.lengths[i])], Start: pos, Sees: sees}, nil)
	}
	job.Blend.Beside = len(segments) - len(l.Plan.Segments)
	job.Plan = &plan.Plan{Segments: segments}
	job.Segments = v.segments
}

// publishBlocks publishes the blocks that a job computed.
func (v *Blended) publishBlocks(r *engine.Result) {
	if r == nil || len(v.fill) == 0 || len(r.Kept) < v.filled+len(v.fill) {
		return
	}
	c := v.cache
	for k, i := range v.fill {
		if e := r.Kept[v.filled+k]; e != nil {
			c.opt.Store.PublishFor(c.owner, plan.Item, v.items[i], nil, e)
			e.Release()
		}
	}
}

// Account counts the tokens whose KV was reused, by source, and those that could have been reused but were computed
// again.
type Account struct {
	Device, Host, Disk, Peer, Prototype, Recomputed int
	// tokens of the prompt computed in all layers, including Recomputed
	Computed int
	// reused tokens, which were computed in the first layers (Blend.Layers)
	Partly int
	// tokens computed in all layers beside the prompt: items' blocks and their lead-in
	Beside int
}

// Reused returns the number of reused tokens.
func (a *Account) Reused() int { return a.Device + a.Host + a.Disk + a.Peer + a.Prototype }

// Account returns the counts of a result.
func (v *Blended) Account(r *engine.Result) (a Account) {
	if v.job.Blend.Beside > 0 {
		a.Beside = v.beside()
	}
	a.Computed = r.Computed - a.Beside
	at := v.job.Tiers()
	a.Device, a.Host, a.Disk, a.Peer = at[plan.Device], at[plan.Host], at[plan.Disk], at[plan.Peer]
	for i, n := range r.Reused {
		p := &v.parts[i]
		if p.Entry == nil {
			continue
		}
		a.Recomputed += p.Tokens - n
		a.Partly += n
		switch {
		case p.Source == plan.Prototype:
			a.Prototype += n
		case p.Tier == plan.Device:
			a.Device += n
		case p.Tier == plan.Disk:
			a.Disk += n
		default:
			a.Host += n
		}
	}
	return a
}

// beside returns the number of tokens computed beside the prompt: those of blocks, and of their lead-in unless it was
// cached.
func (v *Blended) beside() (computed int) {
	for _, i := range v.fill {
		computed += int(v.lengths[i])
	}
	if lead := v.cache.leadIn.tokens; len(lead) > 0 && v.job.Source(v.filled-1) != plan.Cached {
		computed += len(lead)
	}
	return computed
}

// Prototypes returns how many tokens of a segment were reused from prototypes.
func (v *Blended) Prototypes(r *engine.Result, segment int) (n int) {
	for i := v.first; i < v.first+v.matched; i++ {
		if v.parts[i].Segment == segment && i < len(r.Reused) {
			n += r.Reused[i]
		}
	}
	return n
}

// Part returns how many tokens were reused of the block at a token of a segment, and its source: the name of a tier, or
// "prototype".
func (v *Blended) Part(r *engine.Result, segment, at int) (reused int, source string) {
	for i := range v.parts {
		if p := &v.parts[i]; p.Segment == segment && p.At == at && i < len(r.Reused) && r.Reused[i] > 0 {
			return r.Reused[i], p.Source.Name(p.Tier)
		}
	}
	return 0, ""
}

// End publishes what the job computed exactly and releases its entries.
func (v *Blended) End(l *prompt.Layout, r *engine.Result) {
	if v.load != nil {
		v.load.release()
	}
	v.publishBlocks(r)
	v.matches.Release()
	v.Visit.End(v.before(l), r)
}

// BlendInstead turns a visit into one for an ordinary prompt, whatever its decision was.
func (c *Cache) BlendInstead(v *Visit) *Blended {
	v.Decision.Order, v.Decision.Reuse = plan.UserFirst, true
	return &Blended{Visit: v}
}

// BlendPays reports whether a blended prompt is predicted to take less time than the chosen order, less what that order
// saves later requests.
func (v *Visit) BlendPays(how *Blend) bool {
	c := v.cache
	pace, now := c.loads.pace.State()
	b := schedule.Blending{
		Layers: c.opt.Shape.Layers, First: how.Layers, Budget: how.Budget.Items,
		Pace: pace, Now: now, Guess: c.costs.Transfer[plan.Disk],
	}
	model := c.opt.Load.Model()
	in := v.withoutPeers()
	ms, pays := b.Pays(&in, &model, v.Decision.Chosen())
	if c.opt.Record.On() {
		v.recordBlend(&in, &b, &model, ms, pays)
	}
	return pays
}

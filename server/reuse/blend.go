package reuse

import (
	"sync"

	"grebe/blend"
	"grebe/engine"
	"grebe/prompt"
	"grebe/schedule"
)

// Blend says how ordinary prompts reuse what is no prefix (RCL-1): blocks of items, moved to where they stand, and
// prototypes of history. It is the one way of reuse that is not exact.
type Blend struct {
	Budget blend.Budget
	Drift  float32 // weight of a prototype's drift beside attention
	Auto   bool    // an automatic choice may blend
}

// Blended is a request's way through the cache when its prompt is an ordinary one. Its owner MUST call End.
type Blended struct {
	*Visit
	parts   []engine.Part
	sources []string // of the parts: device, host, disk, prototype
	fetched sync.WaitGroup
	missing []int // items whose blocks are on disk, each with its part
	disk    int   // tokens of prefixes that came from below memory
	device  int   // tokens of prefixes that were in the device's memory
}

// BeginBlend finds what is cached for a request with an ordinary prompt.
func (c *Cache) BeginBlend(r *Request) *Blended {
	copied := *r
	copied.Policy = schedule.User
	return &Blended{Visit: c.Begin(&copied)}
}

// Attach gives a job, laid out as prompt.Causal, what can be reused: preamble and user as prefixes, which are exact,
// items as blocks, and prototypes for a user of whom little is cached. Blocks that lie on disk are fetched until the
// job needs them.
func (v *Blended) Attach(l *prompt.Layout, job *engine.Job, how *Blend, budget blend.Budget) {
	v.Visit.Attach(l, job)
	v.disk, v.device = v.Disk, v.Device
	start := l.Plan.Segments[l.Items].Start
	base := len(v.cache.preamble.tokens) + len(v.cache.leadIn.tokens)
	for i, at := range l.ItemAt {
		part := engine.Part{
			Segment: l.Items, At: at, Tokens: int(v.lengths[i]), Turn: start + at - base, Source: blend.Block,
		}
		if part.Tokens == 0 || v.tiers[i] == schedule.Missing {
			continue
		}
		if part.Entry = v.itemEntry(i, false); part.Entry != nil {
			v.pinned = append(v.pinned, part.Entry)
			v.add(part, v.source)
			continue
		}
		if v.tiers[i] == schedule.Disk {
			v.missing = append(v.missing, i, len(v.parts))
			v.add(part, "disk")
		}
	}
	job.Blend = &engine.Blend{Parts: v.parts, Budget: budget, Drift: how.Drift}
	if len(v.missing) > 0 {
		v.fetched.Go(v.fetchBlocks)
		job.Blend.Load = v.fetched.Wait
	}
}

func (v *Blended) add(p engine.Part, source string) {
	v.parts, v.sources = append(v.parts, p), append(v.sources, source)
}

// fetchBlocks brings blocks up from disk. What does not come is computed.
func (v *Blended) fetchBlocks() {
	for k := 0; k < len(v.missing); k += 2 {
		i, part := v.missing[k], v.missing[k+1]
		if e := v.itemEntry(i, true); e != nil {
			v.pinned = append(v.pinned, e)
			v.parts[part].Entry = e
		}
	}
}

// Account says of how many tokens KV was reused, by where it was, and for how many that could have been, but were
// computed again.
type Account struct {
	Device, Host, Disk, Prototype, Recomputed int
}

// Reused returns the tokens that were reused.
func (a *Account) Reused() int { return a.Device + a.Host + a.Disk + a.Prototype }

// Account reads a result.
func (v *Blended) Account(r *engine.Result) (a Account) {
	a.Disk = min(v.disk, r.Cached) // what was found is not used by a job that had to run without
	a.Device = min(v.device, r.Cached-a.Disk)
	a.Host = r.Cached - a.Disk - a.Device
	for i, n := range r.Reused {
		if v.parts[i].Entry == nil {
			continue
		}
		a.Recomputed += v.parts[i].Tokens - n
		switch v.sources[i] {
		case "device":
			a.Device += n
		case "disk":
			a.Disk += n
		case "prototype":
			a.Prototype += n
		default:
			a.Host += n
		}
	}
	return a
}

// Part returns how many tokens were reused of the block that stands at a token of a segment, and where it was.
func (v *Blended) Part(r *engine.Result, segment, at int) (reused int, source string) {
	for i := range v.parts {
		if p := &v.parts[i]; p.Segment == segment && p.At == at && i < len(r.Reused) && r.Reused[i] > 0 {
			return r.Reused[i], v.sources[i]
		}
	}
	return 0, ""
}

// End publishes what the job computed exactly and gives back what it used.
func (v *Blended) End(l *prompt.Layout, r *engine.Result) {
	v.fetched.Wait() // a job that never ran has not waited
	v.cache.opt.Index.NoteItems(v.items, v.cache.opt.Now())
	v.Visit.End(l, r)
}

// BlendInstead turns a visit, whatever was decided, into one for an ordinary prompt.
func (c *Cache) BlendInstead(v *Visit) *Blended {
	v.Decision.Order, v.Decision.Reuse = schedule.UserFirst, true
	return &Blended{Visit: v}
}

// BlendPays reports whether a blended prompt is predicted to take less time than the order that was decided on, all
// that may save others later included.
func (v *Visit) BlendPays(how *Blend) bool {
	c, in := v.cache, &v.in
	known, all := 0, 0
	for i, n := range v.lengths {
		all += int(n)
		if v.tiers[i] != schedule.Missing {
			known += int(n)
		}
	}
	cached := 0
	for _, n := range in.UserCached {
		cached = max(cached, int(n))
	}
	layers := float64(c.opt.Shape.Layers)
	rows := float64(int(in.User)-cached+all+int(c.question)) - float64(known)*(1-how.Budget.Items)*(layers-1)/layers
	keys := rows * (float64(in.Preamble) + float64(in.User) + float64(all)/2)
	model := c.opt.Load.Model()
	chosen := v.Decision.Chosen()
	return in.Queue+model.Predict(int(rows), int(keys), 1) < chosen.Ms-chosen.Value
}

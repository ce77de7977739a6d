package reuse

import (
	"context"

	"grebe/engine"
	"grebe/kv"
	"grebe/plan"
	"grebe/prompt"
	"grebe/schedule"
)

// Generate begins a generation for a user. The user's KV is the same as in user-first rankings. Its owner MUST call
// EndPrompt.
func (c *Cache) Generate(userID string, user []int32) *Visit {
	v := c.visits.Get().(*Visit)
	v.begin(c, user, nil)
	v.user, v.named = c.UserKey(userID, user), userID != ""
	v.Decision = schedule.Decision{Order: plan.UserFirst, Reuse: true}
	return v
}

// AttachPrompt gives a generation's first job the cached KV of its prompt, and requests that all of it is kept. If the
// prompt ends with the user, the user's last token is computed, because it answers. KV that another request is about to
// compute is used if it has when the job's batch begins.
func (v *Visit) AttachPrompt(ctx context.Context, l *prompt.Layout, job *engine.Job) {
	n := len(l.Plan.Segments)
	v.segments = resize(v.segments, n)
	for i := range v.segments {
		v.segments[i] = engine.Segment{Keep: true}
	}
	job.Segments, job.Once = v.segments, true
	c := v.cache
	for i, s := range v.shared(l) {
		v.pin(i, v.found(c.get(s.key)))
		v.expect(i, len(s.tokens), s.key, nil)
	}
	user, last := v.tokens, l.Answers == l.User
	if last && len(user) > 0 {
		user = user[:len(user)-1]
	}
	if len(user) == 0 {
		return
	}
	v.askForPrompt(ctx, l)
	var bring func(plan.Key) bool
	if c.opt.Store.Below(v.user) {
		within, cancel := c.inTime(ctx, l.Plan)
		defer cancel()
		bring = func(key plan.Key) bool { return v.fetch(within, key) }
	}
	e := v.userEntry(user, bring)
	v.hit = e != nil
	v.pin(l.User, e)
	v.expectUser(l.User, last)
}

// pin makes a segment begin with the entry that was found last, which may be nil.
func (v *Visit) pin(segment int, e *kv.Entry) {
	if e != nil {
		v.pinned = append(v.pinned, e)
		v.segments[segment].Entry, v.segments[segment].Tier = e, v.source
	}
}

// EndPrompt publishes what the first job computed (nil if it failed) and releases its entries. It returns the entries
// of the prompt's segments, nil where the cache had no room. The caller owns a reference to each and MUST release it.
func (v *Visit) EndPrompt(l *prompt.Layout, r *engine.Result) []*kv.Entry {
	c := v.cache
	now := c.opt.Now()
	c.opt.Store.NoteUser(v.user, now, v.hit)
	var out []*kv.Entry
	if r != nil && r.Kept != nil {
		out = append(out, r.Kept...)
		for _, e := range out {
			if e != nil {
				e.Retain() // publish releases the other reference
			}
		}
		if last := len(l.Plan.Segments) - 1; l.Plan.Segments[last].Kind == plan.Instruction && r.Kept[last] != nil {
			r.Kept[last].Release() // no other request uses the instruction after a user
			r.Kept[last] = nil
		}
	}
	v.finish(l, r)
	return out
}

package cuda

import (
	"slices"

	"grebe/compute"
)

// What stands in for rows goes straight to attention's scratch, turned, where that has room for all layers to come and
// its slots are known: it is copied once, and layers need not gather it from chunks, whose content nobody is to see.
// The batch's cached tokens go there with it. Where the scratch would be too large, chunks get what stands in, and
// layers gather it from there.

// goStraight decides whether what stands in from a layer on does. That layer has to be the next one: all layers to come
// then find it there.
func (p *placing) goStraight(r *runner, from int) error {
	t, ok := r.att.(*tensor)
	if p.straight = ok && r.begun && len(r.ops) == 0 && !r.dropped && r.attended >= 0 &&
		from == r.attended+1; !p.straight {
		return nil
	}
	a, err := t.giveScratch(p.layOut(r.batch))
	if p.straight = a != nil; err != nil || a == nil {
		return err
	}
	s := a.Scratch()
	p.to = run{to: uint64(s.Base), toRoom: int32(s.Slots), straight: 1}
	return nil
}

// layOut finds the slots of a batch as package attend does: its segments' tokens, one after the other.
func (p *placing) layOut(b *compute.Batch) int {
	slots := 0
	p.slots = p.slots[:0]
	for i := range b.Segments {
		p.slots = append(p.slots, int32(slots))
		slots += b.Segments[i].Len
	}
	return slots
}

// slotsOf is a run of a segment's tokens in the scratch, of a part.
func (p *placing) slotsOf(segment, token, tokens, turn, part int) run {
	w := p.to
	w.toToken, w.tokens, w.turned, w.part = p.slots[segment]+int32(token), int32(tokens), turned(turn), int32(part)
	return w
}

// cachedRuns is how many runs addCached adds at most.
func cachedRuns(b *compute.Batch) int {
	n := 0
	for i := range b.Segments {
		n += len(b.Segments[i].Chunks) + b.Segments[i].Cached/longRun
	}
	return n
}

// addCached appends the cached tokens of all segments.
func (p *placing) addCached(all []run, b *compute.Batch) {
	for i := range b.Segments {
		g, at := &b.Segments[i], 0
		for c := 0; at < g.Cached; c++ {
			ch := &g.Chunks[c]
			p.add(all, ch, 0, p.slotsOf(i, at, min(ch.Tokens, g.Cached-at), 0, 0))
			at += ch.Tokens
		}
	}
}

// hold notes for which rows something is in the scratch.
func (p *placing) hold(b *compute.Batch, parts []compute.Part) {
	if len(p.held) == 0 {
		p.held = slices.Grow(p.held, len(b.Tokens))[:len(b.Tokens)]
		clear(p.held)
	}
	for i := range parts {
		g := &b.Segments[parts[i].Segment]
		first := g.First + parts[i].At - g.Cached
		for row := first; row < first+parts[i].Tokens; row++ {
			p.held[row] = true
		}
	}
}

package sim

import "grebe/plan"

// prompt has the fixed segments of all prompts, in tokens.
type prompt struct {
	preamble, leadIn, question int
	perItem                    bool
	blend                      Blend
}

// fixed returns the tokens of the preamble (0) or of the lead-in (1).
func (p *prompt) fixed(number int) int {
	if number == 0 {
		return p.preamble
	}
	return p.leadIn
}

// cost counts the work of a call, its rows and keys as package engine does for the call's plan. Segments that are
// cached are not computed: the user's first tokens, with items first the items that have a tier, and the preamble and
// lead-in. Tile is the rows of a tile.
func (p *prompt) cost(c *call, tile int) (w Work) {
	w.Requests = 1
	if c.blended {
		p.blendCost(c, &w)
		return w
	}
	lead := p.preamble
	if !c.shared[0] {
		w.Segment(0, p.preamble, 0, tile)
	}
	user, items := int(c.UserTokens), 0
	for _, n := range c.ItemTokens {
		items += int(n)
	}
	if c.order == plan.ItemFirst {
		if !c.shared[1] {
			w.Segment(0, p.leadIn, lead, tile)
		}
		lead += p.leadIn
		for i, n := range c.ItemTokens {
			if c.tiers[i] == plan.Missing {
				w.Segment(0, int(n), lead, tile)
			}
		}
		w.Segment(0, user, lead+items, tile)
	} else {
		w.Segment(c.cached, user, lead, tile)
		for _, n := range c.ItemTokens {
			w.Segment(0, int(n), lead+user, tile)
		}
	}
	if p.perItem {
		for _, n := range c.ItemTokens {
			w.Segment(0, p.question, lead+user+int(n), tile)
		}
	} else {
		w.Segment(0, p.question, lead+user+items, tile)
	}
	w.Cached = p.length(c) - w.Rows
	return w
}

// blendCost is cost of an ordinary prompt of which KV from anywhere is reused. The chosen tokens are spread over the
// prompt, and the first layers compute all of them.
func (p *prompt) blendCost(c *call, w *Work) {
	user := float64(c.UserTokens)
	full, some := user, user*p.blend.History
	for i, n := range c.ItemTokens {
		full += float64(n)
		if c.tiers[i] == plan.Missing {
			some += float64(n)
		} else {
			some += float64(n) * p.blend.Items
		}
	}
	full, some = full+float64(p.question), some+float64(p.question)
	some += (full - some) * p.blend.Whole
	w.Rows = int(some + .5)
	w.Keys = int(float64(causal(0, int(full), p.preamble)) * some / full)
	w.Tiled, w.Segments, w.Cached = w.Keys, 1, int(full)-w.Rows
	if !c.shared[0] {
		w.Segment(0, p.preamble, 0, 1)
	}
}

// length returns the tokens of a call's prompt.
func (p *prompt) length(c *call) int {
	n, questions := p.preamble+int(c.UserTokens), 1
	if c.order == plan.ItemFirst {
		n += p.leadIn
	}
	if p.perItem {
		questions = len(c.ItemTokens)
	}
	for _, t := range c.ItemTokens {
		n += int(t)
	}
	return n + questions*p.question
}

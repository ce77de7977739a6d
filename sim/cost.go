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

// causal returns the keys of rows from..to of a segment that also attends to seen keys before it.
func causal(from, to, seen int) int { return (to-from)*seen + (to*(to+1)-from*(from+1))/2 }

// cost counts the rows of a call and the keys that they attend to, as package engine does for the call's plan. Segments that
// are cached are not computed: the user's first tokens, with items first the items that have a tier, and the preamble and
// lead-in.
func (p *prompt) cost(c *call) (rows, keys int) {
	if c.blended {
		return p.blendCost(c)
	}
	lead := p.preamble
	if !c.shared[0] {
		rows, keys = p.preamble, causal(0, p.preamble, 0)
	}
	user, items := int(c.UserTokens), 0
	for _, n := range c.ItemTokens {
		items += int(n)
	}
	if c.order == plan.ItemFirst {
		if !c.shared[1] {
			rows += p.leadIn
			keys += causal(0, p.leadIn, lead)
		}
		lead += p.leadIn
		for i, n := range c.ItemTokens {
			if c.tiers[i] == plan.Missing {
				rows += int(n)
				keys += causal(0, int(n), lead)
			}
		}
		rows += user
		keys += causal(0, user, lead+items)
	} else {
		rows += user - c.cached + items
		keys += causal(c.cached, user, lead)
		for _, n := range c.ItemTokens {
			keys += causal(0, int(n), lead+user)
		}
	}
	if p.perItem {
		for _, n := range c.ItemTokens {
			rows += p.question
			keys += causal(0, p.question, lead+user+int(n))
		}
		return rows, keys
	}
	return rows + p.question, keys + causal(0, p.question, lead+user+items)
}

// blendCost is cost of an ordinary prompt of which KV from anywhere is reused. The chosen tokens are spread over the prompt, and
// the first layers compute all of them.
func (p *prompt) blendCost(c *call) (rows, keys int) {
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
	rows = int(some + .5)
	keys = int(float64(causal(0, int(full), p.preamble)) * some / full)
	if !c.shared[0] {
		rows, keys = rows+p.preamble, keys+causal(0, p.preamble, 0)
	}
	return rows, keys
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

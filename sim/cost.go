package sim

import "grebe/plan"

// prompt has the fixed segments of all prompts, in tokens.
type prompt struct {
	preamble, leadIn, question int
	perItem                    bool
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

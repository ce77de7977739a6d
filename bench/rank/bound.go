package rank

// bound returns the tokens per measured request that no choice of orders can go below, with memory for
// everything, all items known beforehand and the future known: each user is kept from the first
// request on, which then computes all of the prompt, or never.
func (b *bout) bound() float64 {
	perBlock, warm := b.options.blocks()
	measured := perBlock * b.options.Blocks
	type choice struct{ keep, never int } // tokens of measured requests
	users := map[string]*choice{}
	for i := range perBlock * (warm + b.options.Blocks) {
		msg := b.source.at(i).msg
		items, user := 0, len(msg.User.Tokens)
		for _, c := range msg.Candidates {
			items += len(c.Tokens)
		}
		question := b.source.w.Spec().Instruction
		itemFirst, userFirst := user+question, min(user, items)+question
		c := users[msg.User.Id]
		if c == nil {
			c = &choice{}
			users[msg.User.Id] = c
			userFirst = user + items + question
		}
		if i >= perBlock*warm { // what the warm-up computed is forgiven
			c.keep += userFirst
			c.never += itemFirst
		}
	}
	total := 0
	for _, c := range users {
		total += min(c.keep, c.never)
	}
	return float64(total) / float64(measured)
}

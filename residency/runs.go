package residency

import "grebe/evict"

// Runs of known prefixes are on the books of the level where the device computes, and under no key: the owner finds
// them in a tree. A run makes room in
// the same order as entries do, and only when nothing follows it.

// Request is what the entries of a request remember of it.
type Request struct{ prompt evict.Prompt }

// request is the last request that an entry was part of. Of what has no prompt, such as an item, it is zero.
type request struct {
	prompt evict.Prompt
	before int32 // of the prompt, the entry's first token
}

// asked describes a request of so many tokens, of which the first known ones end within an entry that was last part of another.
func (c *Core[V]) asked(tokens, known int, last *evict.Prompt) evict.Prompt {
	return evict.NextPrompt(tokens, known, c.config.Chunk, last.Last(), c.top().now)
}

// Matched describes a request of so many tokens whose first known ones end in a run.
func (c *Core[V]) Matched(deepest *Held[V], tokens, known int) Request {
	return Request{c.asked(tokens, known, &deepest.request.prompt)}
}

// Inserted describes the request that a run is put behind another for, nil for none. Most often it is the one that
// matched that other just before.
func (c *Core[V]) Inserted(parent *Held[V], tokens, known int) Request {
	if parent == nil {
		return Request{c.asked(tokens, 0, &evict.Prompt{})}
	}
	if last := parent.request.prompt; last.Tokens() == tokens {
		return Request{last}
	}
	return Request{c.asked(tokens, known, &parent.request.prompt)}
}

// PutRun takes a run onto the books that begins at a token of a request. There MUST be a place.
func (c *Core[V]) PutRun(h *Held[V], r Request, before int) {
	h.Run, h.clean = true, true
	h.request = request{prompt: r.prompt, before: int32(before)}
	c.top().put(h)
}

// Split takes a run off the books and puts the two onto them that it was cut into. To the policy, for which an entry
// does not change its size, both are new.
func (c *Core[V]) Split(whole, first, rest *Held[V]) {
	r := whole.request
	c.top().take(whole, false)
	c.PutRun(rest, Request{r.prompt}, int(r.before)+first.Tokens)
	c.PutRun(first, Request{r.prompt}, int(r.before))
}

// UseRun notes a use of a run by a request. Of a path the last run comes first: then nothing is older than what follows it.
func (c *Core[V]) UseRun(h *Held[V], r Request) {
	h.request.prompt = r.prompt
	h.level.hit(h)
}

// TakeRun takes a run off the books.
func (c *Core[V]) TakeRun(h *Held[V]) { h.level.take(h, false) }

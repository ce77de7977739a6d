package residency

import "grebe/evict"

// Runs are the pieces of known prefixes. They are on the books of the top level and have no key: the owner finds
// them in a tree. The policy evicts runs and entries alike, but a run only when no other run follows it.

// Request is the part of a request that its entries remember.
type Request struct{ prompt evict.Prompt }

// request is the last request that used an entry. It is zero for entries without a prompt, such as items.
type request struct {
	prompt evict.Prompt
	before int32 // number of tokens before the entry in the prompt
}

// asked describes a request of tokens tokens, the first known of which are cached. Last is the previous request that
// used the entry where these end.
func (c *Core[V]) asked(tokens, known int, last *evict.Prompt) evict.Prompt {
	return evict.NextPrompt(tokens, known, c.config.Chunk, last.Last(), c.top().now)
}

// Matched describes a request of tokens tokens, the first known of which are cached and end in the run deepest.
func (c *Core[V]) Matched(deepest *Held[V], tokens, known int) Request {
	return Request{c.asked(tokens, known, &deepest.request.prompt)}
}

// Inserted describes the request that adds a run behind parent, which is nil for a first run. Most often it is the
// request that matched parent just before.
func (c *Core[V]) Inserted(parent *Held[V], tokens, known int) Request {
	if parent == nil {
		return Request{c.asked(tokens, 0, &evict.Prompt{})}
	}
	if last := parent.request.prompt; last.Tokens() == tokens {
		return Request{last}
	}
	return Request{c.asked(tokens, known, &parent.request.prompt)}
}

// PutRun puts a run on the books. Before is the number of tokens before it in the prompt. The top level MUST have a
// free place.
func (c *Core[V]) PutRun(h *Held[V], r Request, before int) {
	h.Run, h.clean = true, true
	h.request = request{prompt: r.prompt, before: int32(before)}
	c.top().put(h)
}

// Split replaces a run on the books by the two runs that it was cut into. The policy sees both as new, because it
// assumes that an entry never changes its size.
func (c *Core[V]) Split(whole, first, rest *Held[V]) {
	r := whole.request
	c.top().take(whole, false)
	c.PutRun(rest, Request{r.prompt}, int(r.before)+first.Tokens)
	c.PutRun(first, Request{r.prompt}, int(r.before))
}

// UseRun notes that a request used a run. The owner calls it for the last run of a path first, so that no run is less
// recently used than the runs behind it.
func (c *Core[V]) UseRun(h *Held[V], r Request) {
	h.request.prompt = r.prompt
	h.level.hit(h)
}

// TakeRun removes a run from the books.
func (c *Core[V]) TakeRun(h *Held[V]) { h.level.take(h, false) }

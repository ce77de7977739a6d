package cache

import "grebe/evict"

// describer describes the requests of a trace to a predictor as the product does (package kv), with the same extractor
// and with what a cache knows at that moment: of entries that are not cached nothing is remembered.
type describer struct {
	t      *trace
	cached func(key uint64) bool
	last   []evict.Last // by key
	next   int          // prompt
	first  int          // request of the prompt
	asked  evict.Prompt
}

func newDescriber(t *trace, cached func(uint64) bool) *describer {
	return &describer{t: t, cached: cached, last: make([]evict.Last, t.distinct)}
}

// context describes request i. It MUST be called for one request after the other, before the cache serves it.
func (d *describer) context(i int) evict.Context {
	t := d.t
	if t.prompts == nil {
		return evict.Single(0, 1, 1, 1)
	}
	if d.next < len(t.prompts) && int(t.prompts[d.next]) == i {
		d.begin(i)
	}
	key, before := t.keys[i], (i-d.first)*blockTokens
	d.last[key] = d.asked.Last()
	tokens := max(min(d.asked.Tokens()-before, blockTokens), 0)
	return d.asked.Context(before, tokens, float32(tokens), float32(t.costs[i]))
}

// begin looks at a prompt: what it begins with and is cached, and the request that last had the end of that.
func (d *describer) begin(i int) {
	t, end := d.t, len(d.t.keys)
	if d.next+1 < len(t.prompts) {
		end = int(t.prompts[d.next+1])
	}
	known := i
	for known < end && d.cached(t.keys[known]) {
		known++
	}
	var last evict.Last
	if known > i {
		last = d.last[t.keys[known-1]]
	}
	tokens := int(t.tokens[d.next])
	d.asked = evict.NextPrompt(tokens, min((known-i)*blockTokens, tokens), blockTokens, last, int64(i))
	d.first = i
	d.next++
}

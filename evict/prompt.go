package evict

// Last is what a cached entry remembers of the last request that it was part of. The zero value remembers nothing.
type Last struct {
	Prompt int32 // tokens
	Turn   int32 // of the session, from 1; 0: nothing is remembered
	At     int64 // the cache's clock
}

// Prompt is what a cache knows of a request whose first tokens it may hold: the one extractor of such features, for the product and
// for benchmarks. A cache makes one per request with NextPrompt, describes every entry of the request by Context, and has each
// remember Last.
type Prompt struct {
	tokens int32
	known  int32
	turn   int32
	behind float32
	more   float32
	since  float32
	now    int64
}

// NextPrompt describes a request of so many tokens, of which the first known are cached. last is what the deepest known
// entry remembers. The request is the session's next turn when at most slack tokens stood behind the known ones in the
// request before: what a cache shares in units of slack is seldom shared to the end. Otherwise both only begin alike.
func NextPrompt(tokens, known, slack int, last Last, now int64) Prompt {
	p := Prompt{tokens: int32(tokens), known: int32(known), turn: 1, behind: -1, now: now}
	if known == 0 || last.Turn == 0 {
		return p
	}
	behind := max(int(last.Prompt)-known, 0)
	if behind <= slack {
		p.turn = last.Turn + 1
	}
	p.behind, p.more = float32(behind), float32(p.tokens-last.Prompt)
	p.since = float32(log2(1 + float64(now-last.At)))
	return p
}

// Tokens is how many the request has; 0: there was none.
func (p *Prompt) Tokens() int { return int(p.tokens) }

// Last is what the request's entries remember of it.
func (p *Prompt) Last() Last { return Last{Prompt: p.tokens, Turn: p.turn, At: p.now} }

// Context describes the entry of so many tokens that begins at one of the request's.
func (p *Prompt) Context(before, tokens int, bytes, cost float32) Context {
	c := Context{
		Turn: float32(p.turn), Prompt: float32(p.tokens), Bytes: bytes, Cost: cost, Before: float32(before),
		After: float32(max(int(p.tokens)-before-tokens, 0)), Behind: p.behind, New: p.more, Since: p.since,
	}
	if p.tokens > 0 {
		c.Known = float32(p.known) / float32(p.tokens)
	}
	return c
}

// Single describes an entry that is part of no session, such as an item, by its kind, from 0.
func Single(kind int, tokens, bytes, cost float32) Context {
	return Context{Prompt: tokens, Bytes: bytes, Cost: cost, Behind: -1 - float32(kind)}
}

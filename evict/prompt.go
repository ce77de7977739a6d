package evict

// Last is a cached entry's record of the last request that used it. The zero value means there is none.
type Last struct {
	Prompt int32 // tokens
	Turn   int32 // turn of the session, from 1; 0: no record
	At     int64 // the cache's clock
}

// Prompt describes a request whose first tokens may be cached. It is the one place that extracts these features, for
// the server and for benchmarks. A cache makes one per request with NextPrompt, describes each entry of the request by
// Context, and stores Last with it.
type Prompt struct {
	tokens int32
	known  int32
	turn   int32
	behind float32
	more   float32
	since  float32
	now    int64
}

// NextPrompt describes a request of that many tokens, of which the first known are cached. last is the record of the
// deepest cached entry. The request is the session's next turn if the previous request had at most slack tokens after
// the known ones. A cache that shares tokens in units of slack seldom shares the last few. Otherwise the two requests
// only have a common beginning.
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

// Tokens returns the number of tokens of the request; 0 means there was no request.
func (p *Prompt) Tokens() int { return int(p.tokens) }

// Last returns the record that the request's entries store.
func (p *Prompt) Last() Last { return Last{Prompt: p.tokens, Turn: p.turn, At: p.now} }

// Context describes an entry of that many tokens that begins after before tokens of the request.
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

// Single describes an entry that belongs to no session, such as an item. kind counts from 0.
func Single(kind int, tokens, bytes, cost float32) Context {
	return Context{Prompt: tokens, Bytes: bytes, Cost: cost, Behind: -1 - float32(kind)}
}

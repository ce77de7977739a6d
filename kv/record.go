package kv

import (
	"grebe/internal/record"
	"grebe/kv/radix"
	"grebe/plan"
	"grebe/pool"
	"grebe/residency"
)

// Record has the store log its inputs and the decisions on them. It MUST be called after all other setup, and before
// the store is used.
func (s *Store) Record(r *record.Room) {
	if !r.On() {
		return
	}
	s.rec, s.memory = r, r.Sub("memory")
	if s.below != nil {
		s.below.rec = r.Sub("below")
	}
	r.In("open", s.config.Policy, s.config.Below, s.config.Predict)
	for _, l := range s.config.Levels {
		r.In("level", l.Tier, l.Slots, l.Bytes)
	}
	if s.hot != nil {
		c := s.hot.Config()
		r.In("hotness", c.Users, c.Items, c.Window, c.Buffer)
	}
	r.In("page", s.top.pool.Stats().Page)
	s.books.Below(func(key plan.Key, e residency.Entry) { r.In("stored", [32]byte(key), e.Kind, e.Tokens, int(e.Owner)) })
	s.books.SetTrace(func(op residency.Op, p *published, at plan.Tier) { recordChange(r, op, p, at) })
}

// recordChange logs a change of the books.
func recordChange(r *record.Room, op residency.Op, p *published, at plan.Tier) {
	switch op {
	case residency.DidPut:
		r.Did(op.String(), [32]byte(p.Key), at, kindName(p), p.Tokens, p.Bytes)
	case residency.DidTake, residency.DidLeave, residency.DidHit:
		r.Did(op.String(), [32]byte(p.Key), at)
	default:
		r.Did(op.String(), [32]byte(p.Key))
	}
}

// allocRun allocates memory for a chunk. If that is recorded, the log has the order of all allocations and frees, which
// decides where later chunks fit.
func (s *Store) allocRun(l *level, tokens int) (pool.Run, error) {
	bytes := s.shape.ChunkBytes(tokens, false)
	if !s.memory.On() {
		return l.pool.Alloc(bytes)
	}
	s.memory.Lock()
	defer s.memory.Unlock()
	s.memory.In("take", l.place, tokens)
	run, err := l.pool.Alloc(bytes)
	if err != nil {
		s.memory.Did("full")
		return run, err
	}
	first, _ := run.Pages()
	s.memory.Did("at", first)
	return run, nil
}

// freeRun frees the memory of a chunk.
func (s *Store) freeRun(c *chunk) {
	if s.memory.On() {
		s.memory.Lock()
		defer s.memory.Unlock()
		first, pages := c.run.Pages()
		s.memory.In("put", c.level.place, first, pages)
	}
	c.level.pool.Free(c.run)
}

// kindName is the kind as logs spell it.
func kindName(p *published) string {
	if p.Kind == Prefix {
		return "prefix"
	}
	return p.Kind.String()
}

// recordPublish logs an entry that comes to a level. Same says that it is there already, in the same memory.
func (s *Store) recordPublish(p *published, to *level, same bool) {
	s.rec.In("publish", [32]byte(p.Key), kindName(p), to.place, p.Tokens, p.Bytes, p.Named, p.Clean(), same)
}

// recordFind logs that a request wants an entry.
func (s *Store) recordFind(key plan.Key) {
	if p := s.books.Get(key); p != nil {
		s.rec.In("find", [32]byte(key), s.inPlace(p))
	}
}

// victim asks the books which entry leaves a level. It logs the answers that the policy got about which entries may go.
func (s *Store) victim(l *level) (*published, residency.Exit) {
	if !s.rec.On() {
		return s.books.Need(l.index, evictable)
	}
	s.rec.In("need", l.place)
	return s.books.Need(l.index, func(p *published) bool {
		ok := evictable(p)
		s.rec.In("pin", [32]byte(p.Key), ok)
		return ok
	})
}

// recordInsert logs the runs that an Insert changed, with the tokens and bytes of new ones.
func (s *Store) recordInsert(done radix.Change[run], e *Entry, tokens int) {
	name := func(n *node) any {
		if n == nil {
			return "-"
		}
		return [32]byte(prefixKey(n.Hash()))
	}
	bytes := func(chunks []*chunk) (n int64) {
		for _, c := range chunks {
			n += int64(c.run.Size)
		}
		return n
	}
	var parent *node
	if done.Added != nil {
		parent = done.Added.Parent()
	}
	s.rec.In("insert", tokens, done.Start, name(done.Added), bytes(e.chunks[min(done.Start/ChainTokens, len(e.chunks)):]),
		name(parent), name(done.Covered))
	if done.Lower != nil {
		n := len(done.Upper.Tokens())
		chunks := done.Lower.Value.Value.entry.chunks
		s.rec.In("split", name(done.Lower), name(done.Upper), n, bytes(chunks[:n/ChainTokens]), len(done.Lower.Tokens()),
			bytes(chunks[n/ChainTokens:]))
	}
}

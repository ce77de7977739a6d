package kv

import (
	"encoding/binary"

	"grebe/kv/radix"
	"grebe/plan"
	"grebe/residency"
)

// Prefix is the kind under which known prefixes are counted. No segment has this kind.
const Prefix = plan.Beam + 1

// node is a run of tokens that begins at the start of a chunk. Its published has an entry of the run's own
// chunks. That entry is never handed out: readers hold references to the chunks.
type node = radix.Node[run]

// PrefixKey returns a key that counts a sequence. No entry is under it. When a known run is evicted,
// OnForget's function gets the key of the sequence that ends with the run.
func PrefixKey(context plan.Key, tokens []int32) plan.Key {
	return prefixKey(radix.Hash(context, tokens))
}

func prefixKey(hash uint64) (k plan.Key) {
	binary.LittleEndian.PutUint64(k[:], hash)
	return k
}

// OnForget has f called, without locks held, with the PrefixKey of every known run that is evicted. It MUST be
// called before the store is used.
func (s *Store) OnForget(f func(plan.Key)) { s.forgotten = f }

// Insert makes the KV of a sequence findable for every sequence with the same first tokens in the same
// context. The context is a digest of everything else that the KV depends on. The caller keeps its
// reference. Tokens that are known already keep their KV. The entry MUST be a Chain from Reserve. If the
// books have no room, Insert does nothing.
//
// Prefixes stay on the top level. They have no name by which they could be deleted, so they are neither
// moved to host memory nor written to disk.
func (s *Store) Insert(context plan.Key, tokens []int32, e *Entry) {
	if len(tokens) == 0 || e.len != len(tokens) || !e.chained(s.top) {
		return
	}
	s.mu.Lock()
	for s.books.Places(s.top.index) < 2 { // Insert may split one run and add another
		s.mu.Unlock()
		if !s.evictOne(s.top) {
			return
		}
		s.mu.Lock()
	}
	done := s.known.Insert(context, tokens)
	if s.rec.On() {
		s.recordInsert(done, e, len(tokens))
	}
	if done.Lower != nil {
		s.split(done.Upper, done.Lower)
	}
	var covered *Entry
	if done.Covered != nil {
		covered = done.Covered.Value.Value.entry
		s.books.TakeRun(done.Covered.Value.published)
	}
	if done.Added != nil {
		added := s.newEntry(len(tokens) - done.Start)
		added.share(e.chunks[done.Start/ChainTokens:], added.len)
		parent := done.Added.Parent()
		var before *published
		if parent != nil {
			before = parent.Value.published
		}
		asked := s.books.Inserted(before, len(tokens), done.Start)
		p := s.newRun(done.Added, added)
		s.books.PutRun(p, asked, done.Start)
		s.watchKept(p)
		s.use(parent, asked)
	}
	s.learn()
	s.unlock()
	if covered != nil {
		covered.Release()
	}
	s.ahead.wake()
}

// chained reports whether all chunks of the entry are on a level and have ChainTokens tokens.
func (e *Entry) chained(l *level) bool {
	for _, c := range e.chunks {
		if c.level != l || c.tokens != ChainTokens {
			return false
		}
	}
	return true
}

// newRun describes a run for the books. It takes over the reference.
func (s *Store) newRun(n *node, e *Entry) *published {
	p := &published{Key: prefixKey(n.Hash()), Kind: Prefix, Tokens: e.len, Bytes: e.bytes, Value: body{entry: e, node: n}}
	n.Value = run{p}
	return p
}

// split divides the chunks of a run between upper, which has its first tokens now, and lower.
func (s *Store) split(upper, lower *node) {
	p, k := lower.Value.published, len(upper.Tokens())/ChainTokens
	first, rest := s.newEntry(len(upper.Tokens())), s.newEntry(len(lower.Tokens()))
	for i, c := range p.Value.entry.chunks {
		if i < k {
			first.add(c)
		} else {
			rest.add(c)
		}
	}
	s.books.Split(p, s.newRun(upper, first), s.newRun(lower, rest))
}

// use notes that a request used a run and all runs before it. It goes from the last run to the first, so that no run is
// less recently used than the runs behind it.
func (s *Store) use(n *node, asked residency.Request) {
	for ; n != nil; n = n.Parent() {
		s.books.UseRun(n.Value.published, asked)
		s.watchHit(n.Value.published, residency.Here)
	}
}

// removable reports whether a run can be evicted: it is a leaf and has no reader. Every reader of a run has a
// reference to its first chunk.
func removable(p *published) bool {
	return p.Value.node.Leaf() && p.Value.entry.chunks[0].refs.Load() == 1
}

// forget removes a run that the policy chose. It is called with mu held, and unlocks it.
func (s *Store) forget(p *published) {
	s.known.Remove(p.Value.node)
	s.watchEvicted(p)
	s.unlock()
	s.forgotten(p.Key)
	p.Value.entry.Release()
}

// forgetAll removes all runs from the books and returns their entries. The caller releases them.
func (s *Store) forgetAll() (all []*Entry) {
	s.known.All(func(n *node) { all = append(all, s.takeRun(n)) })
	s.known = radix.New[run](ChainTokens)
	return all
}

// takeRun removes a run from the books and returns its entry. The caller releases it.
func (s *Store) takeRun(n *node) *Entry {
	if s.rec.On() {
		s.rec.In("delete", [32]byte(n.Value.Key))
	}
	s.books.TakeRun(n.Value.published)
	return n.Value.Value.entry
}

// Forget removes all known prefixes of a context. Their memory is zeroed and freed when the last reader releases it.
func (s *Store) Forget(context plan.Key) {
	var all []*Entry
	s.mu.Lock()
	s.known.Cut(context, func(n *node) { all = append(all, s.takeRun(n)) })
	s.unlock()
	for _, e := range all {
		e.Release()
	}
}

// Match returns the longest known prefix of tokens in a context and the tier where it was, or nil. The
// caller gets a reference and MUST release it. The prefix is not evicted before that.
func (s *Store) Match(context plan.Key, tokens []int32) (*Entry, plan.Tier) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path, n := s.match(context, tokens)
	if n == 0 {
		return nil, plan.Missing
	}
	deepest := path[len(path)-1]
	if s.rec.On() {
		s.rec.In("match", [32]byte(deepest.Value.Key), len(tokens), n)
	}
	s.use(deepest, s.books.Matched(deepest.Value.published, len(tokens), n))
	s.learn()
	v := s.newView(n)
	for _, run := range path {
		n = v.share(run.Value.Value.entry.chunks, n)
	}
	clear(path)
	return v, s.top.place
}

// match returns the runs of the longest known prefix, and its length. The caller clears the path.
func (s *Store) match(context plan.Key, tokens []int32) (path []*node, n int) {
	s.path, n = s.known.Match(s.path[:0], context, tokens)
	return s.path, n
}

// PeekMatch returns how many tokens Match would find, and their tier. It does not count as a use.
func (s *Store) PeekMatch(context plan.Key, tokens []int32) (int, plan.Tier) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path, n := s.match(context, tokens)
	clear(path)
	if n == 0 {
		return 0, plan.Missing
	}
	return n, s.top.place
}

// maxViews is the most released views that are kept.
const maxViews = 64

// newView returns an entry of n tokens that will share the chunks of runs.
func (s *Store) newView(n int) *Entry {
	var v *Entry
	select {
	case v = <-s.views:
	default:
		v = &Entry{store: s, view: true}
	}
	v.len = n
	v.refs.Store(1)
	return v
}

// recycle keeps a released view for another Match.
func (s *Store) recycle(v *Entry) {
	clear(v.chunks)
	v.chunks, v.bytes = v.chunks[:0], 0
	select {
	case s.views <- v:
	default:
	}
}

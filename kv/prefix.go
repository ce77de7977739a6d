package kv

import (
	"encoding/binary"

	"grebe/kv/radix"
	"grebe/plan"
	"grebe/residency"
)

// Prefix is the kind under which known prefixes are counted. No segment is of it.
const Prefix = plan.Beam + 1

// node is a run of tokens that begins with a chunk. Its published has an entry of the run's own chunks,
// which is never handed out: readers hold references to the chunks.
type node = radix.Node[run]

// PrefixKey names a sequence for counting: OnForget is told it when the known run that ends there goes. It
// finds no entry.
func PrefixKey(context plan.Key, tokens []int32) plan.Key {
	return prefixKey(radix.Hash(context, tokens))
}

func prefixKey(hash uint64) (k plan.Key) {
	binary.LittleEndian.PutUint64(k[:], hash)
	return k
}

// OnForget has f called with the PrefixKey of every known run that made room, without locks held. It MUST be
// called before the store is used.
func (s *Store) OnForget(f func(plan.Key)) { s.forgotten = f }

// Insert makes a filled entry of a sequence findable by whoever has the same first tokens in the same
// context: all that the KV depends on besides. The caller keeps its reference. What is known already
// stays, so of two who computed the same tokens the first one's are kept. The entry MUST be a Chain that
// Reserve gave; where there is no room on the books nothing happens.
//
// Prefixes are kept where the device computes and nowhere else: they have no name by which they could be
// deleted, so none is written below memory, and none is lowered.
func (s *Store) Insert(context plan.Key, tokens []int32, e *Entry) {
	if len(tokens) == 0 || e.len != len(tokens) || !e.chained(s.top) {
		return
	}
	s.mu.Lock()
	for s.books.Places(s.top.index) < 2 { // a run may be split, and one added
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
		s.books.PutRun(s.newRun(done.Added, added), asked, done.Start)
		s.use(parent, asked)
	}
	s.learn()
	s.unlock()
	if covered != nil {
		covered.Release()
	}
	s.ahead.wake()
}

// chained reports whether the entry is made of chunks of ChainTokens in a level.
func (e *Entry) chained(l *level) bool {
	for _, c := range e.chunks {
		if c.level != l || c.tokens != ChainTokens {
			return false
		}
	}
	return true
}

// newRun describes a run for the books, which take over the reference.
func (s *Store) newRun(n *node, e *Entry) *published {
	p := &published{Key: prefixKey(n.Hash()), Kind: Prefix, Tokens: e.len, Bytes: e.bytes, Value: body{entry: e, node: n}}
	n.Value = run{p}
	return p
}

// split divides the chunks of a run whose first tokens are upper's now.
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

// use notes a use of a run and of all before it by a request. The first tokens come last: then nothing is older than what follows it.
func (s *Store) use(n *node, asked residency.Request) {
	for ; n != nil; n = n.Parent() {
		s.books.UseRun(n.Value.published, asked)
	}
}

// removable reports whether a run can go: nothing follows it, and nobody reads it. Who reads some of it
// reads its first chunk.
func removable(p *published) bool {
	return p.Value.node.Leaf() && p.Value.entry.chunks[0].refs.Load() == 1
}

// forget drops a run that the policy chose. It is called with mu held, and unlocks it.
func (s *Store) forget(p *published) {
	s.known.Remove(p.Value.node)
	s.unlock()
	s.forgotten(p.Key)
	p.Value.entry.Release()
}

// forgetAll takes all runs off the books; the caller releases them.
func (s *Store) forgetAll() (all []*Entry) {
	s.known.All(func(n *node) { all = append(all, s.takeRun(n)) })
	s.known = radix.New[run](ChainTokens)
	return all
}

// takeRun takes a run off the books. The caller releases it.
func (s *Store) takeRun(n *node) *Entry {
	if s.rec.On() {
		s.rec.In("delete", [32]byte(n.Value.Key))
	}
	s.books.TakeRun(n.Value.published)
	return n.Value.Value.entry
}

// Forget drops all known prefixes of a context. Their memory is freed, and zeroed, with its last reader.
func (s *Store) Forget(context plan.Key) {
	var all []*Entry
	s.mu.Lock()
	s.known.Cut(context, func(n *node) { all = append(all, s.takeRun(n)) })
	s.unlock()
	for _, e := range all {
		e.Release()
	}
}

// Match returns the longest known prefix of tokens in a context, with a reference for the caller, who
// MUST release it, and where it was; nil when nothing is known. Until then it is not evicted.
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

// match returns the runs that tokens begin with, and how many tokens that is. The caller clears the path.
func (s *Store) match(context plan.Key, tokens []int32) (path []*node, n int) {
	s.path, n = s.known.Match(s.path[:0], context, tokens)
	return s.path, n
}

// PeekMatch returns how many tokens Match would find, and where, without counting it as a use.
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

// maxViews is how many released views are kept.
const maxViews = 64

// newView returns an entry of n tokens for chunks that a reader shares.
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

// Package radix stores token sequences and finds the longest stored prefix of another sequence.
//
// A Tree is a compressed trie. A node has a run of tokens. The tokens from the root to the end of a node
// are a prefix of some stored sequence. Tokens are divided into chunks of a fixed length, like the memory
// that holds their KV. A node begins at a multiple of that length, and ends at one if it has children.
// So nodes are split between chunks only. Two sequences that differ within a chunk have that chunk twice,
// but Match still finds every token that they share. Only a leaf can be removed.
//
// Invariants: the first chunk of a node is never a prefix of the first chunk of a sibling. Siblings are
// sorted by their first chunks. Every node but a root has tokens, and every root has children. So the
// child that shares most tokens with a sequence is next to the place where the sequence would be
// inserted, and binary search finds it.
//
// A Tree takes the memory of its tokens and a bounded amount per node. The owner bounds the number of
// nodes with Len and Remove. A Tree has no lock: its owner serialises calls. Match allocates only if the
// path has to grow.
package radix

import (
	"encoding/binary"
	"slices"
)

// Context is a digest of everything that two sequences must have in common besides tokens, such as the tokens before
// them.
type Context = [32]byte

// Tree is a set of token sequences.
type Tree[V any] struct {
	chunk int
	roots map[Context]*Node[V]
	nodes int
}

// Node is a run of tokens that follow those of its parent. Value is for the owner of the tree.
type Node[V any] struct {
	Value V

	parent   *Node[V] // nil: a root
	children []*Node[V]
	tokens   []int32
	hash     uint64
	context  Context // of a root
}

// New returns an empty tree with chunks of chunk tokens.
func New[V any](chunk int) *Tree[V] {
	return &Tree[V]{chunk: chunk, roots: map[Context]*Node[V]{}}
}

// Len returns the number of nodes without the roots.
func (t *Tree[V]) Len() int { return t.nodes }

// Tokens returns the node's own tokens, which MUST NOT be changed.
func (n *Node[V]) Tokens() []int32 { return n.tokens }

// Leaf reports whether the node has no children.
func (n *Node[V]) Leaf() bool { return len(n.children) == 0 }

// Children returns the number of children.
func (n *Node[V]) Children() int { return len(n.children) }

// Parent returns the node before this one, or nil if this one begins its sequences.
func (n *Node[V]) Parent() *Node[V] {
	if n.parent.parent == nil {
		return nil
	}
	return n.parent
}

// Hash returns the hash of the context and of all tokens up to the end of the node. Changes of the tree do not change
// it.
func (n *Node[V]) Hash() uint64 { return mix(n.hash) }

// Hash returns a hash of a context and tokens, for statistics. Equal hashes do not prove equal tokens.
func Hash(context Context, tokens []int32) uint64 { return mix(extend(begin(&context), tokens)) }

// Match appends to path the nodes of the longest stored prefix of tokens, first to last, and returns the
// length of that prefix. The last node may have more tokens than the prefix.
func (t *Tree[V]) Match(path []*Node[V], context Context, tokens []int32) ([]*Node[V], int) {
	n, at := t.roots[context], 0
	for n != nil && at < len(tokens) {
		child, common := t.closest(n, tokens[at:])
		if child == nil {
			break
		}
		path = append(path, child)
		at += common
		if common < len(child.tokens) {
			break
		}
		n = child
	}
	return path, at
}

// Change describes how an Insert changed the tree.
type Change[V any] struct {
	// Added is the new leaf, or nil if the sequence was stored before. Its tokens begin at Start of the sequence.
	Added *Node[V]
	Start int
	// Lower is a node that was split, or nil. Upper is new and has its first tokens.
	Upper, Lower *Node[V]
	// Covered is a leaf that ended within a chunk and was removed, or nil. Added has its tokens. It may be Lower.
	Covered *Node[V]
}

// Insert stores a sequence.
func (t *Tree[V]) Insert(context Context, tokens []int32) (done Change[V]) {
	if len(tokens) == 0 {
		return done
	}
	n := t.roots[context]
	if n == nil {
		n = &Node[V]{context: context, hash: begin(&context)}
		t.roots[context] = n
	}
	for at := 0; ; {
		child, common := t.closest(n, tokens[at:])
		if at+common == len(tokens) {
			return done
		}
		whole := common - common%t.chunk
		covers := child != nil && common == len(child.tokens)
		if covers && whole == common {
			n, at = child, at+common
			continue
		}
		if whole > 0 {
			n, at = t.split(child, whole), at+whole
			done.Upper, done.Lower = n, child
		}
		if covers {
			t.unlink(child)
			done.Covered = child
		}
		done.Added, done.Start = t.add(n, tokens[at:]), at
		return done
	}
}

// Remove removes a leaf.
func (t *Tree[V]) Remove(n *Node[V]) {
	if !n.Leaf() || n.parent == nil {
		panic("radix: only a leaf can be removed")
	}
	t.unlink(n)
	if p := n.parent; p.parent == nil && p.Leaf() {
		delete(t.roots, p.context)
	}
}

// Cut removes all sequences of a context and calls f with their nodes.
func (t *Tree[V]) Cut(context Context, f func(*Node[V])) {
	root := t.roots[context]
	if root == nil {
		return
	}
	delete(t.roots, context)
	root.below(func(n *Node[V]) {
		t.nodes--
		f(n)
	})
}

// All calls f with every node; f MUST NOT change the tree.
func (t *Tree[V]) All(f func(*Node[V])) {
	for _, root := range t.roots {
		root.below(f)
	}
}

func (n *Node[V]) below(f func(*Node[V])) {
	for _, c := range n.children {
		f(c)
		c.below(f)
	}
}

// closest returns the child that shares most leading tokens with rest, and how many; nil if none shares a token.
func (t *Tree[V]) closest(n *Node[V], rest []int32) (*Node[V], int) {
	i := t.place(n, rest)
	var best *Node[V]
	most := 0
	for _, c := range n.children[max(i-1, 0):min(i+1, len(n.children))] {
		if k := common(c.tokens, rest); k > most {
			best, most = c, k
		}
	}
	return best, most
}

// place returns the index among n's children of one that begins with these tokens, or where it would be inserted.
func (t *Tree[V]) place(n *Node[V], tokens []int32) int {
	first := tokens[:min(t.chunk, len(tokens))]
	low, high := 0, len(n.children)
	for low < high {
		mid := int(uint(low+high) >> 1)
		c := n.children[mid].tokens
		if slices.Compare(c[:min(t.chunk, len(c))], first) < 0 {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}

// add adds a leaf below n.
func (t *Tree[V]) add(n *Node[V], tokens []int32) *Node[V] {
	leaf := &Node[V]{parent: n, tokens: slices.Clone(tokens), hash: extend(n.hash, tokens)}
	n.children = slices.Insert(n.children, t.place(n, tokens), leaf)
	t.nodes++
	return leaf
}

// split moves the first tokens of n to a new node before it.
func (t *Tree[V]) split(n *Node[V], at int) *Node[V] {
	p := n.parent
	upper := &Node[V]{parent: p, children: []*Node[V]{n}, tokens: slices.Clone(n.tokens[:at]),
		hash: extend(p.hash, n.tokens[:at])}
	p.children[t.place(p, n.tokens)] = upper
	n.parent, n.tokens = upper, slices.Clone(n.tokens[at:]) // a copy, because either half may outlive the other
	t.nodes++
	return upper
}

// unlink removes a leaf from its parent.
func (t *Tree[V]) unlink(n *Node[V]) {
	i := t.place(n.parent, n.tokens)
	n.parent.children = slices.Delete(n.parent.children, i, i+1)
	t.nodes--
}

// common returns how many leading tokens a and b share.
func common(a, b []int32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// begin returns the hash of no tokens.
func begin(context *Context) uint64 { return binary.LittleEndian.Uint64(context[:]) }

// mix makes every bit of a hash depend on all of it (the last step of MurmurHash3).
func mix(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// extend adds tokens to a hash (FNV-1a over tokens).
func extend(h uint64, tokens []int32) uint64 {
	for _, t := range tokens {
		h = (h ^ uint64(uint32(t))) * 0x100000001b3
	}
	return h
}

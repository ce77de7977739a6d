// Package radix knows token sequences and finds the longest known prefix of another one.
//
// A Tree is a compressed trie: a node has a run of tokens, and the tokens from the root to its end are
// the beginning of some known sequence. Tokens are cut into chunks of a fixed length, as the memory
// behind them is: a node begins at a multiple of that length and ends at one if it has children, so a
// node is split between chunks only. Sequences that part in mid-chunk each have that chunk; Match still
// finds every token that they share. Only a leaf can be removed.
//
// Invariants: of two siblings neither's first chunk is the beginning of the other's; siblings are in
// the order of their first chunks; every node but a root has tokens, every root has children. So what a
// sequence shares most with is a neighbour of its place, and a step down is a binary search.
//
// Memory is what the known tokens take and a bounded amount per node; how many nodes there are is for
// the owner to bound, with Len and Remove. A Tree has no lock: its owner serialises calls. Match
// allocates nothing but a longer path.
package radix

import (
	"encoding/binary"
	"slices"
)

// Context names what comes before the tokens and all else that sequences must have in common.
type Context = [32]byte

// Tree is a set of token sequences.
type Tree[V any] struct {
	chunk int
	roots map[Context]*Node[V]
	nodes int
}

// Node is a run of tokens behind those of its parent. Value is its owner's.
type Node[V any] struct {
	Value V

	parent   *Node[V] // nil: a root
	children []*Node[V]
	tokens   []int32
	hash     uint64
	context  Context // of a root
}

// New returns an empty tree for chunks of so many tokens.
func New[V any](chunk int) *Tree[V] {
	return &Tree[V]{chunk: chunk, roots: map[Context]*Node[V]{}}
}

// Len returns the number of nodes, roots aside.
func (t *Tree[V]) Len() int { return t.nodes }

// Tokens returns the node's own tokens, which MUST NOT be changed.
func (n *Node[V]) Tokens() []int32 { return n.tokens }

// Leaf reports whether nothing follows the node.
func (n *Node[V]) Leaf() bool { return len(n.children) == 0 }

// Children returns how many nodes follow directly.
func (n *Node[V]) Children() int { return len(n.children) }

// Parent returns the node before this one; nil when this one has the first tokens.
func (n *Node[V]) Parent() *Node[V] {
	if n.parent.parent == nil {
		return nil
	}
	return n.parent
}

// Hash is that of the context and all tokens to the node's end. It does not change when the tree does.
func (n *Node[V]) Hash() uint64 { return mix(n.hash) }

// Hash is short for a context and tokens, for counting them: it is no proof of what they are.
func Hash(context Context, tokens []int32) uint64 { return mix(extend(begin(&context), tokens)) }

// Match appends to path the nodes that have the longest known prefix of tokens, first to last, and
// returns its length. The last node may have more tokens than the prefix.
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

// Change is what an Insert did to the tree.
type Change[V any] struct {
	// Added is a new leaf, nil when the sequence was known; Start is where its tokens begin in the sequence.
	Added *Node[V]
	Start int
	// Lower was split, or nil: its first tokens went to Upper, which is new.
	Upper, Lower *Node[V]
	// Covered is a leaf, nil or maybe Lower, that ended in mid-chunk and is gone: Added has its tokens.
	Covered *Node[V]
}

// Insert makes a sequence known.
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

// Remove forgets a leaf.
func (t *Tree[V]) Remove(n *Node[V]) {
	if !n.Leaf() || n.parent == nil {
		panic("radix: only a leaf can be removed")
	}
	t.unlink(n)
	if p := n.parent; p.parent == nil && p.Leaf() {
		delete(t.roots, p.context)
	}
}

// Cut forgets all sequences of a context and calls f with the nodes that they had.
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

// closest returns the child that has most leading tokens in common with rest, and how many; nil when none has any.
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

// place returns where among n's children one that begins with these tokens stands, or would.
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

// add appends a leaf to n.
func (t *Tree[V]) add(n *Node[V], tokens []int32) *Node[V] {
	leaf := &Node[V]{parent: n, tokens: slices.Clone(tokens), hash: extend(n.hash, tokens)}
	n.children = slices.Insert(n.children, t.place(n, tokens), leaf)
	t.nodes++
	return leaf
}

// split moves the first tokens of n to a new node before it.
func (t *Tree[V]) split(n *Node[V], at int) *Node[V] {
	p := n.parent
	upper := &Node[V]{parent: p, children: []*Node[V]{n}, tokens: slices.Clone(n.tokens[:at]), hash: extend(p.hash, n.tokens[:at])}
	p.children[t.place(p, n.tokens)] = upper
	n.parent, n.tokens = upper, slices.Clone(n.tokens[at:]) // a copy: the other half may outlive it
	t.nodes++
	return upper
}

// unlink takes a leaf from its parent.
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

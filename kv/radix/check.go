package radix

import (
	"fmt"
	"slices"
)

// Check verifies the tree and returns the first error. It is for tests and builds with self-checks.
func (t *Tree[V]) Check() error {
	nodes := 0
	for context, root := range t.roots {
		if root.context != context || root.parent != nil || root.Leaf() {
			return fmt.Errorf("radix: root %x is that of %x, or has no children", context[:4], root.context[:4])
		}
		if err := t.checkBelow(root, &nodes); err != nil {
			return err
		}
	}
	if nodes != t.nodes {
		return fmt.Errorf("radix: %d nodes, recorded are %d", nodes, t.nodes)
	}
	return nil
}

func (t *Tree[V]) checkBelow(n *Node[V], nodes *int) error {
	for i, c := range n.children {
		*nodes++
		switch {
		case c.parent != n || len(c.tokens) == 0:
			return fmt.Errorf("radix: a child of %d tokens has another parent, or no tokens", len(c.tokens))
		case !c.Leaf() && len(c.tokens)%t.chunk != 0:
			return fmt.Errorf("radix: a node of %d tokens has children, but does not end with a chunk", len(c.tokens))
		case c.hash != extend(n.hash, c.tokens):
			return fmt.Errorf("radix: a node of %d tokens has the hash of others", len(c.tokens))
		}
		if i > 0 {
			a, b := t.first(n.children[i-1]), t.first(c)
			if k := common(a, b); slices.Compare(a, b) >= 0 || k == len(a) || k == len(b) {
				return fmt.Errorf("radix: siblings that begin %v and %v are not in order, or one begins with the other", a, b)
			}
		}
		if err := t.checkBelow(c, nodes); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tree[V]) first(n *Node[V]) []int32 { return n.tokens[:min(t.chunk, len(n.tokens))] }

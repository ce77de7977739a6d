package radix

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// linear is a tree's model: the known sequences in a list, none the beginning of another.
type linear map[Context][][]int32

// match returns the longest known prefix by looking at every sequence.
func (m linear) match(c Context, tokens []int32) int {
	most := 0
	for _, known := range m[c] {
		most = max(most, common(known, tokens))
	}
	return most
}

func (m linear) insert(c Context, tokens []int32) {
	if m.match(c, tokens) == len(tokens) {
		return
	}
	m[c] = slices.DeleteFunc(m[c], func(known []int32) bool { return common(known, tokens) == len(known) })
	m[c] = append(m[c], slices.Clone(tokens))
}

// forget cuts a sequence back to its first tokens.
func (m linear) forget(c Context, tokens []int32, to int) {
	m[c] = slices.DeleteFunc(m[c], func(known []int32) bool { return slices.Equal(known, tokens) })
	m.insert(c, tokens[:to])
}

// path returns the context and all tokens from the root to the end of a node.
func (n *Node[V]) path() (Context, []int32) {
	if n.parent == nil {
		return n.context, nil
	}
	c, before := n.parent.path()
	return c, append(before, n.tokens...)
}

func (t *Tree[V]) leaves() []*Node[V] {
	var out []*Node[V]
	t.All(func(n *Node[V]) {
		if n.Leaf() {
			out = append(out, n)
		}
	})
	slices.SortFunc(out, func(a, b *Node[V]) int {
		ca, pa := a.path()
		cb, pb := b.path()
		if c := slices.Compare(ca[:], cb[:]); c != 0 {
			return c
		}
		return slices.Compare(pa, pb)
	})
	return out
}

// Under random operations the tree knows what a list of sequences knows. Two tokens and short chunks let
// sequences part at every place.
func TestTreeAgreesWithLinearScan(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		chunk := rapid.IntRange(1, 5).Draw(rt, "chunk")
		tree, model := New[int](chunk), linear{}
		contexts := []Context{{1}, {2}}
		sequence := rapid.SliceOfN(rapid.Int32Range(0, 1), 0, 14)
		draw := func() (Context, []int32) {
			c := rapid.SampledFrom(contexts).Draw(rt, "context")
			s := sequence.Draw(rt, "tokens")
			if known := model[c]; len(known) > 0 && rapid.Bool().Draw(rt, "related") {
				k := rapid.SampledFrom(known).Draw(rt, "known")
				s = append(slices.Clone(k[:rapid.IntRange(0, len(k)).Draw(rt, "cut")]), s...)
			}
			return c, s
		}
		rt.Repeat(map[string]func(*rapid.T){
			"insert": func(rt *rapid.T) {
				c, s := draw()
				if err := insert(tree, c, s); err != nil {
					rt.Fatal(err)
				}
				model.insert(c, s)
			},
			"match": func(rt *rapid.T) {
				c, s := draw()
				if err := match(tree, model, c, s); err != nil {
					rt.Fatal(err)
				}
			},
			"remove": func(rt *rapid.T) {
				leaves := tree.leaves()
				if len(leaves) == 0 {
					rt.Skip("nothing to remove")
				}
				leaf := rapid.SampledFrom(leaves).Draw(rt, "leaf")
				c, s := leaf.path()
				tree.Remove(leaf)
				model.forget(c, s, len(s)-len(leaf.tokens))
			},
			"": func(rt *rapid.T) {
				if err := agree(tree, model); err != nil {
					rt.Fatal(err)
				}
			},
		})
	})
}

// insert holds what Insert says against what there was.
func insert(tree *Tree[int], c Context, s []int32) error {
	before := tree.Len()
	_, known := tree.Match(nil, c, s)
	done := tree.Insert(c, s)
	if (done.Added == nil) != (known == len(s)) {
		return fmt.Errorf("%d of %d tokens were known, but Insert did %+v", known, len(s), done)
	}
	added := 0
	for _, is := range []struct {
		n    *Node[int]
		more int
	}{{done.Added, 1}, {done.Upper, 1}, {done.Covered, -1}} {
		if is.n != nil {
			added += is.more
		}
	}
	if tree.Len() != before+added {
		return fmt.Errorf("%d nodes became %d, but Insert did %+v", before, tree.Len(), done)
	}
	if done.Added == nil {
		return nil
	}
	if _, p := done.Added.path(); !slices.Equal(p, s) || done.Start != len(s)-len(done.Added.tokens) ||
		done.Start%tree.chunk != 0 {
		return fmt.Errorf("%v was added at %d, which leads to %v, want %v", done.Added.tokens, done.Start, p, s)
	}
	return nil
}

// match holds Match against the model, and its path against the tokens.
func match(tree *Tree[int], model linear, c Context, s []int32) error {
	path, n := tree.Match(nil, c, s)
	if want := model.match(c, s); n != want {
		return fmt.Errorf("%d tokens of %v are known, want %d", n, s, want)
	}
	if n == 0 {
		return nil
	}
	_, all := path[len(path)-1].path()
	if common(all, s) != n || len(all)-len(path[len(path)-1].tokens) >= n {
		return fmt.Errorf("the path of %d tokens of %v leads to %v", n, s, all)
	}
	for i := len(path) - 1; i >= 0; i-- {
		before := path[i].Parent()
		if i > 0 && before != path[i-1] || i == 0 && before != nil {
			return fmt.Errorf("node %d of the path does not follow the one before it", i)
		}
	}
	return nil
}

// agree compares all that the tree and the model know.
func agree(tree *Tree[int], model linear) error {
	if err := tree.Check(); err != nil {
		return err
	}
	known := map[string]bool{}
	for c, all := range model {
		for _, s := range all {
			known[fmt.Sprint(c[0], s)] = true
		}
	}
	leaves := tree.leaves()
	for _, leaf := range leaves {
		c, s := leaf.path()
		if !known[fmt.Sprint(c[0], s)] {
			return fmt.Errorf("the tree knows %v, the model does not", s)
		}
		if leaf.Hash() != Hash(c, s) {
			return fmt.Errorf("the node at the end of %v has another hash than the sequence", s)
		}
	}
	if len(leaves) != len(known) {
		return fmt.Errorf("the tree knows %d sequences, the model %d", len(leaves), len(known))
	}
	return nil
}

func sequence(n int, seed int32) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = seed + int32(i*i)
	}
	return out
}

func TestMatchAllocatesNothing(t *testing.T) {
	tree, c := New[int](64), Context{7}
	all := sequence(1000, 3)
	for n := 100; n <= 1000; n += 100 {
		tree.Insert(c, all[:n])
		tree.Insert(c, append(slices.Clone(all[:n-50]), sequence(80, int32(n))...))
	}
	path := make([]*Node[int], 0, 64)
	if n := testing.AllocsPerRun(100, func() { path, _ = tree.Match(path[:0], c, all) }); n != 0 {
		t.Errorf("a match allocates %v times", n)
	}
	if _, n := tree.Match(nil, c, all); n != len(all) {
		t.Errorf("%d of %d tokens are known", n, len(all))
	}
}

// BenchmarkMatch finds a history of 2,000 tokens among 10,000 that share an instruction of 200.
func BenchmarkMatch(b *testing.B) {
	tree, c := New[int](64), Context{7}
	shared := sequence(200, 1)
	var last []int32
	for i := range 10000 {
		last = append(slices.Clone(shared), sequence(1800, int32(i*7919))...)
		tree.Insert(c, last)
	}
	path := make([]*Node[int], 0, 64)
	for b.Loop() {
		path, _ = tree.Match(path[:0], c, last)
	}
}

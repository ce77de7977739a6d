package beam

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"testing"
)

func rng(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 7)) }

// catalog is random input for Build; few codes in use make shared prefixes and collisions likely.
type catalog struct {
	sizes []int
	codes []int32
}

func randomCatalog(r *rand.Rand, depth, items, most int, wide bool) catalog {
	c := catalog{sizes: make([]int, depth)}
	for l := range c.sizes {
		c.sizes[l] = 1 + r.IntN(most)
		if wide && r.IntN(8) == 0 {
			c.sizes[l] += 1 << 17 // codes of four bytes
		}
	}
	for range items {
		for _, size := range c.sizes {
			code := r.IntN(size)
			if r.IntN(2) == 0 {
				code = min(size-1, r.IntN(3))
			}
			c.codes = append(c.codes, int32(code))
		}
	}
	return c
}

func (c catalog) items() int            { return len(c.codes) / len(c.sizes) }
func (c catalog) path(item int) []int32 { return c.codes[item*len(c.sizes):][:len(c.sizes)] }

func (c catalog) build(t testing.TB) *Index {
	t.Helper()
	ix, err := Build(c.sizes, c.codes)
	if err != nil {
		t.Fatal(err)
	}
	return ix
}

// sorted is the obvious order of the items: by path, then as given.
func (c catalog) sorted() []int {
	order := make([]int, c.items())
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return slices.Compare(c.path(a), c.path(b)) })
	return order
}

// prefixes lists the distinct prefixes of a length in order.
func (c catalog) prefixes(length int) [][]int32 {
	var out [][]int32
	for _, i := range c.sorted() {
		if p := c.path(i)[:length]; len(out) == 0 || !slices.Equal(out[len(out)-1], p) {
			out = append(out, p)
		}
	}
	return out
}

func eachCatalog(t *testing.T, test func(t *testing.T, r *rand.Rand, c catalog)) {
	for seed := range uint64(60) {
		r := rng(seed)
		c := randomCatalog(r, 1+int(seed)%5, r.IntN(400), 1+r.IntN(40), true)
		t.Run(fmt.Sprint(seed), func(t *testing.T) { test(t, r, c) })
	}
}

func TestIndexIsTheTreeOfPrefixes(t *testing.T) {
	eachCatalog(t, func(t *testing.T, _ *rand.Rand, c catalog) { checkTree(t, c, c.build(t)) })
}

func checkTree(t *testing.T, c catalog, ix *Index) {
	t.Helper()
	parents := [][]int32{nil}
	for l := range c.sizes {
		nodes := c.prefixes(l + 1)
		if ix.Nodes(l) != len(nodes) {
			t.Fatalf("level %d has %d nodes, want %d", l, ix.Nodes(l), len(nodes))
		}
		next := 0
		for p, prefix := range parents {
			codes, first := ix.Children(l, uint32(p))
			if len(nodes) > 0 && int(first) != next {
				t.Fatalf("children of %v start at node %d, want %d", prefix, first, next)
			}
			for i := range codes.Len() {
				want := nodes[next]
				if got := append(slices.Clone(prefix), codes.At(i)); !slices.Equal(got, want) {
					t.Fatalf("node %d of level %d is %v, want %v", next, l, got, want)
				}
				next++
			}
		}
		parents = nodes
	}
	order := c.sorted()
	for leaf, path := range parents {
		if got, ok := ix.Find(path); !ok || got != uint32(leaf) {
			t.Fatalf("path %v is leaf %d, %v, want %d", path, got, ok, leaf)
		}
		if got := ix.Path(nil, uint32(leaf)); !slices.Equal(got, path) {
			t.Fatalf("leaf %d has path %v, want %v", leaf, got, path)
		}
		for _, item := range ix.Items(uint32(leaf)) {
			if int(item) != order[0] {
				t.Fatalf("path %v has item %d, want %d", path, item, order[0])
			}
			order = order[1:]
		}
	}
	if len(order) != 0 {
		t.Fatalf("%d items are below no leaf", len(order))
	}
}

func TestPositionsAndBack(t *testing.T) {
	eachCatalog(t, func(t *testing.T, _ *rand.Rand, c catalog) {
		ix := c.build(t)
		order := c.sorted()
		for l := range c.sizes {
			for node, prefix := range c.prefixes(l + 1) {
				from, to := ix.positions(l, uint32(node))
				leaves := map[string]bool{}
				for position, item := range order {
					path := c.path(item)
					below := slices.Equal(path[:l+1], prefix)
					if inside := from <= uint32(position) && uint32(position) < to; inside != below {
						t.Fatalf("position %d below %v: %v, want %v", position, prefix, inside, below)
					}
					if below {
						leaves[fmt.Sprint(path)] = true
						if got := ix.nodeAt(l, uint32(position)); got != uint32(node) {
							t.Fatalf("position %d is below node %d of level %d, want %d", position, got, l, node)
						}
					}
				}
				if got := ix.settled(l, uint32(node)); got != (len(leaves) == 1) {
					t.Fatalf("%v has %d leaves, settled = %v", prefix, len(leaves), got)
				}
			}
		}
	})
}

func TestMaskIsTheFirstLevel(t *testing.T) {
	eachCatalog(t, func(t *testing.T, _ *rand.Rand, c catalog) {
		ix := c.build(t)
		codes, _ := ix.Children(0, 0)
		for code := range c.sizes[0] {
			_, valid := codes.find(int32(code))
			if got := ix.Mask()[code/64]>>(code%64)&1 != 0; got != valid {
				t.Fatalf("mask of code %d is %v, want %v", code, got, valid)
			}
		}
	})
}

func TestDigestIgnoresOrderOnly(t *testing.T) {
	eachCatalog(t, func(t *testing.T, r *rand.Rand, c catalog) {
		if c.items() == 0 {
			return
		}
		want := c.build(t).Digest()
		shuffled := catalog{sizes: c.sizes}
		for _, i := range r.Perm(c.items()) {
			shuffled.codes = append(shuffled.codes, c.path(i)...)
		}
		if got := shuffled.build(t).Digest(); got != want {
			t.Errorf("the same items in another order: digest %v, want %v", got, want)
		}
		more := catalog{sizes: c.sizes, codes: slices.Concat(c.codes, c.path(r.IntN(c.items())))}
		if more.build(t).Digest() == want {
			t.Error("one item more, the same digest")
		}
		wider := catalog{sizes: slices.Clone(c.sizes), codes: c.codes}
		wider.sizes[r.IntN(len(c.sizes))]++
		if wider.build(t).Digest() == want {
			t.Error("a level with one code more, the same digest")
		}
	})
}

// Paths of more than 64 bits are sorted by several keys.
func TestLongPaths(t *testing.T) {
	r := rng(1)
	c := catalog{sizes: []int{1 << 30, 1 << 30, 3, 1 << 20, 1 << 30}}
	for range 500 {
		for _, size := range c.sizes {
			c.codes = append(c.codes, int32(r.IntN(2)*r.IntN(min(size, 5))+r.IntN(2)*(size-5)&(size-1)))
		}
	}
	for i, code := range c.codes {
		c.codes[i] = min(code, int32(c.sizes[i%5]-1))
	}
	checkTree(t, c, c.build(t))
}

func TestBuildRefuses(t *testing.T) {
	for name, c := range map[string]catalog{
		"no levels":       {},
		"an empty level":  {sizes: []int{3, 0}},
		"half a path":     {sizes: []int{3, 3}, codes: []int32{1, 2, 1}},
		"a code too high": {sizes: []int{3, 3}, codes: []int32{1, 3}},
		"a negative code": {sizes: []int{3, 3}, codes: []int32{-1, 2}},
	} {
		if _, err := Build(c.sizes, c.codes); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestFindRefuses(t *testing.T) {
	ix := catalog{sizes: []int{3, 3}, codes: []int32{1, 2, 2, 0}}.build(t)
	for _, path := range [][]int32{nil, {1}, {1, 2, 0}, {0, 2}, {1, 0}, {-1, 2}, {1, 3}, {1, 65538}} {
		if leaf, ok := ix.Find(path); ok {
			t.Errorf("%v is leaf %d", path, leaf)
		}
	}
}

func store(t testing.TB, ix *Index) []byte {
	t.Helper()
	var b bytes.Buffer
	n, err := ix.WriteTo(&b)
	if err != nil || n != int64(b.Len()) {
		t.Fatalf("wrote %d bytes of %d, %v", n, b.Len(), err)
	}
	return b.Bytes()
}

func TestStoredIndexIsTheSame(t *testing.T) {
	eachCatalog(t, func(t *testing.T, _ *rand.Rand, c catalog) {
		ix := c.build(t)
		data := store(t, ix)
		for shift := range 2 { // in place, and copied from an odd address
			moved := append(make([]byte, shift, shift+len(data)), data...)[shift:]
			got, err := Open(moved, ix.Len(), nil)
			if err != nil {
				t.Fatal(err)
			}
			checkTree(t, c, got)
			if got.Digest() != ix.Digest() || !slices.Equal(got.place, ix.place) || !bytes.Equal(store(t, got), data) {
				t.Fatal("the opened index differs")
			}
		}
	})
}

func TestDamageIsSeen(t *testing.T) {
	r := rng(3)
	c := randomCatalog(r, 3, 50, 10, true)
	data := store(t, c.build(t))
	for i := range data {
		bad := slices.Clone(data)
		bad[i] ^= 1 << r.IntN(8)
		if _, err := Open(bad, c.items(), nil); !errors.Is(err, ErrDamaged) {
			t.Fatalf("byte %d changed: %v", i, err)
		}
		if _, err := Open(data[:i], c.items(), nil); !errors.Is(err, ErrDamaged) {
			t.Fatalf("cut to %d bytes: %v", i, err)
		}
	}
}

func TestRuns(t *testing.T) {
	for seed := range uint64(30) {
		r := rng(seed)
		var starts []uint32
		n := uint32(0)
		for range 1 + r.IntN(3000) {
			starts = append(starts, n)
			n += 1 + uint32(r.IntN(2)*r.IntN(2)*r.IntN(1+r.IntN(4000)))
		}
		runs := runs{n: n, words: make([]uint64, wordsFor(n))}
		for _, s := range starts {
			runs.mark(s)
		}
		runs.seal()
		ends := append(slices.Clone(starts[1:]), n)
		most := uint32(0)
		for k, s := range starts {
			from, to := runs.bounds(uint32(k))
			if from != s || to != ends[k] || runs.start(uint32(k)) != s {
				t.Fatalf("run %d is %d … %d, want %d … %d", k, from, to, s, ends[k])
			}
			most = max(most, to-from)
			for _, i := range []uint32{from, to - 1, from + r.Uint32N(to-from)} {
				if got := runs.of(i); got != uint32(k) {
					t.Fatalf("%d is in run %d, want %d", i, got, k)
				}
			}
		}
		if runs.most != most || cmp.Compare(int(runs.count()), len(starts)) != 0 {
			t.Fatalf("longest %d of %d runs, want %d of %d", runs.most, runs.count(), most, len(starts))
		}
	}
}

// A tree that cannot be walked is refused even where the checksum fits it.
func TestDamageWithAFittingChecksum(t *testing.T) {
	r := rng(5)
	for range 4000 {
		c := randomCatalog(r, 1+r.IntN(3), 1+r.IntN(60), 10, true)
		data := store(t, c.build(t))
		data[8+r.IntN(len(data)-16)] ^= 1 << r.IntN(8)
		binary.LittleEndian.PutUint64(data[len(data)-8:], uint64(crc32.Checksum(data[:len(data)-8], castagnoli)))
		if _, err := Open(data, c.items(), nil); err != nil && !errors.Is(err, ErrDamaged) {
			t.Fatal(err)
		} else if err == nil && !paddingOnly(c, data) {
			t.Fatal("a changed index was opened")
		}
	}
}

// paddingOnly reports whether data opens as the catalog's own index: the change hit padding.
func paddingOnly(c catalog, data []byte) bool {
	ix, err := Open(data, c.items(), nil)
	want, _ := Build(c.sizes, c.codes)
	return err == nil && ix.Digest() == want.Digest() && slices.Equal(ix.items, want.items)
}

// Codes of a node that do not ascend are refused even where digest and checksum fit them: a search would not find what
// is there.
func TestCodesOutOfOrderAreSeen(t *testing.T) {
	for _, codes := range [][]uint16{{1, 3, 2}, {2, 1, 3}, {1, 1, 3}, {0, 2, 2}} {
		ix, err := Build([]int{4}, []int32{1, 2, 3})
		if err != nil {
			t.Fatal(err)
		}
		copy(ix.levels[0].codes.short, codes)
		if _, err := Open(store(t, ix), 3, nil); !errors.Is(err, ErrDamaged) {
			t.Errorf("codes %v: %v", codes, err)
		}
	}
}

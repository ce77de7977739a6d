package beam

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// realCatalog reads the codes of a public catalog, <a_12> <b_3> <c_250>, learned from its items' texts.
func realCatalog(t *testing.T) catalog {
	t.Helper()
	name := filepath.Join("..", "..", "shared", "data", "industrial", "Industrial_and_Scientific.index.json")
	data, err := os.ReadFile(name)
	if err != nil {
		t.Skipf("no real codes: %v", err)
	}
	var byID map[string][]string
	if err := json.Unmarshal(data, &byID); err != nil {
		t.Fatal(err)
	}
	c := catalog{sizes: []int{256, 256, 256}}
	for id := range len(byID) {
		for _, text := range byID[strconv.Itoa(id)] {
			code, err := strconv.Atoi(strings.TrimSuffix(text[len("<a_"):], ">"))
			if err != nil {
				t.Fatal(err)
			}
			c.codes = append(c.codes, int32(code))
		}
	}
	return c
}

// Real codes collide. Without the constraint nearly all paths that a beam search can reach are no items.
func TestRealCodes(t *testing.T) {
	c := realCatalog(t)
	ix := c.build(t)
	checkTree(t, c, ix)
	var valid, settled float64
	for l := range c.sizes[1:] {
		n := 0.0
		for node := range ix.Nodes(l) {
			if ix.settled(l, uint32(node)) {
				n++
			}
		}
		valid, settled = float64(ix.Nodes(l+1))/float64(ix.Nodes(l)*c.sizes[l+1]), n/float64(ix.Nodes(l))
		t.Logf("level %d: %d prefixes, %.3f of them settled, %.5f of their continuations valid", l, ix.Nodes(l), settled,
			valid)
	}
	t.Logf("%d items on %d paths, %.1f bytes an item", ix.Len(), ix.Nodes(2), float64(ix.Bytes())/float64(ix.Len()))
	var s Search
	all := map[int]bool{}
	for i := range c.items() {
		all[i] = true
	}
	for seed := range uint64(4) {
		opts := Options{Width: 64 << seed, N: 50}
		o := &oracle{c, all, hashed(seed), opts}
		if err := s.Reset(ix, nil, opts); err != nil {
			t.Fatal(err)
		}
		drive(t, &s, ix, o.logits)
		got, _ := s.Results(nil, opts.N)
		if err := sameResults(got, o.results()); err != nil {
			t.Fatalf("width %d: %v", opts.Width, err)
		}
	}
}

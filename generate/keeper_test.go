package generate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/compute"
	"grebe/prompt"
)

// words is a tokenizer with a token for every text that ends in a number below a hundred: the number.
type words struct{}

func (words) AppendEncode(dst []int32, _ string) []int32 { return dst }

func (words) TokenID(text string) (int32, bool) {
	n, err := strconv.Atoi(strings.TrimLeft(text, "ab"))
	return int32(n), err == nil && n < 100
}

// packer packs nothing. It fails after left calls.
type packer struct{ left int }

func (p *packer) Head([]int32) (compute.Linear, error) {
	if p.left--; p.left < 0 {
		return nil, errors.New("no memory")
	}
	return nil, nil
}

func codesOf(codes ...int32) []int32 { return codes }

// contents is what requests can see of a snapshot, whatever the numbers of its items: ids in the order of the index,
// sizes of levels, and the items of each attribute value.
type contents struct {
	digest string
	ids    []string
	sizes  []int
	kinds  map[string][]string
}

func contentsOf(s *Snapshot) contents {
	c := contents{digest: s.Digest(), kinds: map[string][]string{}}
	if s.index == nil {
		return c
	}
	for l := range s.index.Depth() {
		c.sizes = append(c.sizes, s.index.Size(l))
	}
	for leaf := range uint32(s.index.Nodes(s.index.Depth() - 1)) {
		for _, item := range s.index.Items(leaf) {
			c.ids = append(c.ids, s.table.ID(item))
		}
	}
	for kind := range 4 {
		kind := fmt.Sprint(kind)
		set := s.filter(anyOf(map[string][]string{"kind": {kind, "no such"}}))
		for _, id := range c.ids {
			if n, ok := s.number(id); ok && set.Has(n) {
				c.kinds[kind] = append(c.kinds[kind], id)
			}
		}
	}
	return c
}

// A Keeper that follows random changes has the same snapshots as if they were built from the catalog: with codes as
// ranges and by text, in memory and on disk, and after a restart.
func TestKeeperFollowsTheCatalog(t *testing.T) {
	for name, codes := range map[string]prompt.Codes{
		"ranges":  {FirstToken: []int32{0, 10}, Size: []int32{10, 10}},
		"pattern": {Pattern: []string{"a%d", "b%d"}},
	} {
		for _, dir := range []string{"", t.TempDir()} {
			t.Run(name+"/"+filepath.Base(dir), func(t *testing.T) { followRandomly(t, codes, dir) })
		}
	}
}

func followRandomly(t *testing.T, codes prompt.Codes, dir string) {
	c := catalog.New(catalog.Options{})
	b := must(prompt.New(prompt.Config{Codes: codes}, words{}, 100))
	g := &Generator{Prompt: b}
	open := func() *Keeper {
		return must(NewKeeper(c, KeeperOptions{Dir: dir, Keep: 5, compact: 60}, Target{"m", g, &packer{1 << 30}}))
	}
	k := open()
	if g.Snapshot().Len() != 0 || g.Snapshot().Digest() != "" {
		t.Errorf("an empty catalog has %d items", g.Snapshot().Len())
	}
	r := rand.New(rand.NewPCG(6, 6))
	for step := range 3000 {
		change(c, r, step)
		if step%23 != 0 {
			continue
		}
		if k.Renew(); step%(5*23) == 0 && dir != "" {
			if err := k.Close(); err != nil {
				t.Fatal(err)
			}
			k = open()
		}
		s := g.Snapshot()
		want := must(NewSnapshot("", c.Items(), b, &packer{1 << 30}, nil))
		if got, want := contentsOf(s), contentsOf(want); !reflect.DeepEqual(got, want) ||
			s.Len()+s.Skipped != len(c.Items()) && s.at.Number == c.Stats().Version {
			t.Fatalf("step %d: %+v, %d skipped; want %+v of %d", step, got, s.Skipped, want, len(c.Items()))
		}
		if n := len(k.Versions()); n > 5 {
			t.Fatalf("%d versions are kept", n)
		}
	}
	if k.Damaged() != 0 {
		t.Errorf("%d files are damaged", k.Damaged())
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
}

// change makes a random change.
func change(c *catalog.Catalog, r *rand.Rand, step int) {
	id := fmt.Sprint(r.IntN(200))
	switch r.IntN(5) {
	case 0, 1:
		must(c.DeleteItem(id))
	case 2:
		must(c.PutItem(&grebev1.Item{Id: id}))
	case 3:
		must(c.PutUser(&grebev1.User{Id: id, History: []string{fmt.Sprint(step)}}))
	default:
		must(c.PutItem(&grebev1.Item{Id: id, Codes: codesOf(r.Int32N(11), r.Int32N(1+r.Int32N(10))),
			Attributes: map[string]*grebev1.Values{"kind": {Values: []string{fmt.Sprint(r.IntN(4)), fmt.Sprint(r.IntN(4))}}}}))
	}
}

// If a snapshot cannot be made, the one before stays in use.
func TestKeeperKeepsTheOldSnapshot(t *testing.T) {
	c := catalog.New(catalog.Options{})
	must(c.PutItem(&grebev1.Item{Id: "one", Codes: codesOf(3, 4)}))
	b := must(prompt.New(prompt.Config{Codes: prompt.Codes{Pattern: []string{"a%d", "b%d"}}}, words{}, 100))
	g := &Generator{Prompt: b}
	told := make(chan string, 1)
	k := must(NewKeeper(c, KeeperOptions{Logger: slog.New(slog.NewTextHandler(lines(told), nil))},
		Target{"m", g, &packer{2}}))
	first := g.Snapshot()
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { k.Run(ctx) })
	must(c.PutItem(&grebev1.Item{Id: "two", Codes: codesOf(50, 4)})) // a larger level, which must be packed
	if line := <-told; !strings.Contains(line, "no memory") || !strings.Contains(line, "model=m") {
		t.Errorf("the log says %q", line)
	}
	stop()
	wg.Wait()
	if g.Snapshot() != first || first.Len() != 1 {
		t.Errorf("a snapshot of %d items is in use, want the first", g.Snapshot().Len())
	}
}

// lines sends on what is written to it.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

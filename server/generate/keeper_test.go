package generate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/compute"
	"grebe/prompt"
)

// words has a token for every text that ends in a number below a hundred: the number.
type words struct{}

func (words) AppendEncode(dst []int32, _ string) []int32 { return dst }

func (words) TokenID(text string) (int32, bool) {
	n, err := strconv.Atoi(strings.TrimLeft(text, "ab"))
	return int32(n), err == nil && n < 100
}

// packer packs nothing, as often as it may.
type packer struct{ left int }

func (p *packer) Head([]int32) (compute.Linear, error) {
	if p.left--; p.left < 0 {
		return nil, errors.New("no memory")
	}
	return nil, nil
}

func codesOf(codes ...int32) []int32 { return codes }

// A keeper that follows random changes has the items that the catalog has, in the same order.
func TestKeeperFollowsTheCatalog(t *testing.T) {
	c := catalog.New(catalog.Options{})
	b := must(prompt.New(prompt.Config{Codes: prompt.Codes{FirstToken: []int32{0, 10}, Size: []int32{10, 10}}}, nil, 100))
	g := &Generator{Prompt: b}
	k := must(NewKeeper(c, slog.New(slog.DiscardHandler), Target{"m", g, &packer{2}}))
	if g.Snapshot().Len() != 0 || g.Snapshot().Digest() != "" {
		t.Errorf("an empty catalog has %d items", g.Snapshot().Len())
	}
	r := rand.New(rand.NewPCG(6, 6))
	for step := range 3000 {
		id := fmt.Sprint(r.IntN(200))
		switch r.IntN(5) {
		case 0, 1:
			must(c.DeleteItem(id))
		case 2:
			must(c.PutItem(&grebev1.Item{Id: id}))
		case 3:
			must(c.PutUser(&grebev1.User{Id: id, History: []string{fmt.Sprint(step)}}))
		default:
			must(c.PutItem(&grebev1.Item{Id: id, Codes: codesOf(r.Int32N(11), r.Int32N(10))}))
		}
		if step%97 != 0 {
			continue
		}
		if err := k.renew(&k.targets[0]); err != nil {
			t.Fatal(err)
		}
		var want []*prompt.Item
		skipped := 0
		for _, it := range c.Items() {
			if len(it.Codes) == 0 || it.Codes[0] == 10 {
				skipped++
				continue
			}
			want = append(want, it)
		}
		if s := g.Snapshot(); !slices.Equal(s.items, want) || s.Skipped != skipped {
			t.Fatalf("step %d: %d items, %d skipped; want %d, %d", step, s.Len(), s.Skipped, len(want), skipped)
		}
	}
	if len(k.items) > 2*len(k.at)+64 {
		t.Errorf("%d places for %d items: gaps are never closed", len(k.items), len(k.at))
	}
}

// A snapshot that cannot be made leaves the one before in use.
func TestKeeperKeepsTheOldSnapshot(t *testing.T) {
	c := catalog.New(catalog.Options{})
	must(c.PutItem(&grebev1.Item{Id: "one", Codes: codesOf(3, 4)}))
	b := must(prompt.New(prompt.Config{Codes: prompt.Codes{Pattern: []string{"a%d", "b%d"}}}, words{}, 100))
	g := &Generator{Prompt: b}
	told := make(chan string, 1)
	k := must(NewKeeper(c, slog.New(slog.NewTextHandler(lines(told), nil)), Target{"m", g, &packer{2}}))
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

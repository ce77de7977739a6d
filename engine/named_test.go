package engine

import (
	"math/rand/v2"
	"testing"

	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/plan"
)

// Two heads of one job are two projections, also where they are asked for at the same row.
func TestTwoHeadsAtOneRow(t *testing.T) {
	dev, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	e := newTiny(t, dev, "f32", Options{})
	sets := [][]int32{{7, 199, 0, 31}, {8, 9, 10, 11}}
	var heads []compute.Linear
	for _, tokens := range sets {
		h, err := e.model.(interface {
			Head([]int32) (compute.Linear, error)
		}).Head(tokens)
		if err != nil {
			t.Fatal(err)
		}
		heads = append(heads, h)
	}
	p := &plan.Plan{Segments: []plan.Segment{{Kind: plan.User, Tokens: ids(40)},
		{Kind: plan.Item, Tokens: []int32{3}, Start: 40, Sees: []int32{0}}}}
	var want []Want
	for s := range p.Segments {
		for k := range heads {
			want = append(want, Want{Segment: s, Head: heads[k]}, Want{Segment: s, IDs: sets[k]})
		}
	}
	r, err := e.Do(t.Context(), &Job{Plan: p, Want: want})
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(r.Logits); i += 2 {
		var e rowError
		if e.add(r.Logits[i], r.Logits[i+1]); e.relative > 1e-5 {
			t.Errorf("answer %d: %v by the head, %v one by one", i/2, r.Logits[i], r.Logits[i+1])
		}
	}
}

// Parts of a long history are found in the chunk that has them, and only where one chunk has all of them.
func TestLocateInAChain(t *testing.T) {
	dev, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	e := newTiny(t, dev, "f32", Options{})
	tokens := randomTokens(rand.New(rand.NewPCG(1, 1)), 150)
	r, err := e.Do(t.Context(), &Job{Plan: &plan.Plan{Segments: []plan.Segment{{Kind: plan.User, Tokens: tokens}}},
		Segments: keeping(true),
		Want:     []Want{{Segment: 0, IDs: ids(2)}}})
	if err != nil {
		t.Fatal(err)
	}
	entry := r.Kept[0]
	defer entry.Release()
	chunks := entry.AppendChunks(nil)
	if len(chunks) < 3 {
		t.Fatalf("%d chunks of 150 tokens, want a chain", len(chunks))
	}
	second := chunks[0].Tokens
	third := second + chunks[1].Tokens
	m := &blending{}
	for _, c := range []struct{ first, tokens, chunk, at int }{
		{0, 1, 0, 0}, {0, second, 0, 0}, {second - 1, 1, 0, second - 1},
		{second, 1, 1, 0}, {second + 6, 10, 1, 6}, {second, third - second, 1, 0},
		{third, 150 - third, 2, 0}, {149, 1, 2, 149 - third},
		{second - 1, 2, -1, 0}, {64 * 3, 1, -1, 0},
	} {
		got, at, err := m.locate(&Part{Entry: entry, First: c.first, Tokens: c.tokens})
		switch {
		case c.chunk < 0 && err == nil:
			t.Errorf("%d tokens from %d: found, and no chunk has them", c.tokens, c.first)
		case c.chunk >= 0 && (err != nil || got.Addr != chunks[c.chunk].Addr || at != c.at):
			t.Errorf("%d tokens from %d: token %d of %+v, %v; want token %d of chunk %d", c.tokens, c.first, at, got, err, c.at,
				c.chunk)
		}
	}
}

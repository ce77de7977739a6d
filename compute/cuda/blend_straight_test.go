package cuda

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"grebe/compute"
)

// TestStraightRuns: what place.cu does with the runs puts every cached token and every part where attention looks for
// it, and nothing else there. The kernel's index maths is repeated here.
func TestStraightRuns(t *testing.T) {
	const layers, kvHeads, from, room = 5, 3, 2, 1000
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 4))
		b, parts, want := straightBatch(r, room)
		p := &placing{straight: true, to: run{to: 7, toRoom: room, straight: 1}}
		p.layOut(b)
		runs := cachedRuns(b)
		for i := range parts {
			runs += 1 + parts[i].Tokens/longRun
		}
		all := make([]run, runs)
		p.list(b, parts, make([]int32, len(parts)), all, true)
		got := map[string]string{}
		rn := &runner{shape: compute.Shape{KVHeads: kvHeads}}
		placeOnHost(t, all[:p.count], p.short, p.blocks(rn, layers-from), from, layers-from, kvHeads, func(to, value string) {
			if got[to] != "" {
				t.Fatalf("seed %d: %s is written twice", seed, to)
			}
			got[to] = value
		})
		wanted := 0
		for slot, source := range want {
			for l := from; l < layers; l++ {
				for m := range 2 * kvHeads {
					// As in attend.Scratch: (((l·KVHeads + h)·2 + kv)·Slots + slot.
					to := fmt.Sprint(7, ((l*kvHeads+m%kvHeads)*2+m/kvHeads)*room+slot)
					value := source.at(l, m, kvHeads)
					if got[to] != value {
						t.Fatalf("seed %d: slot %d, layer %d, matrix %d has %q, want %q", seed, slot, l, m, got[to], value)
					}
					wanted++
				}
			}
		}
		if len(got) != wanted {
			t.Fatalf("seed %d: %d vectors are written, want %d", seed, len(got), wanted)
		}
		for row, held := range p.held {
			if _, ok := want[rowSlot(b, row)]; ok != held {
				t.Fatalf("seed %d: row %d is held %v, want %v", seed, row, held, ok)
			}
		}
	}
}

// vector is a token of a chunk that is a number, turned or not.
type vector1 struct {
	chunk, room, token int
	turned, part       int32
}

func (v vector1) at(layer, matrix, kvHeads int) string {
	turned, part := v.turned, v.part
	if matrix >= kvHeads || turned == 0 {
		turned, part = 0, 0
	}
	return fmt.Sprint(v.chunk, (layer*2*kvHeads+matrix)*v.room+v.token, turned, part)
}

func rowSlot(b *compute.Batch, row int) int {
	slot := 0
	for i := range b.Segments {
		g := &b.Segments[i]
		if row < g.First+g.Rows() {
			return slot + g.Cached + row - g.First
		}
		slot += g.Len
	}
	return -1
}

// straightBatch draws a batch and parts, and returns what each slot is to hold.
func straightBatch(r *rand.Rand, room int) (*compute.Batch, []compute.Part, map[int]vector1) {
	b, want, slot := &compute.Batch{}, map[int]vector1{}, 0
	var parts []compute.Part
	next := 100
	for i := range 1 + r.IntN(4) {
		g := compute.Segment{First: len(b.Tokens), Len: 1 + r.IntN(200)}
		if r.IntN(2) == 0 {
			g.Cached = r.IntN(g.Len + 1)
		}
		for at := 0; at < g.Len; {
			ch := compute.Chunk{Addr: uint64(next), Tokens: 1 + r.IntN(90)}
			next++
			for k := at; k < min(at+ch.Tokens, g.Cached); k++ {
				want[slot+k] = vector1{chunk: int(ch.Addr), room: ch.Tokens, token: k - at}
			}
			at += ch.Tokens
			g.Chunks = append(g.Chunks, ch)
		}
		for at := g.Cached; at < g.Len; {
			n := min(1+r.IntN(100), g.Len-at)
			if r.IntN(3) == 0 {
				n = 1
			}
			if r.IntN(3) > 0 {
				p := compute.Part{Segment: i, At: at, Tokens: n, From: compute.Chunk{Addr: uint64(next), Tokens: n + r.IntN(9)},
					Turn: r.IntN(3) - 1}
				p.First = r.IntN(p.From.Tokens - n + 1)
				next++
				for k := range n {
					want[slot+at+k] = vector1{int(p.From.Addr), p.From.Tokens, p.First + k, turned(p.Turn), int32(len(parts))}
				}
				parts = append(parts, p)
			}
			at += n
		}
		b.Segments = append(b.Segments, g)
		for range g.Rows() {
			b.Tokens = append(b.Tokens, 0)
		}
		slot += g.Len
	}
	if slot > room {
		panic("room")
	}
	return b, parts, want
}

// placeOnHost is place.cu with vectors instead of values.
func placeOnHost(t *testing.T, runs []run, brief, blocks, layer, layers, kvHeads int, write func(to, value string)) {
	warps := 8 * blocks
	move := func(w *run, l, matrix, heads int) {
		toHead := int(w.toRoom)
		at := matrix
		if w.straight != 0 {
			at = matrix%kvHeads*2 + matrix/kvHeads
			toHead *= 2
		}
		to, from := (l*2*kvHeads+at)*int(w.toRoom)+int(w.toToken), (l*2*kvHeads+matrix)*int(w.fromRoom)+int(w.fromToken)
		turned, part := int32(0), int32(0)
		if matrix < kvHeads && w.turned != 0 {
			turned, part = 1, w.part
		}
		for h := range heads {
			for k := range int(w.tokens) {
				write(fmt.Sprint(w.to, to+h*toHead+k), fmt.Sprint(w.from, from+h*int(w.fromRoom)+k, turned, part))
			}
		}
	}
	for warp := range warps {
		units := 0
		for i := warp; i < brief*layers; i += warps {
			move(&runs[i%brief], layer+i/brief, 0, kvHeads)
			move(&runs[i%brief], layer+i/brief, kvHeads, kvHeads)
			units++
		}
		for i := warps - 1 - warp; i < (len(runs)-brief)*layers*2*kvHeads; i += warps {
			matrix, rest, n := i%(2*kvHeads), i/(2*kvHeads), len(runs)-brief
			move(&runs[brief+rest%n], layer+rest/n, matrix, 1)
			units++
		}
		if units > 3 {
			t.Fatalf("warp %d of %d has %d units", warp, warps, units)
		}
	}
}

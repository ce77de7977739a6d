package engine

import (
	"math/rand/v2"
	"slices"
	"testing"

	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/plan"
)

// Rounds of beams, moved and forked between rounds, yield the bits of every path computed by itself.
func TestBeams(t *testing.T) {
	for name, dev := range cpuDevices(t) {
		t.Run(name, func(t *testing.T) {
			e := newTiny(t, dev, "bf16", Options{})
			r := rand.New(rand.NewPCG(8, 9))
			user, question := randomTokens(r, 90), randomTokens(r, 3)
			prompt := []plan.Segment{
				{Kind: plan.User, Tokens: user},
				{Kind: plan.Instruction, Tokens: question, Start: 90, Sees: []int32{0}},
			}
			first, err := e.Do(t.Context(), &Job{Plan: &plan.Plan{Segments: prompt}, Segments: keeping(true, true)})
			if err != nil {
				t.Fatal(err)
			}
			const width, depth = 20, 3
			beams, err := NewBeams(e.shape, width, depth)
			if err != nil {
				t.Fatal(err)
			}
			defer beams.Close()
			beams.First = len(prompt)
			paths := make([][]int32, width)
			for round := range depth {
				if round > 0 { // the survivors: children of some beams, laid out by parent
					parents := make([]int, width)
					for i := range parents {
						parents[i] = r.IntN(width)
					}
					slices.Sort(parents)
					moveBeams(beams, parents)
					old := slices.Clone(paths)
					for i, p := range parents {
						paths[i] = old[p]
					}
				}
				for i := range paths {
					paths[i] = append(slices.Clone(paths[i]), int32(r.IntN(200)))
				}
				job := &Job{Beams: beams, Plan: withBeams(prompt, paths), Segments: make([]Segment, len(prompt)+width)}
				copy(job.Segments, From(first.Kept...))
				for i := range paths {
					job.Want = append(job.Want, Want{Segment: len(prompt) + i, IDs: ids(20)})
				}
				got, err := e.Do(t.Context(), job)
				if err != nil {
					t.Fatal(err)
				}
				if got.Computed != width {
					t.Errorf("round %d computed %d tokens, want %d", round, got.Computed, width)
				}
				for i, path := range paths {
					alone, err := e.Do(t.Context(), &Job{Plan: withBeams(prompt, [][]int32{path}),
						Want: []Want{{Segment: len(prompt), IDs: ids(20)}}})
					if err != nil {
						t.Fatal(err)
					}
					if !slices.Equal(got.Logits[i], alone.Logits[0]) {
						t.Fatalf("round %d, beam %d with path %v: %v, by itself %v", round, i, path, got.Logits[i][:4],
							alone.Logits[0][:4])
					}
				}
				beams.Advance()
			}
			for _, k := range first.Kept {
				k.Release()
			}
		})
	}
}

// moveBeams moves rows to their children's places, parents ascending: up in downward order, then down
// in upward order.
func moveBeams(b *Beams, parents []int) {
	for i := len(parents) - 1; i >= 0; i-- {
		if parents[i] < i {
			b.Move(i, parents[i])
		}
	}
	for i, p := range parents {
		if p > i {
			b.Move(i, p)
		}
	}
}

func withBeams(prompt []plan.Segment, paths [][]int32) *plan.Plan {
	p := &plan.Plan{Segments: slices.Clone(prompt)}
	for _, path := range paths {
		p.Segments = append(p.Segments, plan.Segment{Kind: plan.Beam, Tokens: path, Start: 93, Sees: []int32{0, 1}})
	}
	return p
}

// Logits of a packed head are those of its tokens one by one, to the rounding of a product.
func TestHead(t *testing.T) {
	dev, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	for _, dtype := range []string{"f32", "bf16"} {
		e := newTiny(t, dev, dtype, Options{})
		tokens := []int32{7, 199, 0, 31}
		head, err := e.model.(interface {
			Head([]int32) (compute.Linear, error)
		}).Head(tokens)
		if err != nil {
			t.Fatal(err)
		}
		p := &plan.Plan{Segments: []plan.Segment{{Kind: plan.User, Tokens: ids(40)},
			{Kind: plan.Item, Tokens: []int32{3}, Start: 40, Sees: []int32{0}}}}
		r, err := e.Do(t.Context(), &Job{Plan: p, Want: []Want{
			{Segment: 0, Head: head}, {Segment: 0, IDs: tokens}, {Segment: 1, Head: head}, {Segment: 1, IDs: tokens},
		}})
		if err != nil {
			t.Fatal(err)
		}
		limit := map[string]float64{"f32": 1e-5, "bf16": 2e-2}[dtype]
		for i := 0; i < 4; i += 2 {
			var e rowError
			if e.add(r.Logits[i], r.Logits[i+1]); e.relative > limit {
				t.Errorf("%s: %v by the head, %v one by one", dtype, r.Logits[i], r.Logits[i+1])
			}
		}
	}
}

// The memory of a search that ended is the next one's, if that is not much smaller; what is kept has a
// bound, and all goes back to the device at the end.
func TestBeamStore(t *testing.T) {
	s := beamStore{memory: compute.NewHostMemory()}
	take := func(n int) compute.Block {
		t.Helper()
		b, err := s.take(n)
		if err != nil {
			t.Fatal(err)
		}
		if b.Size < n {
			t.Fatalf("%d bytes, want %d", b.Size, n)
		}
		return b
	}
	a, b := take(1000), take(5000)
	s.give(a)
	s.give(b)
	if got := take(900); &got.Bytes[0] != &a.Bytes[0] {
		t.Error("a new block, though one that fits was free")
	}
	if got := take(900); got.Size == b.Size {
		t.Error("900 bytes hold a block of 5000")
	}
	big := take(keptBeams - 1000)
	s.give(big)
	if s.bytes > keptBeams || len(s.free) != 1 {
		t.Errorf("%d blocks of %d bytes are kept", len(s.free), s.bytes)
	}
	s.close()
	if s.give(a); len(s.free) != 0 {
		t.Error("a closed store keeps blocks")
	}
}

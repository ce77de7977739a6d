package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"grebe/kv"
	"grebe/plan"
)

// With KV in FP8 a chunk's scales are its first token's, however its tokens came to be there: a history
// that grows yields the bits of one computed at once.
func TestGrowingUserFP8(t *testing.T) {
	for name, dev := range cpuDevices(t) {
		t.Run(name, func(t *testing.T) {
			e := newTiny(t, dev, "bf16+fp8", Options{})
			tokens := randomTokens(rand.New(rand.NewPCG(5, 7)), 140)
			var have *kv.Entry
			for n := 1; n <= len(tokens); n += 1 + n%7 {
				p := &plan.Plan{Segments: []plan.Segment{{Kind: plan.User, Tokens: tokens[:n]}}}
				job := &Job{Plan: p, Want: []Want{{Segment: 0, IDs: ids(50)}}, Hidden: []int{0}, Segments: keeping(true)}
				want, err := e.Do(t.Context(), job)
				if err != nil {
					t.Fatal(err)
				}
				job.Segments[0].Entry = have
				got, err := e.Do(t.Context(), job)
				if err != nil {
					t.Fatal(err)
				}
				compare(t, fmt.Sprintf("%d tokens", n), got, want)
				want.Kept[0].Release()
				if have != nil {
					have.Release()
				}
				have = got.Kept[0]
			}
			have.Release()
		})
	}
}

// Keeping KV in FP8, having no room to, or neither, changes no bit: scratch is scaled as what is kept.
func TestKeepingChangesNothingFP8(t *testing.T) {
	for name, dev := range cpuDevices(t) {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(3, 7))
			for _, dtype := range []string{"bf16+fp8", "f32+fp8"} {
				e := newTiny(t, dev, dtype, Options{})
				for _, n := range []int{1, 63, 64, 65, 128, 200} {
					user, item := randomTokens(r, n), randomTokens(r, 70)
					p := &plan.Plan{Segments: []plan.Segment{{Kind: plan.User, Tokens: user},
						{Kind: plan.Item, Tokens: item, Start: n, Sees: []int32{0}},
						{Kind: plan.Instruction, Tokens: []int32{4, 5}, Start: n + 70, Sees: []int32{0, 1}}}}
					job := &Job{Plan: p, Want: []Want{{Segment: 2, IDs: ids(50)}}, Hidden: []int{2}}
					alone, err := e.Do(t.Context(), job)
					if err != nil {
						t.Fatal(err)
					}
					job.Segments = keeping(true, true, false)
					kept, err := e.Do(t.Context(), job)
					if err != nil {
						t.Fatal(err)
					}
					compare(t, fmt.Sprintf("%s, %d tokens, kept", dtype, n), kept, alone)
					var full []*kv.Entry
					for {
						entry, err := e.store.Reserve(kv.Exact, 64, nil)
						if err != nil {
							break
						}
						full = append(full, entry)
					}
					for _, k := range []*kv.Entry{kept.Kept[0], kept.Kept[1]} {
						k.Release()
					}
					none, err := e.Do(t.Context(), job)
					if err != nil {
						t.Fatal(err)
					}
					compare(t, fmt.Sprintf("%s, %d tokens, no room", dtype, n), none, alone)
					for _, k := range append(full, none.Kept...) {
						if k != nil {
							k.Release()
						}
					}
				}
			}
		})
	}
}

// Beams take their scales with them when they move.
func TestBeamsFP8(t *testing.T) {
	for name, dev := range cpuDevices(t) {
		t.Run(name, func(t *testing.T) {
			e := newTiny(t, dev, "bf16+fp8", Options{})
			r := rand.New(rand.NewPCG(8, 10))
			prompt := []plan.Segment{{Kind: plan.User, Tokens: randomTokens(r, 93)},
				{Kind: plan.Instruction, Start: 93, Sees: []int32{0}}}
			first, err := e.Do(t.Context(), &Job{Plan: &plan.Plan{Segments: prompt}, Segments: keeping(true, false)})
			if err != nil {
				t.Fatal(err)
			}
			defer first.Kept[0].Release()
			beams, err := NewBeams(e.shape, 6, 2)
			if err != nil {
				t.Fatal(err)
			}
			defer beams.Close()
			beams.First = len(prompt)
			parents, paths := []int{0, 0, 3, 3, 5, 5}, make([][]int32, 6)
			for round := range 2 {
				if round > 0 {
					moveBeams(beams, parents)
					old := slices.Clone(paths)
					for i, p := range parents {
						paths[i] = old[p]
					}
				}
				for i := range paths {
					paths[i] = append(slices.Clone(paths[i]), int32(r.IntN(200)))
				}
				job := &Job{Beams: beams, Plan: withBeams(prompt, paths), Segments: make([]Segment, len(prompt)+len(paths))}
				job.Segments[0].Entry = first.Kept[0]
				for i := range paths {
					job.Want = append(job.Want, Want{Segment: len(prompt) + i, IDs: ids(20)})
				}
				got, err := e.Do(t.Context(), job)
				if err != nil {
					t.Fatal(err)
				}
				for i, path := range paths {
					alone, err := e.Do(t.Context(), &Job{Plan: withBeams(prompt, [][]int32{path}),
						Want:     []Want{{Segment: len(prompt), IDs: ids(20)}},
						Segments: From(first.Kept[0], nil, nil)})
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
		})
	}
}

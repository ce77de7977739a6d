package pool

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
)

// A million random operations of both sides, the boundary moving all the time, against plain maps of owned pages. On
// the invariants build the pool goes over its books after each.
func TestBothSidesKeepTheBooks(t *testing.T) {
	const page, total = 256, 96
	kv, err := New(page*total, page)
	if err != nil {
		t.Fatal(err)
	}
	sides := [2]*Pool{KV: kv, Embeddings: kv.For(Embeddings)}
	r := rand.New(rand.NewPCG(7, 7))
	owner := make([]int, total)
	var runs [2][]Run
	var used [2]int
	boundary := 0
	own := func(s Side, run Run, op int) {
		for i := run.first; i < run.first+run.pages; i++ {
			if owner[i] != 0 {
				t.Fatalf("operation %d: page %d of operation %d given out again", op, i, owner[i])
			}
			owner[i] = op + 1
		}
		used[s] += run.pages
		runs[s] = append(runs[s], run)
	}
	disown := func(s Side, n int) []Run {
		var out []Run
		for range min(n, len(runs[s])) {
			i := r.IntN(len(runs[s]))
			run := runs[s][i]
			runs[s][i] = runs[s][len(runs[s])-1]
			runs[s] = runs[s][:len(runs[s])-1]
			clear(owner[run.first : run.first+run.pages])
			used[s] -= run.pages
			out = append(out, run)
		}
		return out
	}
	limit := func(s Side) int {
		if s == Embeddings {
			return boundary
		}
		return total - boundary
	}
	for op := range 1_000_000 {
		s := Side(r.IntN(2))
		p := sides[s]
		switch r.IntN(6) {
		case 0:
			boundary = p.SetBoundary(r.Float64())
		case 1, 2:
			n := 1 + r.IntN(4*page)
			run, err := p.Alloc(n)
			need := (n + page - 1) / page
			if err == nil {
				own(s, run, op)
				if used[s] > limit(s) {
					t.Fatalf("operation %d: side %d owns %d pages of %d", op, s, used[s], limit(s))
				}
			} else if !errors.Is(err, ErrFull) || used[s]+need <= limit(s) && longestGap(owner) >= need {
				t.Fatalf("operation %d: %d pages refused with %d of %d used and a gap of %d: %v",
					op, need, used[s], limit(s), longestGap(owner), err)
			}
		case 3:
			got := p.AllocRuns(nil, 1+r.IntN(2*page), r.IntN(20))
			for _, run := range got {
				own(s, run, op)
			}
			if len(got) > 0 && used[s] > limit(s) {
				t.Fatalf("operation %d: side %d owns %d pages of %d", op, s, used[s], limit(s))
			}
		case 4:
			for _, run := range disown(s, 1) {
				p.Free(run)
			}
		case 5:
			p.FreeRuns(disown(s, r.IntN(12)))
		}
		if st := p.Stats(); st.Used != int64(used[s]*page) || st.Total != int64(limit(s)*page) {
			t.Fatalf("operation %d: books say %d of %d used, want %d of %d pages", op, st.Used/page, st.Total/page, used[s],
				limit(s))
		}
		if over := p.Over(); over != int64(max(used[s]-limit(s), 0)*page) {
			t.Fatalf("operation %d: over by %d bytes with %d of %d pages", op, over, used[s], limit(s))
		}
	}
	for s := range sides {
		sides[s].FreeRuns(disown(Side(s), total))
	}
	if err := kv.Close(); err != nil {
		t.Error(err)
	}
}

func TestASideFreesItsOwnOnly(t *testing.T) {
	p, err := New(4096, 256)
	if err != nil {
		t.Fatal(err)
	}
	run := mustAlloc(t, p, 100)
	defer func() {
		if recover() == nil {
			t.Error("embeddings freed a run of KV's unnoticed")
		}
	}()
	p.For(Embeddings).Free(run)
}

// Moving the boundary while both sides work loses nothing.
func TestBoundaryUnderLoad(t *testing.T) {
	p, err := New(1<<20, 256)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			mine := p.For(Side(g % 2))
			r := rand.New(rand.NewPCG(uint64(g), 1))
			var runs []Run
			for range 20000 {
				if r.IntN(2) == 0 {
					runs = mine.AllocRuns(runs, 1+r.IntN(1000), 1+r.IntN(8))
				} else if n := len(runs); n > 0 {
					k := r.IntN(n)
					mine.FreeRuns(runs[k:])
					runs = runs[:k]
				}
				if r.IntN(50) == 0 {
					mine.SetBoundary(r.Float64())
				}
			}
			mine.FreeRuns(runs)
		})
	}
	wg.Wait()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// What moving 4 % of a pool of 100 GiB in pages of 2 MiB costs: 2,048 pages change hands.
func BenchmarkMoveFourPercent(b *testing.B) {
	p, err := Over(nowhere{}, 100<<30, 2<<20)
	if err != nil {
		b.Fatal(err)
	}
	e := p.For(Embeddings)
	runs := make([]Run, 0, 1<<16)
	p.SetBoundary(0.5)
	for b.Loop() {
		runs = e.AllocRuns(runs[:0], 2<<20, 2048)
		e.FreeRuns(runs)
	}
}

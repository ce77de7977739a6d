package pool

import (
	"errors"
	"math/rand/v2"
	"testing"

	"grebe/compute"
)

// Random allocations and frees against a plain map of owned pages.
func TestRandomOperationsKeepTheBooks(t *testing.T) {
	const page, total = 256, 64
	p, err := New(page*total+100, page)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	owner := make([]int, total)
	var runs []Run
	used := 0
	for op := range 20000 {
		if r.IntN(2) == 0 || len(runs) == 0 {
			n := 1 + r.IntN(10*page)
			run, err := p.Alloc(n)
			if err != nil {
				if !errors.Is(err, ErrFull) {
					t.Fatal(err)
				}
				if longestGap(owner) >= (n+page-1)/page {
					t.Fatalf("operation %d: %d bytes refused with a gap of %d pages", op, n, longestGap(owner))
				}
				continue
			}
			if len(run.Bytes) < n {
				t.Fatalf("operation %d: %d bytes for %d", op, len(run.Bytes), n)
			}
			for i := run.first; i < run.first+run.pages; i++ {
				if owner[i] != 0 {
					t.Fatalf("operation %d: page %d given out twice", op, i)
				}
				owner[i] = op + 1
			}
			used += run.pages
			runs = append(runs, run)
		} else {
			i := r.IntN(len(runs))
			run := runs[i]
			runs[i] = runs[len(runs)-1]
			runs = runs[:len(runs)-1]
			clear(owner[run.first : run.first+run.pages])
			used -= run.pages
			p.Free(run)
		}
		if s := p.Stats(); s.Used != int64(used*page) || s.Total != page*total {
			t.Fatalf("operation %d: books say %d of %d used, want %d of %d", op, s.Used, s.Total, used*page, page*total)
		}
	}
	if err := p.Close(); len(runs) > 0 && err == nil {
		t.Error("Close accepted runs still in use")
	}
	for _, run := range runs {
		p.Free(run)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

func longestGap(owner []int) int {
	best, n := 0, 0
	for _, o := range owner {
		if n++; o != 0 {
			n = 0
		}
		best = max(best, n)
	}
	return best
}

func TestFreeingTwicePanics(t *testing.T) {
	p, err := New(4096, 256)
	if err != nil {
		t.Fatal(err)
	}
	run, err := p.Alloc(300)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Alloc(300); err != nil { // so that enough is in use for the books to allow it
		t.Fatal(err)
	}
	p.Free(run)
	p.Free(mustAlloc(t, p, 100)) // begins where run did
	defer func() {
		if recover() == nil {
			t.Error("the second Free went unnoticed")
		}
	}()
	p.Free(run)
}

func TestNewRefuses(t *testing.T) {
	for _, c := range []struct {
		size int64
		page int
	}{{1 << 20, 100}, {1 << 20, 384}, {1000, 4096}} {
		if _, err := New(c.size, c.page); err == nil {
			t.Errorf("New(%d, %d) gave no error", c.size, c.page)
		}
	}
}

func mustAlloc(t *testing.T, p *Pool, n int) Run {
	t.Helper()
	r, err := p.Alloc(n)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A pool over memory that cannot be had is an error, not a pool of none.
func TestOverReportsAFailedAllocation(t *testing.T) {
	if p, err := Over(full{}, 1<<20, 4096); err == nil || p != nil || !errors.Is(err, errNone) {
		t.Errorf("%v, %v", p, err)
	}
}

var errNone = errors.New("none left")

type full struct{ compute.Memory }

func (full) Alloc(int) (compute.Block, error) { return compute.Block{}, errNone }

package pool

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
)

// Random operations of five sides whose limits move and who come and go: each gets what its limit and the free pages
// allow, and no page is given out twice. On the invariants build the pool goes over its books after each operation.
func TestManySidesShareAPool(t *testing.T) {
	const page, total = 256, 128
	root, err := New(page*total, page)
	if err != nil {
		t.Fatal(err)
	}
	root.SetLimit(0)
	if _, err := root.Alloc(1); !errors.Is(err, ErrFull) {
		t.Fatalf("a side without a limit got a page: %v", err)
	}
	type side struct {
		pool  *Pool
		limit int
		used  int
		runs  []Run
	}
	sides := make([]*side, 5)
	for i := range sides {
		sides[i] = &side{pool: root.Join()}
	}
	owner := make([]int, total)
	r := rand.New(rand.NewPCG(5, 5))
	for op := range 200_000 {
		i := r.IntN(len(sides))
		s := sides[i]
		switch r.IntN(8) {
		case 0:
			s.limit = r.IntN(total + 1)
			s.pool.SetLimit(int64(s.limit*page + r.IntN(page)))
		case 1, 2, 3:
			need := 1 + r.IntN(4)
			run, err := s.pool.Alloc(need * page)
			if err != nil {
				if s.used+need <= s.limit && longestGap(owner) >= need {
					t.Fatalf("operation %d: %d pages refused with %d of %d", op, need, s.used, s.limit)
				}
				continue
			}
			if s.used += need; s.used > s.limit {
				t.Fatalf("operation %d: side %d owns %d of %d pages", op, i, s.used, s.limit)
			}
			for at := run.first; at < run.first+run.pages; at++ {
				if owner[at] != 0 {
					t.Fatalf("operation %d: page %d given out twice", op, at)
				}
				owner[at] = 1
			}
			s.runs = append(s.runs, run)
		case 4, 5, 6:
			if len(s.runs) == 0 {
				continue
			}
			j := r.IntN(len(s.runs))
			run := s.runs[j]
			s.runs = append(s.runs[:j], s.runs[j+1:]...)
			clear(owner[run.first : run.first+run.pages])
			s.used -= run.pages
			s.pool.Free(run)
		case 7:
			err := s.pool.Leave()
			if (err == nil) != (s.used == 0) {
				t.Fatalf("operation %d: left with %d pages: %v", op, s.used, err)
			}
			if err == nil {
				sides[i] = &side{pool: root.Join()}
			}
			s = sides[i]
		}
		if st := s.pool.Stats(); st.Used != int64(s.used*page) || st.Total != int64(s.limit*page) || st.Arena != page*total {
			t.Fatalf("operation %d: books %+v, want %d of %d pages", op, st, s.used, s.limit)
		}
		if over := s.pool.Over(); over != int64(max(s.used-s.limit, 0)*page) {
			t.Fatalf("operation %d: over by %d with %d of %d pages", op, over, s.used, s.limit)
		}
	}
	if n := len(root.sides); n != 2+len(sides) {
		t.Errorf("%d sides after %d were there at a time", n, len(sides))
	}
	if err := root.Close(); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("closed with pages in use: %v", err)
	}
	for _, s := range sides {
		s.pool.FreeRuns(s.runs)
		if err := s.pool.Leave(); err != nil {
			t.Error(err)
		}
	}
	if err := root.Close(); err != nil {
		t.Error(err)
	}
}

package codes

import (
	"cmp"
	"container/heap"
	"math"
	"slices"
)

// balance moves rows out of codes that have more than the bound allows. The result is the stable one: no row is nearer
// to another code that has room for it or keeps a row that is farther away.
func (t *level) balance() error {
	if t.options.Balance == 0 {
		t.mean(t.centroids)
		return nil
	}
	most := int(math.Ceil(t.options.Balance * float64(t.n) / float64(t.k)))
	for range balancePasses {
		moved, err := t.bound(most)
		if err != nil {
			return err
		}
		if err := t.step(t.n, t.err()); err != nil {
			return err
		}
		t.mean(t.centroids)
		if moved == 0 {
			return nil
		}
		// Codes that lost rows move away from them, and others come nearer: fewer rows are out of place then.
		if err := t.assign(t.centroids); err != nil {
			return err
		}
	}
	_, err := t.bound(most)
	t.mean(t.centroids)
	return err
}

// offered is a code that a row would take, and the code's score.
type offered struct {
	code  int32
	score float32
}

// nearer orders offers from the nearest on.
func nearer(a, b offered) int {
	return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.code, b.code))
}

// offers is the number of codes that a row is offered at a time.
const offers = 8

// bound gives each code at most most rows, and returns how many rows are not at their nearest one: deferred acceptance,
// in which rows ask codes from the nearest on and codes keep the nearest rows.
func (t *level) bound(most int) (moved int, err error) {
	list, start := t.members(t.k)
	var out []int32 // rows without a code
	keep := make([]*farthest, t.k)
	for c := range keep {
		own := list[start[c]:start[c+1]]
		f := &farthest{}
		for _, r := range own {
			f.rows = append(f.rows, placed{r, t.distance(int(r), t.score[r])})
		}
		slices.SortFunc(f.rows, func(a, b placed) int { return b.compare(a) }) // a heap too
		for len(f.rows) > most {
			out = append(out, heap.Pop(f).(placed).row)
		}
		keep[c] = f
	}
	if len(out) == 0 {
		return 0, nil
	}
	nearest := slices.Clone(t.nearest)
	for len(out) > 0 {
		slices.Sort(out)
		if out, err = t.place(out, keep, most); err != nil {
			return 0, err
		}
	}
	for r, c := range nearest {
		if t.nearest[r] != c {
			moved++
		}
	}
	return moved, nil
}

// place finds codes for rows that theirs refused, and returns those that need further offers.
func (t *level) place(out []int32, keep []*farthest, most int) (again []int32, err error) {
	block := blockRows(t.k)
	rows := make([]float32, 0, block*t.dims)
	for from := 0; from < len(out); from += block {
		asking := out[from:min(len(out), from+block)]
		rows = rows[:0]
		for _, r := range asking {
			rows = append(rows, t.row(int(r))...)
		}
		scores := t.scores[:len(asking)*t.k]
		if err := t.m.Scores(scores, rows); err != nil {
			return nil, err
		}
		lists := make([][]offered, len(asking))
		t.m.Each(len(asking), func(i int) {
			r := asking[i]
			lists[i] = following(scores[i*t.k:][:t.k], offered{t.nearest[r], t.score[r]})
		})
		for i, r := range asking {
			if refused, ok := t.ask(r, lists[i], keep, most); ok {
				again = append(again, refused)
			}
		}
	}
	return again, nil
}

// following returns the next offers after the last one.
func following(scores []float32, last offered) []offered {
	var out []offered
	for c, s := range scores {
		o := offered{int32(c), s}
		if nearer(last, o) >= 0 || len(out) == offers && nearer(out[offers-1], o) < 0 {
			continue
		}
		at, _ := slices.BinarySearchFunc(out, o, nearer)
		if len(out) == offers {
			out = out[:offers-1]
		}
		out = slices.Insert(out, at, o)
	}
	return out
}

// ask tries offers in turn, and returns the row that has none left: this one, or the one that it replaced.
func (t *level) ask(r int32, list []offered, keep []*farthest, most int) (refused int32, ok bool) {
	for _, o := range list {
		t.nearest[r], t.score[r] = o.code, o.score
		f, p := keep[o.code], placed{r, t.distance(int(r), o.score)}
		if len(f.rows) < most {
			heap.Push(f, p)
			return 0, false
		}
		if worst := f.rows[0]; p.compare(worst) < 0 {
			f.rows[0] = p
			heap.Fix(f, 0)
			return worst.row, true
		}
	}
	return r, true
}

// placed is a row of a code, with its distance.
type placed struct {
	row      int32
	distance float32
}

func (p placed) compare(q placed) int {
	return cmp.Or(cmp.Compare(p.distance, q.distance), cmp.Compare(p.row, q.row))
}

// farthest is a heap with the farthest row of a code on top.
type farthest struct{ rows []placed }

func (f *farthest) Len() int           { return len(f.rows) }
func (f *farthest) Less(i, j int) bool { return f.rows[i].compare(f.rows[j]) > 0 }
func (f *farthest) Swap(i, j int)      { f.rows[i], f.rows[j] = f.rows[j], f.rows[i] }
func (f *farthest) Push(x any)         { f.rows = append(f.rows, x.(placed)) }
func (f *farthest) Pop() any {
	last := f.rows[len(f.rows)-1]
	f.rows = f.rows[:len(f.rows)-1]
	return last
}

package beam

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"
)

// wideRows are 512 beams of 8,192 logits: peaked ones have a few likely codes and a long tail. All codes
// are valid, or half of them, or half of the logits are masked.
func wideRows(kind, valid string) []selectorRow {
	r := rng(9)
	rows := make([]selectorRow, 512)
	first := uint32(0)
	for k := range rows {
		x := make([]float32, 8192)
		for i := range x {
			x[i] = float32(r.NormFloat64())
			if kind == "peaked" {
				x[i] *= 2
			}
		}
		if kind == "peaked" {
			for i := range 40 {
				x[r.IntN(len(x))] = 14 - 0.25*float32(i) + float32(r.NormFloat64())
			}
		}
		var codes Codes
		for code := range x {
			switch out := valid != "all" && r.IntN(2) == 0; {
			case out && valid == "half":
				continue
			case out:
				x[code] = float32(negInf)
			}
			codes.short = append(codes.short, uint16(code))
		}
		rows[k] = selectorRow{logits: x, codes: codes, n: len(codes.short), first: first, row: int32(k)}
		if rows[k].score = -2 - r.ExpFloat64(); kind == "peaked" {
			rows[k].score -= 4 * r.ExpFloat64()
		}
		first += uint32(len(codes.short))
	}
	return rows
}

// BenchmarkSelect times 512 × 8,192 logits → 512 beams, from logits. The ways take turns, and medians of
// their CPU time are compared. "plain" is a heap over all as one would write it; the other rivals are
// given the search's own fast normalisers, whose time ("norms") is part of all: heap/grebe without
// it is select/grebe.
func BenchmarkSelect(b *testing.B) {
	for _, kind := range []string{"random", "peaked"} {
		for _, valid := range []string{"all", "half", "masked"} {
			rows := wideRows(kind, valid)
			for _, topK := range []int{512, 64} {
				b.Run(fmt.Sprintf("%s/%s/topk=%d", kind, valid, topK), func(b *testing.B) { benchWays(b, rows, topK) })
			}
		}
	}
}

func benchWays(b *testing.B, rows []selectorRow, topK int) {
	var s selector
	v := &rivals{width: 512, topK: topK}
	normed := func(choose func()) func() {
		return func() {
			s.reset(0, nil)
			for _, r := range rows {
				if err := s.add(r); err != nil {
					b.Fatal(err)
				}
			}
			choose()
		}
	}
	ways := []struct {
		name string
		run  func()
	}{
		{"grebe", normed(func() { s.choose(512, topK) })},
		{"norms", normed(func() {})},
		{"heap", normed(func() { v.heap(s.rows) })},
		{"plain", func() { v.plain(rows) }},
		{"merge", normed(func() { v.merge(s.rows) })},
		{"sort", normed(func() { v.sort(s.rows) })},
	}
	times := make([][]float64, len(ways))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for n := 0; b.Loop(); n++ {
		for i, w := range ways {
			if w.name == "sort" && n%4 != 0 {
				continue
			}
			begin := threadTime()
			w.run()
			times[i] = append(times[i], (threadTime()-begin).Seconds()*1e3)
		}
	}
	b.ReportMetric(0, "ns/op")
	ms := map[string]float64{}
	for i, w := range ways {
		slices.Sort(times[i])
		ms[w.name] = times[i][len(times[i])/2]
		b.ReportMetric(ms[w.name], w.name+"-ms")
		b.ReportMetric(ms[w.name]/ms["grebe"], w.name+"/grebe")
	}
	b.ReportMetric((ms["heap"]-ms["norms"])/(ms["grebe"]-ms["norms"]), "select/grebe")
}

// rivals are the plain ways with all memory reused.
type rivals struct {
	width, topK int
	all         []candidate
	kept, heads best
	sorted      [][]candidate // of each row
	at          []int         // its head
	rows        []selectorRow
	logits      []float32
}

func (v *rivals) candidates(dst []candidate, r *selectorRow) []candidate {
	for i := range r.n {
		dst = append(dst, candidate{r.continued(r.logit(i)), r.first + uint32(i), r.row})
	}
	return dst
}

// sort sorts everything.
func (v *rivals) sort(rows []selectorRow) []candidate {
	v.all = v.all[:0]
	for i := range rows {
		from := len(v.all)
		v.all = v.candidates(v.all, &rows[i])
		if v.topK < v.width {
			slices.SortFunc(v.all[from:], inOrder)
			v.all = v.all[:from+min(v.topK, len(v.all)-from)]
		}
	}
	slices.SortFunc(v.all, inOrder)
	return v.all[:v.width]
}

// heap offers everything to a heap, and where one beam's share is limited first to a heap of its own.
func (v *rivals) heap(rows []selectorRow) []candidate {
	v.kept.reset(v.width)
	for i := range rows {
		r := &rows[i]
		into := &v.kept
		if v.topK < v.width {
			into = &v.heads
			into.reset(v.topK)
		}
		offerAll(into, r)
		if into == &v.heads {
			for _, c := range into.heap {
				v.kept.offer(c)
			}
		}
	}
	return v.kept.heap
}

// plain is heap with normalisers computed the plain way.
func (v *rivals) plain(rows []selectorRow) []candidate {
	v.rows = append(v.rows[:0], rows...)
	v.logits = append(v.logits[:0], make([]float32, 8192)...)
	for k := range v.rows {
		r := &v.rows[k]
		x := v.logits[:r.n]
		for i := range x {
			x[i] = r.logit(i)
		}
		top, sum := float64(slices.Max(x)), 0.0
		for _, l := range x {
			sum += math.Exp(float64(l) - top)
		}
		r.norm = top + math.Log(sum)
	}
	return v.heap(v.rows)
}

// offerAll compares with the heap's worst in the loop itself, as a heap that wants to be fast would.
func offerAll(h *best, r *selectorRow) {
	worst, score, norm := negInf, r.score, r.norm
	if h.full() {
		worst = h.heap[0].score
	}
	if r.codes.short == nil {
		for i, x := range r.logits {
			if s := score + (float64(x) - norm); s >= worst {
				worst = h.offered(candidate{s, r.first + uint32(i), r.row})
			}
		}
		return
	}
	for i, c := range r.codes.short {
		if s := score + (float64(r.logits[c]) - norm); s >= worst {
			worst = h.offered(candidate{s, r.first + uint32(i), r.row})
		}
	}
}

func (b *best) offered(c candidate) (worst float64) {
	b.offer(c)
	if b.full() {
		return b.heap[0].score
	}
	return negInf
}

// merge takes each beam's best topK, sorted, and merges the beams by a heap of their heads.
func (v *rivals) merge(rows []selectorRow) []candidate {
	if v.sorted == nil {
		v.sorted = make([][]candidate, len(rows))
	}
	for i := range rows {
		r := &rows[i]
		v.kept.reset(min(v.topK, v.width))
		offerAll(&v.kept, r)
		v.sorted[i] = append(v.sorted[i][:0], v.kept.heap...)
		slices.SortFunc(v.sorted[i], inOrder)
	}
	return v.mergeSorted()
}

func (v *rivals) mergeSorted() []candidate {
	v.at = append(v.at[:0], make([]int, len(v.sorted))...)
	v.heads.reset(len(v.sorted))
	head := func(row int32) candidate { // upside down: the heap has the best head first
		c := v.sorted[row][v.at[row]]
		return candidate{-c.score, ^c.node, c.row}
	}
	for row := range v.sorted {
		v.heads.offer(head(int32(row)))
	}
	v.all = v.all[:0]
	for h := &v.heads.heap; len(v.all) < v.width && len(*h) > 0; v.heads.down() {
		row := (*h)[0].row
		v.all = append(v.all, v.sorted[row][v.at[row]])
		if v.at[row]++; v.at[row] < len(v.sorted[row]) {
			(*h)[0] = head(row)
		} else if n := len(*h) - 1; n > 0 {
			(*h)[0], *h = (*h)[n], (*h)[:n]
		} else {
			break
		}
	}
	return v.all
}

// The rivals are timed only because they agree.
func TestRivalsAgree(t *testing.T) {
	var s selector
	for seed := range uint64(50) {
		r := rng(seed)
		s.reset(0, nil)
		first := uint32(0)
		for row := range 30 {
			x := make([]float32, 100)
			for i := range x {
				x[i] = drawLogit(r, kinds[seed%4])
			}
			codes, n := randomCodes(r, len(x))
			for codes.short == nil {
				codes, n = randomCodes(r, len(x))
			}
			if err := s.add(selectorRow{logits: x, codes: codes, n: n, first: first, row: int32(row)}); err != nil {
				t.Fatal(err)
			}
			first += uint32(n)
		}
		width := 1 + r.IntN(25)
		v := &rivals{width: width, topK: 1 + r.IntN(2*width)}
		want := bySorting(s.rows, v.width, v.topK)
		for name, way := range map[string]func([]selectorRow) []candidate{"sort": v.sort, "heap": v.heap, "merge": v.merge} {
			got := slices.Clone(way(s.rows))
			slices.SortFunc(got, inOrder)
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d: %s differs from sorting", seed, name)
			}
		}
	}
}

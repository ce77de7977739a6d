package gemm

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
)

// table writes lines as they come, or nothing until the JSON at the end.
type table struct {
	w    io.Writer
	json bool
	err  error // the first failed write
}

func newTable(w io.Writer, asJSON bool, r *Report) *table {
	t := &table{w: w, json: asJSON}
	t.printf("grebe on %s\n", r.Level)
	for _, p := range r.Peers {
		if p.Absent != "" {
			t.printf("%s is absent: %s\n", p.Name, p.Absent)
		}
	}
	t.printf("\nGFLOP/s, medians of the products during which no thread was taken off its core (calm: their share);\n" +
		"where somebody has too few of them (*), of all products. best: ratio of the fastest products\n")
	t.printf("%-11s %-7s %-5s %3s %5s %6s %5s %8s %8s %8s %6s %6s %6s\n",
		"model", "product", "type", "thr", "rows", "n", "k", "grebe", "onednn", "openblas", "ratio", "best", "calm")
	return t
}

func (t *table) printf(format string, args ...any) {
	if t.json || t.err != nil {
		return
	}
	_, t.err = fmt.Fprintf(t.w, format, args...)
}

func (t *table) line(l *Line) {
	mark := ""
	if l.Disturbed {
		mark = "*"
	}
	t.printf("%-11s %-7s %-5s %3d %5d %6d %5d %8.0f %8s %8s %6s %6s %5.0f%%%s\n", l.Model, l.Product, l.Format, l.Threads, l.M, l.N, l.K,
		l.Grebe, number("%.0f", l.Peers["onednn"]), number("%.0f", l.Peers["openblas"]), number("%.2f", l.Ratio), number("%.2f", l.BestRatio), 100*l.Undisturbed, mark)
}

// number formats v, or a dash for what was not measured.
func number(format string, v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf(format, v)
}

func (t *table) finish(r *Report) error {
	if t.json {
		e := json.NewEncoder(t.w)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	t.printf("\nratio to the fastest peer\n%-5s %3s %6s %6s  %s\n", "type", "thr", "worst", "mean", "worst at")
	for _, s := range r.Summary {
		t.printf("%-5s %3d %6.2f %6.2f  %s\n", s.Format, s.Threads, s.Worst, s.GeoMean, s.WorstAt)
	}
	return t.err
}

// summarize returns the worst and the geometric mean ratio per format and threads, in the order of
// the lines. Lines without peers do not count.
func summarize(lines []Line) []Summary {
	type key struct {
		format  string
		threads int
	}
	at, logs, counts := map[key]int{}, []float64{}, []int{}
	var out []Summary
	for i := range lines {
		l := &lines[i]
		if l.Ratio == 0 {
			continue
		}
		k := key{l.Format, l.Threads}
		n, ok := at[k]
		if !ok {
			n = len(out)
			at[k] = n
			out = append(out, Summary{Format: l.Format, Threads: l.Threads, Worst: math.Inf(1)})
			logs, counts = append(logs, 0), append(counts, 0)
		}
		logs[n] += math.Log(l.Ratio)
		counts[n]++
		if s := &out[n]; l.Ratio < s.Worst {
			s.Worst, s.WorstAt = l.Ratio, fmt.Sprintf("%s %s, %d rows", l.Model, l.Product, l.M)
		}
	}
	for i := range out {
		out[i].GeoMean = math.Exp(logs[i] / float64(counts[i]))
	}
	return out
}

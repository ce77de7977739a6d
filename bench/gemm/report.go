package gemm

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"grebe/bench/report"
	"grebe/compute"
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
	t.printf("\nGFLOP/s, medians over rounds. ratio: median over rounds of the ratio to the peer with which it is " +
		"least, and its\n" +
		"95%% confidence interval. peak: share of what multiply-adds on registers alone reach.\n" +
		"/bf16: over Grebe's own bf16\n")
	t.printf("%-11s %-7s %-5s %3s %5s %6s %5s %8s %8s %8s %6s %13s %6s %6s %6s\n", "model", "product", "type", "thr",
		"rows",
		"n", "k", "grebe", "onednn", "openblas", "ratio", "95%", "rounds", "peak", "/bf16")
	return t
}

func (t *table) printf(format string, args ...any) {
	if t.json || t.err != nil {
		return
	}
	_, t.err = fmt.Fprintf(t.w, format, args...)
}

func (t *table) line(l *Line) {
	between := "-"
	if l.Ratio > 0 {
		between = fmt.Sprintf("[%.3f %.3f]", l.Low, l.High)
	}
	t.printf("%-11s %-7s %-5s %3d %5d %6d %5d %8.0f %8s %8s %6s %13s %6d %6s %6s\n", l.Model, l.Product, l.Format,
		l.Threads, l.M, l.N, l.K,
		l.Grebe, number("%.0f", l.Peers["onednn"]), number("%.0f", l.Peers["openblas"]), number("%.3f", l.Ratio), between,
		l.Rounds,
		number("%.2f", l.Ceiling), number("%.2f", l.OverBF16))
}

// number formats v, or a dash for what was not measured.
func number(format string, v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf(format, v)
}

func (t *table) finish(r *Report, check bool) error {
	if t.json {
		return report.JSON(t.w, r)
	}
	t.printf("\nratio to the fastest peer\n%-5s %3s %6s %6s %6s %6s  %s\n", "type", "thr", "worst", "mean", "below",
		"/bf16", "worst at")
	for _, s := range r.Summary {
		t.printf("%-5s %3d %6s %6s %6d %6s  %s\n", s.Format, s.Threads, number("%.3f", s.Worst), number("%.3f", s.GeoMean),
			s.Below,
			number("%.3f", s.OverBF16), s.WorstAt)
	}
	if check {
		t.printf("\n%s\n", r.verdict())
	}
	return t.err
}

// ErrBelow is what a checked run returns when a line is below its bar.
var ErrBelow = errors.New("bench gemm: below the bar")

// overBF16 is what products of int8 must reach over Grebe's own bf16, in the geometric mean.
const overBF16 = 1.5

// bar is the least ratio that a format must reach.
func bar(format string) float64 {
	switch format {
	case compute.BF16.String():
		return 1
	case compute.INT8.String():
		return 0.9
	}
	return 0.95
}

// check returns an error if a line is below its bar, or if there was nothing to hold Grebe against.
func (r *Report) check() error {
	peers := false
	for _, s := range r.Summary {
		peers = peers || s.Worst > 0
		isInt8 := s.Format == compute.INT8.String()
		if s.Below > 0 || isInt8 && (s.OverBF16 < overBF16 || s.Worst > 0 && s.GeoMean < 1) {
			return ErrBelow
		}
	}
	if !peers {
		return errors.New("bench gemm: no peer is installed")
	}
	return nil
}

// verdict says in one line whether every line reached its bar, and the worst of each kind.
func (r *Report) verdict() string {
	word := "pass"
	if r.check() != nil {
		word = "FAIL"
	}
	var worst []string
	for _, s := range r.Summary {
		worst = append(worst, fmt.Sprintf("%s on %d: %.3f of %.2f", s.Format, s.Threads, s.Worst, bar(s.Format)))
	}
	return word + ": worst " + strings.Join(worst, "; ")
}

// summarize returns the worst and the geometric mean ratio per format and threads, in the order of
// the lines. Lines with nothing beside them do not count.
func summarize(lines []Line) []Summary {
	type key struct {
		format  string
		threads int
	}
	at, means := map[key]int{}, []geoMeans{}
	var out []Summary
	for i := range lines {
		l := &lines[i]
		if l.Ratio == 0 && l.OverBF16 == 0 {
			continue
		}
		k := key{l.Format, l.Threads}
		n, ok := at[k]
		if !ok {
			n = len(out)
			at[k] = n
			out, means = append(out, Summary{Format: l.Format, Threads: l.Threads}), append(means, geoMeans{})
		}
		means[n].peers.add(l.Ratio)
		means[n].bf16.add(l.OverBF16)
		if s := &out[n]; l.Ratio > 0 && (s.Worst == 0 || l.Ratio < s.Worst) {
			s.Worst, s.WorstAt = l.Ratio, fmt.Sprintf("%s %s, %d rows", l.Model, l.Product, l.M)
		}
		if l.Ratio > 0 && l.Ratio < bar(l.Format) {
			out[n].Below++
		}
	}
	for i := range out {
		out[i].GeoMean, out[i].OverBF16 = means[i].peers.mean(), means[i].bf16.mean()
	}
	return out
}

type geoMeans struct{ peers, bf16 geoMean }

// geoMean is a geometric mean under way.
type geoMean struct {
	logs  float64
	count int
}

func (g *geoMean) add(v float64) {
	if v > 0 {
		g.logs, g.count = g.logs+math.Log(v), g.count+1
	}
}

// mean returns 0 where nothing was added.
func (g *geoMean) mean() float64 {
	if g.count == 0 {
		return 0
	}
	return math.Exp(g.logs / float64(g.count))
}

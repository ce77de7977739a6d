package gpu

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"grebe/bench/report"
	"grebe/compute/cuda/split"
)

// save writes the report as JSON to a file.
func (r *Report) save(file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(r.write(f, true), f.Close())
}

func (r *Report) write(w io.Writer, asJSON bool) error {
	if asJSON {
		return report.JSON(w, r)
	}
	p := &printer{w: w}
	p.printf("%s, %s, driver for CUDA %s", r.Date.Format("2006-01-02 15:04"), r.Device, r.CUDA)
	if r.Torch != "" {
		p.printf("; peers: %s", r.Torch)
	}
	p.printf("\n")
	for _, c := range r.Checks {
		p.printf("checked: %s, %d rows, off compute/ref by %.2g (limit %.2g)\n", c.Name, c.Rows, c.Error, c.Limit)
	}
	p.printf("random weights of true shapes, Qwen2-1.5B's where no other is named; seed %d\n\n", r.Seed)
	r.timeline(p)
	if len(r.Lines) > 0 {
		r.table(p)
	}
	r.splits(p)
	return p.err
}

func (r *Report) table(p *printer) {
	p.printf("%-46s %9s %9s %9s %4s %7s %7s %5s  %s\n", "", "median", "least", "p90", "", "must", "aim", "", "beside it")
	missed, bars := 0, 0
	for i := range r.Lines {
		l := &r.Lines[i]
		verdict := ""
		if l.Must > 0 {
			bars++
			switch {
			case !l.holds(l.Must):
				verdict = "MISS"
				missed++
			case l.holds(l.Aim):
				verdict = "aim"
			default:
				verdict = "must"
			}
		}
		p.printf("%-46s %9s %9s %9s %-4s %7s %7s %5s  %s\n", l.Name, number(l.Median), number(l.Least), number(l.P90), l.Unit,
			number(l.Must), number(l.Aim), verdict, beside(l.Peers))
	}
	p.printf("%d of %d lines with a bar reach what they must\n", bars-missed, bars)
}

func beside(peers []Peer) string {
	var out []string
	for _, x := range peers {
		out = append(out, x.Name+" "+number(x.Value))
	}
	return strings.Join(out, "; ")
}

func (r *Report) splits(p *printer) {
	if len(r.Splits) == 0 {
		return
	}
	p.printf("\nattention of a layer by how its work is cut, µs; no model was fitted to these shapes\n")
	head := fmt.Sprintf("%-42s %8s %9s %8s %8s   %-14s %s\n", "", "fixed", "512 keys", "chosen", "best", "chosen", "best")
	for _, m := range r.Models {
		p.printf("%s: predictions are off by %.1f %%; choices for held-out lessons are %.3f × as fast as the fixed split\n",
			m.Name, 100*m.Off, m.Gain)
	}
	p.printf("%s", head)
	for _, s := range r.Splits {
		p.printf("%-42s %8.2f %9s %8.2f %8.2f   %-14s %s\n", s.Name, s.Fixed, number(s.Keys), s.Chosen, s.Best,
			wayName(s.Way), wayName(s.BestBy))
	}
}

func wayName(s split.Split) string {
	if s.Form == split.Even {
		return fmt.Sprintf("%d keys", 128*s.Steps)
	}
	return s.Form.String()
}

func number(v float64) string {
	switch {
	case v == 0:
		return ""
	case v >= 1000:
		return fmt.Sprintf("%.0f", v)
	case v >= 100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// printer keeps the first failed write.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

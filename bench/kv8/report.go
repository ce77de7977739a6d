package kv8

import (
	"fmt"
	"io"

	"grebe/bench/report"
)

// JSON writes the report for programs.
func (r *Report) JSON(w io.Writer) error {
	return report.JSON(w, r)
}

// Text writes it for people.
func (r *Report) Text(w io.Writer) error {
	p := &printer{w: w}
	p.line("KV in %s beside %s: %s on %s, %s", r.Formats[1], r.Formats[0], r.Model, r.Device, r.Data)
	if r.Random {
		p.line("The weights are random: orders of logits that hardly differ change at a touch, and NDCG is chance.")
	}
	p.line("A token takes %.0f bytes of KV in %s, %.0f in %s (chunks of 64 tokens, %.0f %%)", r.TokenBytes[1],
		r.Formats[1], r.TokenBytes[0], r.Formats[0], 100*r.TokenBytes[1]/r.TokenBytes[0])
	p.line("")
	p.line("%-14s %5s  %22s %9s  %14s %14s %6s  %24s  %17s", "way", "n", "logits: spread, off", "scores", "tau", "top 10",
		"first", "NDCG@10, change", "compute ms")
	for i := range r.Lines {
		l := &r.Lines[i]
		p.line("%-14s %5d  %7.3f %6.4f (≤ %5.3f) %9.2e  %6.4f ± %.4f %6.4f ± %.4f %6.3f  %.4f %+.4f ± %.4f  %7.2f → "+
			"%7.2f", l.Way, l.Questions,
			l.Spread, l.Logit, l.Worst, l.Score, l.Tau.Value, (l.Tau.High-l.Tau.Low)/2, l.Top10.Value,
			(l.Top10.High-l.Top10.Low)/2, l.First,
			l.NDCG[0], l.Change.Value, (l.Change.High-l.Change.Low)/2, l.ComputeMs[0], l.ComputeMs[1])
	}
	return p.err
}

// printer keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

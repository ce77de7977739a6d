package embed

import (
	"fmt"
	"io"

	"grebe/bench/report"
)

type printer struct {
	w    io.Writer
	json bool
}

func (p *printer) printf(format string, args ...any) {
	if !p.json {
		fmt.Fprintf(p.w, format, args...)
	}
}

func (p *printer) head(o *Options) {
	p.printf("SparseLengthsSum, %d rows of %d floats in Redis, %d rows per sum, Zipf %.2f, half of the popular rows "+
		"others after %d lookups\n\n",
		o.Rows, rowFloats, lookups, o.Skew, o.HalfLife)
	p.printf("%-6s %6s %6s %-8s %8s %12s %7s %6s  %s\n", "trace", "cache", "batch", "policy", "rows", "lookups/s", "hits",
		"asked", "rate to LRU's (95 %)")
}

func (p *printer) hitsHead(o *Options) {
	p.printf("hit rates of lookups one by one, Zipf %.2f; drift: half of the popular rows others after %d lookups, "+
		"fast: after %d\n\n", o.Skew, o.HalfLife, o.HalfLife/10)
	p.printf("%-6s %6s", "trace", "cache")
	for _, policy := range o.Policies {
		if policy != "none" {
			p.printf(" %8s", policy)
		}
	}
	p.printf(" %8s %8s\n", "popular", "optimum")
}

func (p *printer) hits(o *Options, h *Hits) {
	p.printf("%-6s %5.3g%%", h.Trace, h.Percent)
	for _, policy := range o.Policies {
		if policy != "none" {
			p.printf(" %7.2f%%", 100*h.Rates[policy])
		}
	}
	p.printf(" %7.2f%% %7.2f%%\n", 100*h.Popular, 100*h.Optimum)
}

func (p *printer) line(l *Line) {
	p.printf("%-6s %5.3g%% %6d %-8s %8d %12.0f %6.1f%% %6.3f  %.3f (%.3f to %.3f)\n",
		l.Trace, l.Percent, l.Batch, l.Policy, l.Rows, l.Rate, 100*l.Hits, l.Asked, l.Ratio.Median, l.Ratio.Low, l.Ratio.High)
}

func (p *printer) finish(r *Report) error {
	if !p.json {
		return nil
	}
	return report.JSON(p.w, r)
}

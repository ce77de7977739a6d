package allocator

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

func (p *printer) head(c *Cost) {
	p.printf("costs: %s\nSLO %d ms. Gap: mean distance to the optimum's share. 95 %% intervals over seeds.\n\n", c.Source,
		SLO)
}

func (p *printer) verdict(v *Verdict) {
	p.printf("%s at %.2f of its rate, %d seeds, shares of embeddings\n", v.Workload, v.Rate, v.Seeds)
	p.printf("%-24s %8s %8s %8s %22s %22s %6s %6s %6s\n", "", "P99 ms", "epochs", "in SLO", "to best static", "to optimum",
		"gap", "KV", "rows")
	for i := range v.Lines {
		l := &v.Lines[i]
		p.printf("%-24s %8.1f %8.1f %7.2f%% %s %s %6.3f %5.1f%% %5.1f%%\n", l.Controller, l.P99, l.Epochs, 100*l.Within,
			l.ToStatic, l.ToOptimum, l.Gap, 100*l.KVHit, 100*l.EmbHit)
	}
	p.printf("\n")
}

// String prints the mean and the interval.
func (i Interval) String() string { return fmt.Sprintf("%.3f (%.3f to %.3f)", i.Mean, i.Low, i.High) }

func (p *printer) loads(loads []Load) {
	p.printf("what there is to gain, by load: P99 in ms, two seeds\n%-8s %6s %18s %8s %8s %8s %10s\n", "", "load",
		"best static", "0.5", "climb", "optimum", "in SLO")
	for _, l := range loads {
		p.printf("%-8s %5.1fx %8.1f (at %.1f) %8.1f %8.1f %8.1f %9.2f%%\n", l.Workload, l.Times, l.Static, l.Best, l.Half,
			l.Climb, l.Optimum, 100*l.Within)
	}
	p.printf("\n")
}

func (p *printer) marginHead() {
	p.printf("what moving brings at best: P99 in ms, seed %d, no controller\n%-12s %4s %10s %6s %18s %8s %18s %8s %8s "+
		"%12s\n", marginSeed,
		"", "GPUs", "KV", "load", "best static", "in SLO", "optimum", "in SLO", "below", "its shares")
}

func (p *printer) margin(m *Margin) {
	p.printf("%-12s %4d %10s %5.2fx %8.1f (at %.1f) %7.2f%% %18.1f %7.2f%% %7.1f%% %.2f to %.2f\n", m.Workload, m.GPUs,
		m.KV, m.Times,
		m.Static, m.Best, 100*m.InStatic, m.Optimum, 100*m.Within, 100*(1-m.Optimum/m.Static), m.Least, m.Most)
}

func (p *printer) boundHead() {
	p.printf("what no schedule of shares by epochs goes below: P99 in ms; ideal: every epoch's best share with the hits " +
		"of always having had it, nobody waiting\n")
	p.printf("when it begins. Found: the best schedule by phases of a burst (calm, first, second, further, after), on "+
		"seed %d, beside its best static\n", marginSeed)
	p.printf("%-12s %6s %18s %8s %8s %22s %8s %8s %22s %10s %8s  %s\n", "", "load", "best static", "in SLO", "ideal",
		"to best static", "climb", "in SLO", "to best static", "found", "to it", "its shares")
}

func (p *printer) bound(b *Bound) {
	p.printf("%-12s %5.2fx %8.1f (at %.2f) %7.2f%% %8.1f %s %8.1f %7.2f%% %s %10.1f %8.3f  %.2f\n", b.Workload, b.Times,
		b.Static, b.Best, 100*b.InStatic, b.Ideal, b.ToStatic, b.Climb, 100*b.InClimb, b.ClimbTo, b.Found, b.FoundTo,
		b.Phases)
}

func (p *printer) boundary(b *Boundary) {
	p.printf("the boundary of a pool of %d pages of %d KiB, %d workers on it\n", b.Pages, b.PageBytes>>10, b.Workers)
	p.printf("  moving 4 %% of it (%d pages)  %8.1f µs, 99 %% within %.1f µs\n", b.Moved, b.FourPercent, b.FourWorst)
	p.printf("  per page                     %8.3f µs\n", b.PerPage)
	p.printf("  P99 of workers' requests     %8.1f µs still, %.1f µs while it moves: x %.3f\n", b.P99Still, b.P99Moving,
		b.P99Ratio)
	p.printf("  a decision of smart          %8.2f µs, of climb %.2f µs\n\n", b.Smart, b.Climb)
}

func (p *printer) real(runs []Real) {
	p.printf("in real time on this machine: a pool of %d MiB, the server's caches, hot users from 0.2 to 0.5 half-way\n",
		realPool>>20)
	p.printf("%-12s %8s %8s %6s %6s %10s %9s\n", "", "P99 ms", "mean", "KV", "rows", "share last", "requests")
	for _, r := range runs {
		p.printf("%-12s %8.2f %8.2f %5.1f%% %5.1f%% %10.2f %9d\n", r.Controller, r.P99, r.Mean, 100*r.KVHit, 100*r.RowHit,
			r.Alpha, r.Requests)
	}
	p.printf("\n")
}

func (p *printer) checks(checks []Check) {
	for _, c := range checks {
		ok := "ok    "
		if !c.OK {
			ok = "MISSED"
		}
		p.printf("%s %-52s %8.3f, want %s\n", ok, c.What, c.Got, c.Want)
	}
}

func (p *printer) finish(r *Report) error {
	if !p.json {
		return nil
	}
	return report.JSON(p.w, r)
}

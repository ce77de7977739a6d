package cache

import (
	"fmt"
	"io"

	"grebe/bench/report"
)

// printer writes tables as they come, or nothing until the JSON at the end.
type printer struct {
	w    io.Writer
	json bool
	err  error // the first failed write
}

func (p *printer) printf(format string, args ...any) {
	if p.json || p.err != nil {
		return
	}
	_, p.err = fmt.Fprintf(p.w, format, args...)
}

func (p *printer) known(all []Known) {
	p.printf("hit rates beside those of another simulator\n%-22s %6s %-8s %8s %9s\n", "trace", "cache", "policy", "here",
		"published")
	for _, k := range all {
		note := ""
		if !k.Same {
			note = "  differs"
		}
		p.printf("%-22s %5g%% %-8s %8.4f %9s%s\n", k.Trace, 100*k.Share, k.Policy, k.Rate, k.Published, note)
	}
}

func (p *printer) resultHead() {
	p.printf("%-22s %6s %-10s %8s %8s %9s %12s %10s %7s %9s\n",
		"trace", "cache", "policy", "hits", "gap %", "2nd half", "P99 TTFT ms", "ns/access", "train%", "RMS log2")
}

func (p *printer) result(x *Result) {
	p.printf("%-22s %5g%% %-10s %8.4f %8.1f %9.1f %12.1f %10.0f %7.0f %9.2f\n",
		x.Trace, 100*x.Share, x.Policy, x.Rate, 100*x.Closed, 100*x.HeldOut, x.P99, x.NsPerReq, 100*x.TrainShare, x.RMS)
}

func (p *printer) finish(r *Report) error {
	if p.json {
		return report.JSON(p.w, r)
	}
	p.printf("\n")
	for _, c := range r.Checks {
		verdict := "FAIL"
		if c.OK {
			verdict = "PASS"
		}
		p.printf("%s  %s: %s\n", verdict, c.What, c.Got)
	}
	return p.err
}

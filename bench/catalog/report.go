package catalog

import (
	"fmt"
	"io"

	"grebe/bench/report"
)

// Bars of issue and design, for ten million items.
const (
	maxBuild = 60.0 // seconds
	maxBytes = 24.0 // an item
	maxDelta = 1.0  // seconds, of a thousand items
)

func (r *Report) check() {
	add := func(what string, got, most float64, unit string) {
		r.Checks = append(r.Checks, Check{what, fmt.Sprintf("%.2f %s, at most %g", got, unit, most), got < most})
	}
	for _, x := range r.Indices {
		add("index, "+x.Kind+": build", x.BuildSeconds, maxBuild, "s")
		add("index, "+x.Kind+": size", x.BytesPerItem, maxBytes, "bytes an item")
		for _, d := range x.Deltas {
			if d.Items <= 1000 {
				add(fmt.Sprintf("index, %s: delta of %d", x.Kind, d.Items), d.CPUSeconds, maxDelta, "s of CPU")
			}
		}
	}
	for _, v := range r.Versions {
		add("versions, "+v.Kind+": first", v.FirstSeconds, maxBuild, "s")
		for _, d := range v.Deltas {
			if d.Items <= 1000 {
				add(fmt.Sprintf("versions, %s: delta of %d", v.Kind, d.Items), d.Seconds, maxDelta, "s")
			}
		}
	}
}

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

func (p *printer) indexHead(r *Report) {
	p.printf("index of %d items, one core; deltas: as many items added as removed\n", r.Items)
	p.printf("%-10s %8s %11s %12s %8s %10s %9s %9s %9s %7s\n",
		"kind", "build s", "bytes/item", "stored/item", "open s", "leaves", "delta", "median s", "worst s", "CPU s")
}

func (p *printer) index(x *Index) {
	lead := fmt.Sprintf("%-10s %8.2f %11.2f %12.2f %8.2f %10d", x.Kind, x.BuildSeconds, x.BytesPerItem, x.StoredBytes,
		x.OpenSeconds, x.Leaves)
	p.deltas(lead, x.Deltas)
}

func (p *printer) versionsHead(r *Report) {
	p.printf("\nversions of a catalog of %d items as a server makes them, on %d cores, files synced\n", r.Items, r.Cores)
	p.printf("%-10s %8s %12s %11s %10s %11s %10s %9s %9s %9s %7s\n",
		"kind", "first s", "stored/item", "heap/item", "restart s", "rollback s", "compact s", "delta", "median s", "worst s",
		"CPU s")
}

func (p *printer) versions(v *Versions) {
	lead := fmt.Sprintf("%-10s %8.2f %12.2f %11.2f %10.2f %11.2f %10.2f",
		v.Kind, v.FirstSeconds, v.StoredBytes, v.HeapBytes, v.RestartSeconds, v.RollbackSeconds, v.CompactSeconds)
	p.deltas(lead, v.Deltas)
}

func (p *printer) deltas(lead string, all []Delta) {
	for _, d := range all {
		p.printf("%s %9d %9.3f %9.3f %7.3f\n", lead, d.Items, d.Seconds, d.Worst, d.CPUSeconds)
		lead = fmt.Sprintf("%*s", len(lead), "")
	}
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

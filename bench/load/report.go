package load

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"grebe/bench/report"
)

// WriteJSON writes a Result, Found or Comparison, or a struct that holds some, as indented JSON.
func WriteJSON(w io.Writer, of any) error {
	return report.JSON(w, of)
}

// WriteTable writes a line per result, times in milliseconds.
func WriteTable(w io.Writer, results ...Result) error {
	t := report.Table(w)
	extra := extras(results)
	fmt.Fprint(t, "\trequests\toffered/s\tanswered/s\tgood/s\tP50\tP90\tP99\tP99.9\tmax\tlag P99\theld\t")
	for _, name := range extra {
		fmt.Fprint(t, name, "\t")
	}
	fmt.Fprintln(t, "errors\t")
	for i := range results {
		r := &results[i]
		l := &r.Latency
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t", r.Name, r.Requests,
			short(r.Offered), short(r.Throughput), short(r.Goodput),
			short(l.P50), short(l.P90), short(l.P99), short(l.P999), short(l.Max), short(r.Lag.P99), r.Held)
		for _, name := range extra {
			fmt.Fprint(t, short(r.Extra[name]), "\t")
		}
		fmt.Fprintf(t, "%s\t\n", failures(r.Errors))
	}
	return t.Flush()
}

// extras returns the names of all figures that callers added, in order.
func extras(results []Result) []string {
	names := map[string]struct{}{}
	for i := range results {
		for name := range results[i].Extra {
			names[name] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// failures writes classes of errors and their counts.
func failures(errors map[string]int) string {
	var out []string
	for _, class := range slices.Sorted(maps.Keys(errors)) {
		out = append(out, fmt.Sprintf("%s %d", class, errors[class]))
	}
	if len(out) == 0 {
		return "0"
	}
	return strings.Join(out, ", ")
}

// Write writes the variants' results and a line per variant and metric.
func (c *Comparison) Write(w io.Writer) error {
	results := make([]Result, len(c.Variants))
	for i := range c.Variants {
		results[i] = c.Variants[i].Result
	}
	if err := WriteTable(w, results...); err != nil || len(c.Variants) == 0 {
		return err
	}
	fmt.Fprintf(w, "\nMedians of %d interleaved blocks, ratios to %s with %.0f %% confidence\n", c.Blocks,
		c.Variants[0].Name, 100*c.Confidence)
	t := report.Table(w)
	for i := range c.Variants {
		for _, m := range c.Variants[i].Metrics {
			fmt.Fprintf(t, "%s\t%s\t%s\t×%.3f\t[%.3f, %.3f]\t\n", c.Variants[i].Name, m.Metric, short(m.Median), m.Ratio, m.Low,
				m.High)
		}
	}
	return t.Flush()
}

// Write writes the rate found and a line per rate tried.
func (f *Found) Write(w io.Writer) error {
	var results []Result
	for i := range f.Trials {
		r := Merge(f.Trials[i].Runs...)
		r.Name = "missed"
		if f.Trials[i].Kept {
			r.Name = "kept"
		}
		results = append(results, r)
	}
	if err := WriteTable(w, results...); err != nil {
		return err
	}
	limit := "no rate tried misses it"
	if f.Limit > 0 {
		limit = short(f.Limit) + "/s misses it"
	}
	_, err := fmt.Fprintf(w, "%s keeps P99 ≤ %s ms up to %s/s; %s\n", f.Name, short(f.slo()), short(f.Rate), limit)
	return err
}

func (f *Found) slo() float64 {
	if len(f.Trials) == 0 {
		return 0
	}
	return f.Trials[0].Runs[0].SLO
}

// short writes a figure with as many digits as one reads.
func short(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	case v == 0:
		return "0"
	}
	return fmt.Sprintf("%.3g", v)
}

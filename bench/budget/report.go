package budget

import (
	"fmt"
	"io"
	"strings"

	"grebe/bench/report"
)

// write shows a report to people.
func (r *Report) write(w io.Writer) error {
	if s := r.Shares; s != nil {
		fmt.Fprintf(w, "shares: three models, a budget of %d MiB, %.0f requests/s of each busy model\n", s.Memory>>20, s.Rate)
		t := report.Table(w)
		fmt.Fprintf(t, "phase\tbusy\tbar\treached\tone\ttwo\tthree\tswing\treused by one\ttwo\tthree\t\n")
		for _, p := range s.Phases {
			bar, reached := "", ""
			if p.Bar > 0 {
				bar, reached = fmt.Sprintf("%s %.0f %%", p.Model, 100*p.Bar), "no"
			}
			if p.Bar > 0 && p.Reached >= 0 {
				reached = fmt.Sprintf("%.1f s", p.Reached)
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%.1f %%\t%s\t\n",
				p.Name, strings.Join(p.Busy, ", "), bar, reached, percent(p.Shares), 100*p.Swing, percent(p.Reused))
		}
		if err := t.Flush(); err != nil {
			return err
		}
		fmt.Fprintf(w, "least share of any model at any time %.1f %%, bar: %.1f %%; swing with two busy models, bar: %.0f "+
			"%%\n",
			100*s.Floor, 100*leastFloor, 100*mostSwing)
	}
	if f := r.Folder; f != nil {
		fmt.Fprintln(w, "folder: memory of a server whose models answered for the same ten users")
		t := report.Table(w)
		fmt.Fprintf(t, "models\tweights and pools\tKV in use\tresident\treused by the last\t\n")
		for _, l := range []struct {
			name string
			Taken
		}{{"one", f.One}, {"two configurations of its folder", f.Same}, {"two copies", f.Copies}} {
			fmt.Fprintf(t, "%s\t%.1f MiB\t%.1f MiB\t%.1f MiB\t%.1f %%\t\n",
				l.name, l.OffHeap/(1<<20), l.KV/(1<<20), l.Resident/(1<<20), 100*l.Reused)
		}
		if err := t.Flush(); err != nil {
			return err
		}
		fmt.Fprintf(w, "bar: a second configuration takes at most %.0f %% of what a copy takes\n", 100*mostExtra)
	}
	fmt.Fprintf(w, "passed: %v\n", r.Passed)
	return nil
}

func percent(shares []float64) string {
	out := make([]string, len(shares))
	for i, s := range shares {
		out[i] = fmt.Sprintf("%.1f %%", 100*s)
	}
	return strings.Join(out, "\t")
}

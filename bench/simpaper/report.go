package simpaper

import (
	"fmt"
	"io"

	"grebe/bench/report"
)

// Report compares an experiment with the paper.
type Report struct {
	Name        string   `json:"name"`
	Paper       string   `json:"paper"`
	Assumptions []string `json:"assumptions"`
	Explained   []string `json:"explained,omitempty"`
	Lines       []Line   `json:"lines"`
	Values      []Value  `json:"values"`
}

// Line is a value of the paper beside ours: the median over seeds, and their range.
type Line struct {
	What       string  `json:"what"`
	Text       string  `json:"paper"`
	Paper      float64 `json:"paper_value"` // of a range, the value that is nearest
	Ours       float64 `json:"ours"`
	Low        float64 `json:"low"`
	High       float64 `json:"high"`
	Difference float64 `json:"difference"` // relative
	Ratio      bool    `json:"ratio"`
	Verdict    string  `json:"verdict"` // agrees (5 %), within 15 %, differs, other sign or other order
}

// Write writes a table.
func (r *Report) Write(w io.Writer) error {
	fmt.Fprintf(w, "%s: %s\n", r.Name, r.Paper)
	t := report.Table(w)
	fmt.Fprintf(t, "what\tpaper\tours\tseeds\tdifference\t\t\n")
	for _, l := range r.Lines {
		fmt.Fprintf(t, "%s\t%s\t%.4g\t%.4g–%.4g\t%+.1f %%\t%s\t\n", l.What, l.Text, l.Ours, l.Low, l.High, 100*l.Difference,
			l.Verdict)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, "assumed:")
	for _, a := range r.Assumptions {
		fmt.Fprintf(w, "  - %s\n", a)
	}
	if len(r.Explained) > 0 {
		fmt.Fprintln(w, "differences:")
	}
	for _, a := range r.Explained {
		fmt.Fprintf(w, "  - %s\n", a)
	}
	_, err := fmt.Fprintln(w)
	return err
}

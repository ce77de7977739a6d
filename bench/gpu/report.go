package gpu

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
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
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	p := &printer{w: w}
	p.printf("%s, %s, driver for CUDA %s\n", r.Date.Format("2006-01-02 15:04"), r.Device, r.CUDA)
	if r.Check.Rows > 0 {
		p.printf("%d rows of a small model are off compute/ref by %.2g (limit %.2g), seed %d\n", r.Check.Rows, r.Check.Relative, r.Check.Limit, r.Seed)
	}
	p.printf("\nQwen2-1.5B's shape where no other is named, random weights; medians of what a caller sees, ms\n")
	p.printf("%-34s %6s %8s %8s %8s %7s %7s %7s\n", "", "rows", "median", "least", "p90", "must", "aim", "ratio")
	for _, l := range r.Lines {
		p.printf("%-34s %6d %8.3f %8.3f %8.3f %7s %7s %7s\n", l.Name, l.Rows, l.MS, l.Least, l.P90, number(l.Must), number(l.Aim), number(l.Ratio))
	}
	for i, x := range r.Peers {
		if i == 0 {
			p.printf("\npeers on the same machine, ms\n")
		}
		p.printf("%-34s %6d %8.3f\n", x.Name, x.Tokens, x.MS)
	}
	return p.err
}

func number(v float64) string {
	if v == 0 {
		return ""
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

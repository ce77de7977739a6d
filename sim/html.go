package sim

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strconv"
	"strings"
)

// HTML writes the report as one page that needs nothing else.
func (rep *Report) HTML(w io.Writer) error {
	last := rep.Runs[len(rep.Runs)-1]
	for _, r := range rep.Runs {
		if r.Offered == rep.Sustained {
			last = r
		}
	}
	var text strings.Builder
	if err := rep.Text(&text); err != nil {
		return err
	}
	page := struct {
		Rep   *Report
		R     *Result
		Text  string
		Plots []plot
		Links [][]cell
	}{rep, last, text.String(), rep.plots(last), last.links()}
	return document.Execute(w, &page)
}

// plot is a diagram of curves over one axis.
type plot struct {
	Title, X, Unit string
	Left, Right    string // ends of the axis
	Top            string // highest value
	Curves         []curve
}

type curve struct {
	Name, Color, Points string
}

var colors = []string{"#1c7c8c", "#d2691e", "#7a5cc0", "#5a8f29", "#b8336a", "#9aa5ad"}

const (
	plotLeft, plotWidth   = 60, 660
	plotBottom, plotHight = 210, 190
)

// short writes a number with about three digits, and without an exponent.
func short(x float64) string {
	digits := 2
	for y := x; y >= 10 && digits > 0; y /= 10 {
		digits--
	}
	return strconv.FormatFloat(x, 'f', digits, 64)
}

// draw makes a plot of the values y over x.
func draw(title, x, unit string, at []float64, names []string, y [][]float64) plot {
	p := plot{Title: title, X: x, Unit: unit}
	most := 0.0
	for _, c := range y {
		for _, v := range c {
			most = max(most, v)
		}
	}
	if most == 0 {
		most = 1
	}
	from, to := at[0], at[len(at)-1]
	p.Left, p.Right, p.Top = short(from), short(to), short(most)
	for i, c := range y {
		var b strings.Builder
		for k, v := range c {
			share := 0.5
			if to > from {
				share = (at[k] - from) / (to - from)
			}
			fmt.Fprintf(&b, "%.1f,%.1f ", plotLeft+plotWidth*share, plotBottom-plotHight*v/most)
		}
		p.Curves = append(p.Curves, curve{names[i], colors[i%len(colors)], b.String()})
	}
	return p
}

func (rep *Report) plots(last *Result) (out []plot) {
	if len(rep.Runs) > 1 {
		var at []float64
		y := make([][]float64, 3)
		for _, r := range rep.Runs {
			at = append(at, r.Offered)
			for i, v := range []float64{r.Latency.P50, r.Latency.P90, r.Latency.P99} {
				y[i] = append(y[i], v)
			}
		}
		out = append(out, draw("Latency over load", "requests/s", "ms", at, []string{"P50", "P90", "P99"}, y))
	}
	if len(last.Series) == 0 {
		return out
	}
	var at []float64
	series := func(of ...func(*Sample) float64) [][]float64 {
		y := make([][]float64, len(of))
		for i := range last.Series {
			for k, f := range of {
				y[k] = append(y[k], f(&last.Series[i]))
			}
		}
		return y
	}
	for i := range last.Series {
		at = append(at, last.Series[i].At)
	}
	out = append(out,
		draw("Latency over time", "s", "ms", at, []string{"P50", "P99"},
			series(func(s *Sample) float64 { return s.P50 }, func(s *Sample) float64 { return s.P99 })),
		draw("Hit shares over time", "s", "% of tokens", at, []string{"device", "host", "peers"},
			series(func(s *Sample) float64 { return 100 * s.Device }, func(s *Sample) float64 { return 100 * s.Host },
				func(s *Sample) float64 { return 100 * s.Peer })),
		draw("Requests over time", "s", "per sample", at, []string{"answered", "not answered"},
			series(func(s *Sample) float64 { return float64(s.Answered) },
				func(s *Sample) float64 { return float64(s.Missed) })))
	if last.RemoteBytes > 0 {
		out = append(out, draw("KV between nodes", "s", "MB per sample", at, []string{"received"},
			series(func(s *Sample) float64 { return float64(s.Remote) / 1e6 })))
	}
	if n := len(last.Series[0].Alpha); n > 0 {
		y, names := make([][]float64, n), make([]string, n)
		for i := range last.Series {
			for k, a := range last.Series[i].Alpha {
				y[k] = append(y[k], a)
				names[k] = fmt.Sprintf("node %d", k)
			}
		}
		out = append(out, draw("Embeddings' share of memory (α), by node", "s", "share", at, names, y))
	}
	return out
}

// cell is the traffic of a link.
type cell struct {
	Text  string
	Shade float64 // 0 to 1
}

// links returns the bytes by sender and receiver as a table; nil if there were none.
func (r *Result) links() (out [][]cell) {
	var most int64
	for _, row := range r.Links {
		for _, n := range row {
			most = max(most, n)
		}
	}
	if most == 0 || len(r.Links) > 32 {
		return nil
	}
	for _, row := range r.Links {
		var cells []cell
		for _, n := range row {
			c := cell{Shade: float64(n) / float64(most)}
			if n > 0 {
				c.Text = short(float64(n) / 1e6)
			}
			cells = append(cells, c)
		}
		out = append(out, cells)
	}
	return out
}

//go:embed page.html
var pageText string

var document = template.Must(template.New("sim").Funcs(template.FuncMap{
	"percent": func(x float64) float64 { return 100 * x },
}).Parse(pageText))

// UsedGB, SentMB and GotMB are for the page.
func (n *NodeResult) UsedGB() float64 { return float64(n.UsedBytes) / 1e9 }

// SentMB returns the megabytes that the node sent.
func (n *NodeResult) SentMB() float64 { return float64(n.SentBytes) / 1e6 }

// GotMB returns the megabytes that the node received.
func (n *NodeResult) GotMB() float64 { return float64(n.GotBytes) / 1e6 }

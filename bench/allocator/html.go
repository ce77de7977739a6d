package allocator

import (
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
)

// HTML writes the shares over time beside the optimum's as one page that needs nothing else.
func (r *Report) HTML(w io.Writer) error {
	type curve struct{ Name, Points, Class string }
	type plot struct {
		V      *Verdict
		Curves []curve
	}
	points := func(y []float64) string {
		var b strings.Builder
		for i, v := range y {
			fmt.Fprintf(&b, "%.1f,%.1f ", 40+700*float64(i)/float64(max(len(y)-1, 1)), 210-200*v)
		}
		return b.String()
	}
	var plots []plot
	for i := range r.Verdicts {
		v := &r.Verdicts[i]
		p := plot{V: v, Curves: []curve{{"hot users", points(v.Hot), "hot"}, {"optimum", points(v.Optimum), "optimum"}}}
		for j := range v.Lines {
			if l := &v.Lines[j]; slices.Contains([]string{"smart", Default}, l.Controller) {
				p.Curves = append(p.Curves, curve{l.Controller, points(l.Alpha), l.Controller})
			}
		}
		plots = append(plots, p)
	}
	return document.Execute(w, map[string]any{"R": r, "Plots": plots})
}

var document = template.Must(template.New("allocator").Funcs(template.FuncMap{
	"percent": func(x float64) float64 { return 100 * x },
}).Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>grebe-bench allocator</title>
<style>
:root { color-scheme: light dark; --line: #8884; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .2rem .7rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } .wide { overflow-x: auto; }
svg { max-width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
polyline { fill: none; stroke-width: 2; } .hot { stroke: #9aa5ad; stroke-dasharray: 3 3; } .optimum { stroke: #d2691e; }
.smart { stroke: #7a5cc0; } .climb { stroke: #1c7c8c; }
</style></head><body>
<h1>One pool, two caches: who divides it best?</h1>
<p>Share of the memory that embeddings own, epoch by epoch of five seconds. {{.R.Costs}}</p>
{{range .Plots}}<h2>{{.V.Workload}}</h2>
<svg viewBox="0 0 760 240" width="760" role="img" aria-label="Shares over time">
<line x1="40" x2="740" y1="210" y2="210" stroke="currentColor"/>
<line x1="40" x2="40" y1="10" y2="210" stroke="currentColor"/>
<text x="34" y="214" text-anchor="end">0</text><text x="34" y="114" text-anchor="end">0.5</text>
<text x="34" y="16" text-anchor="end">1</text>
{{range $i, $c := .Curves}}<polyline class="{{$c.Class}}" points="{{$c.Points}}"/>{{end}}</svg>
<p><span style="color:#d2691e">optimum</span>, <span style="color:#1c7c8c">climb</span>,
<span style="color:#7a5cc0">smart</span>, dashed: share of requests from hot users</p>
<div class="wide"><table><tr><th>{{.V.Seeds}} seeds</th><th>P99 ms</th><th>in SLO</th>
<th>to best static</th><th>to optimum</th><th>gap</th></tr>
{{range .V.Lines}}<tr><td>{{.Controller}}</td><td>{{printf "%.1f" .P99}}</td>
<td>{{printf "%.2f" (percent .Within)}} %</td><td>{{.ToStatic}}</td><td>{{.ToOptimum}}</td>
<td>{{printf "%.3f" .Gap}}</td></tr>
{{end}}</table></div>{{end}}
</body></html>
`))

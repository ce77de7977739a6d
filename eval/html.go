package eval

import (
	"fmt"
	"html/template"
	"io"
)

// HTML writes the report as one page that needs nothing else.
func (r *Report) HTML(w io.Writer) error {
	type bar struct {
		Way              string
		Y, Width, From   float64
		To, Middle, Text float64
		Label            string
		Model            bool
	}
	bars := func(lines []Line, value func(*Line) Estimate) []bar {
		top := 0.0
		for i := range lines {
			top = max(top, value(&lines[i]).High)
		}
		if top == 0 {
			top = 1
		}
		const full = 420
		var out []bar
		for i := range lines {
			e := value(&lines[i])
			y := float64(i) * 30
			out = append(out, bar{
				Way: lines[i].Way, Y: y, Width: e.Value / top * full, From: 190 + e.Low/top*full, To: 190 + e.High/top*full,
				Middle: y + 10, Text: y + 15, Label: fmt.Sprintf("%.3f", e.Value), Model: lines[i].Model,
			})
		}
		return out
	}
	ndcg := func(l *Line) Estimate { return l.At[1].NDCG }
	recall := func(l *Line) Estimate { return l.At[1].Recall }
	return page.Execute(w, map[string]any{
		"R": r, "Ranking": bars(r.Ranking, ndcg), "Generation": bars(r.Generation, recall),
		"RankingHeight": 30 * len(r.Ranking), "GenerationHeight": 30 * len(r.Generation),
	})
}

var page = template.Must(template.New("eval").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>grebe eval</title>
<style>
:root { color-scheme: light dark; --line: #8884; --model: #1c7c8c; --base: #9aa5ad; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2.2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .7rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } small { opacity: .7; }
svg { max-width: 100%; height: auto; } svg text { font: 13px system-ui, sans-serif; fill: currentColor; }
.wide { overflow-x: auto; } .note { border-left: 3px solid var(--model); padding-left: .8rem; }
</style></head><body>
<h1>How good are the recommendations?</h1>
<p>{{.R.Date}}{{with .R.Device}}, {{.}}{{end}}{{with .R.Model}}<br>Model: {{.}}{{end}}<br>
Data: {{.R.Data}}, {{.R.Catalog}} items, {{.R.Users}} users.
{{if .R.UserTokens}}Prompts have {{printf "%.0f" .R.UserTokens}} tokens of history and
{{printf "%.1f" .R.ItemTokens}} per item.{{end}}</p>
{{range .R.Notes}}<p class="note">{{.}}</p>{{end}}
{{define "bars"}}{{range .}}<text x="180" y="{{.Text}}" text-anchor="end">{{.Way}}</text>
<rect x="190" y="{{.Y}}" width="{{.Width}}" height="20" rx="2" fill="var(--{{if .Model}}model{{else}}base{{end}})">
<title>{{.Way}}: {{.Label}}</title></rect>
<line x1="{{.From}}" x2="{{.To}}" y1="{{.Middle}}" y2="{{.Middle}}" stroke="currentColor" stroke-width="1.5"/>
<text x="625" y="{{.Text}}">{{.Label}}</text>
{{end}}{{end}}
{{define "rows"}}<div class="wide"><table><tr><th></th>
{{range (index . 0).At}}<th>Recall@{{.K}}</th><th>MRR@{{.K}}</th><th>NDCG@{{.K}}</th>{{end}}
<th>NDCG@10, expected</th></tr>
{{range .}}<tr><td>{{.Way}}</td>{{range .At}}
<td>{{printf "%.3f" .Recall.Value}}</td><td>{{printf "%.3f" .MRR.Value}}</td><td>{{printf "%.3f" .NDCG.Value}}<br>
<small>{{printf "%.3f" .NDCG.Low}}–{{printf "%.3f" .NDCG.High}}</small></td>{{end}}
<td>{{with .Expected}}{{printf "%.3f" .Value}}<br>
<small>{{printf "%.3f" .Low}}–{{printf "%.3f" .High}}</small>{{end}}</td></tr>
{{end}}</table></div>{{end}}
<h2>Ranking {{printf "%.0f" .R.Candidates}} candidates: NDCG@10</h2>
<svg viewBox="0 0 680 {{.RankingHeight}}" width="680" role="img" aria-label="NDCG at 10 of each way">
{{template "bars" .Ranking}}</svg>
{{template "rows" .R.Ranking}}
{{if .R.Generation}}<h2>Naming the next item of {{.R.Catalog}}: Recall@10</h2>
<svg viewBox="0 0 680 {{.GenerationHeight}}" width="680" role="img"
aria-label="Recall at 10 of each way">{{template "bars" .Generation}}</svg>
{{template "rows" .R.Generation}}{{end}}
{{if .R.Comparisons}}<h2>Ratios</h2>
<table><tr><th>metric</th><th>way</th><th>of</th><th>ratio</th><th>95 %</th></tr>
{{range .R.Comparisons}}<tr><td>{{.Metric}}</td><td>{{.Way}}</td><td>{{.Over}}</td>
<td>{{if .Ratio.Undefined}}n/a</td><td>{{else}}{{printf "%.3f" .Ratio.Value}}</td>
<td>{{printf "%.3f" .Ratio.Low}}–{{printf "%.3f" .Ratio.High}}{{end}}</td></tr>
{{end}}</table>{{end}}
{{if .R.Orders}}<h2>The two orders of the prompt</h2>
<table><tr><th>model</th><th>metric</th><th>user-first</th><th>item-first</th>
<th>item-first of user-first</th><th>in the configuration</th></tr>
{{range .R.Orders}}<tr><td>{{.Model}}</td><td>{{.Metric}}</td><td>{{.User}}</td>
<td>{{.Item}}</td><td>{{.Ratio}}</td><td><code>{{.Line}}</code></td></tr>
{{end}}</table>{{end}}
<p><small>Lines on the bars are 95 % intervals by bootstrap over users. Expected: over what the user takes, by
the true probabilities.</small></p>
</body></html>
`))

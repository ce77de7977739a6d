package prefill

import (
	"fmt"
	"io"

	"grebe/bench/report"
)

// table writes lines as they come, or nothing until the JSON at the end.
type table struct {
	w    io.Writer
	json bool
	err  error // the first failed write
}

func newTable(w io.Writer, asJSON bool, r *Report) *table {
	t := &table{w: w, json: asJSON}
	t.printf("%s\n", r.Device)
	for _, l := range r.Loads {
		t.printf("%-4s loaded in %.2f s, %.2f GB held for a checkpoint of %.2f GB\n",
			l.Format, l.Seconds, float64(l.WeightBytes)/1e9, float64(l.CheckpointBytes)/1e9)
	}
	t.printf("\nprefill, medians; products: GFLOP/s of a layer's products alone at as many rows, in the same run\n")
	t.printf("%-4s %7s %9s %10s %8s %9s %6s %15s %6s\n",
		"type", "tokens", "ms", "tokens/s", "GFLOP/s", "products", "ratio", "best: tokens/s", "ratio")
	return t
}

func (t *table) printf(format string, args ...any) {
	if t.json || t.err != nil {
		return
	}
	_, t.err = fmt.Fprintf(t.w, format, args...)
}

func (t *table) lines(lines []Line) {
	for _, l := range lines {
		t.printf("%-4s %7d %9.1f %10.0f %8.0f %9.0f %6.2f %15.0f %6.2f\n", l.Format, l.Tokens, l.Seconds*1000,
			l.TokensPerSecond, l.GFLOPS, l.GemmGFLOPS, l.Ratio, l.BestTokensPerSecond, l.BestRatio)
	}
}

func (t *table) finish(r *Report) error {
	if t.json {
		return report.JSON(t.w, r)
	}
	if len(r.Ranks) > 0 {
		t.printf("\nrank: a user of %d tokens, %d items of %d; medians in ms\n", userTokens, candidates, itemTokens)
		t.printf("%-4s %-6s %7s %8s %7s %9s %7s %9s\n", "type", "prefix", "tokens", "prompt", "queue", "compute", "score",
			"total")
	}
	for _, x := range r.Ranks {
		t.printf("%-4s %-6s %7d %8.2f %7.2f %9.1f %7.2f %9.1f\n",
			x.Format, x.Prefix, x.Tokens, x.PromptMS, x.QueueMS, x.Compute, x.ScoreMS, x.TotalMS)
	}
	return t.err
}

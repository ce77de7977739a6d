package proto

import (
	"fmt"
	"io"
	"text/tabwriter"

	"grebe/bench/report"
	"grebe/blend"
)

// JSON prints the report for programs.
func (r *Report) JSON(w io.Writer) error {
	return report.JSON(w, r)
}

// Text prints the report for people.
func (r *Report) Text(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(out, "%s on %s\n", r.Model, r.Device)
	fmt.Fprintf(out, "pool: %d prototypes (%.1f MiB of KV) of %d histories, made in %.0f s\n", r.Prototypes,
		float64(r.PoolBytes)/(1<<20), r.Histories, r.BuildSeconds)
	fmt.Fprintf(out, "%d users who are not in the pool, %d tokens: %.1f %% may have prototypes, %.1f %% are matched "+
		"(%.1f %% of those that may), %.1f at once\n\n",
		r.Users, r.Tokens, 100*r.Natural, 100*r.Matched, 100*r.Matched/max(r.Natural, 1e-9), r.Runs)
	fmt.Fprintln(w, "layer\tK error\tV error\tcos K\tcos V\tsame token, any context: K\tV\tcos K\tcos V")
	for i, l := range r.Layers {
		fmt.Fprintf(w, "%d\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\t%.3f\n", i, l.K, l.V, l.KCos, l.VCos, l.StaticK,
			l.StaticV, l.StaticKC, l.StaticVC)
	}
	w.Flush()
	fmt.Fprintf(out, "\nkeys and values of all layers have cosines of %.2f and more: %.1f %% of matches; of the same "+
		"token in any context %.1f %%\n",
		near, 100*r.Near, 100*r.NearStatic)
	fmt.Fprintln(out, "(by the cosine of tokens' own embeddings, which the paper's 93 % are of, all of both are "+
		"identical)")
	fmt.Fprint(out, "error by drift, quarters of the matches: ")
	for _, q := range r.Drift {
		fmt.Fprintf(out, " %.3f at drift %.3f ", q.Error, q.Drift)
	}
	fmt.Fprintf(out, "\ndrift within %.2f, which is served: %.1f %% of the matches, error %.3f\n", blend.DriftLimit,
		100*r.Within, r.Served)
	if l := r.Lookup; l != nil {
		fmt.Fprintf(out, "lookups among %d prototypes, %d threads: %.2f million tokens/s (%.2f to %.2f in %d rounds), %.0f "+
			"ns of a processor each; recall@1 %.3f of tokens that have one, %.3f got any; mean drift %.3f, of the nearest "+
			"%.3f\n",
			l.Prototypes, l.Threads, l.PerSecond/1e6, l.Slowest/1e6, l.Fastest/1e6, rounds, l.Nanos, l.Recall, l.Found, l.Drift,
			l.BestDrift)
	}
	return nil
}

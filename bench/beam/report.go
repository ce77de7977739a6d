package beam

import (
	"fmt"
	"io"

	"grebe/bench/report"
)

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

func (p *printer) finish(found any, checks []Check) error {
	if p.json {
		return report.JSON(p.w, found)
	}
	p.printf("\n")
	for _, c := range checks {
		verdict := "FAIL"
		if c.OK {
			verdict = "PASS"
		}
		p.printf("%s  %s: %s\n", verdict, c.What, c.Got)
	}
	return p.err
}

func (w *Way) interval() string { return fmt.Sprintf("%.2f [%.2f, %.2f]", w.Over, w.Low, w.High) }

func (p *printer) attentionHead(device string) {
	p.printf("%s\n\nattention of one layer, 16/8 heads of 128 (Qwen3-0.6B, 1.7B), bf16, ms\n", device)
	p.printf("paged: each beam goes through the prompt's pages; packed: through a copy that was laid out once for all\n")
	p.printf("%7s %7s %9s %9s %22s %9s %22s\n", "context", "width", "grebe", "paged", "over grebe", "packed", "over grebe")
}

func (p *printer) attention(a *Attention) {
	g, v, k := &a.Ways[0], &a.Ways[1], &a.Ways[2]
	p.printf("%7d %7d %9.2f %9.2f %22s %9.2f %22s\n", a.Context, a.Width, g.Ms, v.Ms, v.interval(), k.Ms, k.interval())
}

func (p *printer) memoryHead() {
	p.printf("\nKV of a request with three codes, 28 layers, MiB\n")
	p.printf("beams: width × rounds tokens; paged: pages of 16 tokens beside the shared ones of the prompt; separate: " +
		"a prompt per beam\n")
	p.printf("%7s %7s %7s %9s %9s %9s %10s\n", "context", "width", "rounds", "prompt", "beams", "paged", "separate")
}

func (p *printer) memory(m *Memory) {
	mib := func(n int64) float64 { return float64(n) / (1 << 20) }
	p.printf("%7d %7d %7d %9.1f %9.1f %9.1f %10.1f\n", m.Context, m.Width, m.Rounds,
		mib(int64(m.Prompt)), mib(int64(m.Beams)), mib(int64(m.Paged)), mib(m.Separate))
}

func (p *printer) selectionHead(o *Options) {
	p.printf("\nselection from %d × %d logits to %d beams, one thread, ms and times that of Grebe\n", o.beams, o.logits,
		o.beams)
	p.printf("plain heap computes its own normalisers; sort, merge and tuned heap are given Grebe's kernels for them\n")
	p.printf("%-7s %-6s %8s %9s %7s %9s %7s %9s %7s %9s %7s\n", "logits", "valid", "grebe", "sort", "", "heap", "",
		"merge", "", "tuned", "")
}

func (p *printer) selection(s *Selection) {
	p.printf("%-7s %-6s %8.2f", s.Logits, s.Valid, s.Ways[0].Ms)
	for _, w := range s.Ways[1:] {
		p.printf(" %9.2f %6.1f×", w.Ms, w.Over)
	}
	p.printf("\n")
}

func (p *printer) recommendHead(c *crowd, o *Options) {
	p.printf("\n%s, %s\nrecommendations of %d from %d items of three codes of %d, a prompt of %d tokens, ms\n",
		c.device.Name(), c.describe(), wanted, o.items, levelSize, c.context)
	p.printf("free: without the valid-path constraint; rows: beams computed per request\n")
	p.printf("%7s %-10s %12s %7s %9s %7s %22s %13s\n", "width", "user", "constrained", "rows", "free", "rows",
		"over constrained", "free invalid")
}

func (p *printer) recommend(x *Recommend) {
	p.printf("%7d %-10s %12.2f %7d %9.2f %7d %22s %12.1f%%\n", x.Width, x.User, x.Ways[0].Ms, x.Rows[0], x.Ways[1].Ms,
		x.Rows[1],
		x.Ways[1].interval(), 100*x.Invalid)
}

func (p *printer) throughputHead() {
	p.printf("\nclosed loops of clients with returning users\n")
	p.printf("%7s %8s %11s %9s %9s %13s %12s\n", "width", "clients", "requests/s", "P50 ms", "P99 ms", "rounds/batch",
		"engine busy")
}

func (p *printer) throughput(t *Throughput) {
	p.printf("%7d %8d %11.2f %9.1f %9.1f %13.2f %11.0f%%\n", t.Width, t.Clients, t.Rate, t.P50, t.P99, t.PerBatch,
		100*t.Busy)
}

func (p *printer) dataHead(s *system, x *Data) {
	p.printf("%s: %d items on %d paths of %d codes, %d test users; %s, %s\n", x.Set, x.Items, x.Paths, x.Depth, x.Users,
		s.device.Name(), s.describe())
}

func (p *printer) data(x *Data) {
	p.printf("  constrained: %d items to %d users, %d beams: %d not real, %d twice, %d seen before, %d users short; "+
		"%.0f requests/s\n",
		x.Returned, x.Users, x.Width, x.Unreal, x.Twice, x.Seen, x.Short, x.Rate)
	p.printf("  free: %d of %d paths are no items (%.3f %%), %d users are left with none\n",
		x.FreeInvalid, x.FreePaths, 100*float64(x.FreeInvalid)/float64(max(x.FreePaths, 1)), x.FreeNothing)
}

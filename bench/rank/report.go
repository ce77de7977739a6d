package rank

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"grebe/bench/load"
	"grebe/bench/report"
	"grebe/workload"
)

// Report is what Run measured.
type Report struct {
	Date          string      `json:"date"`
	Device        string      `json:"device"`
	Model         string      `json:"model"`
	Format        string      `json:"format"`
	TokenScale    float64     `json:"token_scale"`
	Clients       int         `json:"clients"`
	BlockRequests int         `json:"block_requests"`
	WarmupBlocks  int         `json:"warmup_blocks"`
	Blocks        int         `json:"blocks"`
	Start         string      `json:"start"`   // cold or indexed: how the main comparison's caches begin
	Counted       bool        `json:"counted"` // nothing was computed
	DryWarmup     bool        `json:"dry_warmup"`
	Workloads     []*Workload `json:"workloads"`
	Checks        []Check     `json:"checks"`
}

// Workload is the comparison on one workload.
type Workload struct {
	Name      string         `json:"name"`
	Users     int            `json:"users"`
	Items     int            `json:"items"`
	Scale     float64        `json:"scale"` // of users and items
	Share     float64        `json:"memory_share"`
	Bytes     int64          `json:"memory_bytes"` // of each policy's cache
	ItemBytes int64          `json:"item_bytes"`   // that all items take
	Stream    workload.Stats `json:"stream"`
	Bound     float64        `json:"bound_tokens"` // per request, with memory for everything and the future known
	// MemoryBound is Bound with this memory, all items in it.
	MemoryBound float64  `json:"memory_bound_tokens"`
	Pressure    bool     `json:"pressure"` // policies of the cache are compared
	Policies    []Policy `json:"policies"`
	Cold        []Policy `json:"cold,omitempty"` // counted from a cold start, where Policies start indexed
	Sweep       []Sweep  `json:"sweep,omitempty"`
}

// Policy is what one policy did. Tokens are means per measured request.
type Policy struct {
	Name           string           `json:"name"`
	Policy         string           `json:"policy"`
	Evicts         string           `json:"evicts,omitempty"` // who leaves the cache
	Indexed        int              `json:"indexed_items"`
	IndexSeconds   float64          `json:"index_seconds"`
	PromptTokens   float64          `json:"prompt_tokens"`
	ComputedTokens float64          `json:"computed_tokens"`
	WorkMs         float64          `json:"work_ms,omitempty"` // of a counted request, at a TFLOP/s
	Reused         float64          `json:"reused"`            // share of the prompts' tokens
	UserFirst      float64          `json:"user_first"`
	Decisions      map[string]int64 `json:"decisions,omitempty"`
	PoolBytes      int64            `json:"pool_bytes"` // in use at the end
	UserBytes      int64            `json:"user_bytes"`
	ItemBytes      int64            `json:"item_bytes"`
	Users          int              `json:"cached_users"`
	Items          int              `json:"cached_items"`
	EvictedUsers   int64            `json:"evicted_users"`
	EvictedItems   int64            `json:"evicted_items"`
	Saturated      load.Result      `json:"saturated"`
	OverRE         load.MetricRatio `json:"over_re"` // throughput
	OverUP         load.MetricRatio `json:"over_up"`
	P99OverFirst   load.MetricRatio `json:"p99_over_first"` // block by block
	Open           *load.Result     `json:"open,omitempty"`
	Found          *load.Found      `json:"found,omitempty"`
}

// Sweep is the tokens that the policies compute per request with another size of memory.
type Sweep struct {
	Share    float64            `json:"share"`
	Bytes    int64              `json:"bytes"`
	Computed map[string]float64 `json:"computed_tokens"`
}

// printer writes tables as they come, or nothing until the JSON at the end.
type printer struct {
	w    io.Writer
	json bool
	err  error // the first failed write
}

func newPrinter(w io.Writer, asJSON bool) *printer { return &printer{w: w, json: asJSON} }

func (p *printer) printf(format string, args ...any) {
	if p.json || p.err != nil {
		return
	}
	_, p.err = fmt.Fprintf(p.w, format, args...)
}

// table writes rows of cells, the first row as the head.
func (p *printer) table(rows [][]string) {
	if p.json || p.err != nil {
		return
	}
	t := report.Table(p.w)
	for _, r := range rows {
		fmt.Fprintln(t, strings.Join(r, "\t")+"\t")
	}
	p.err = t.Flush()
}

func (p *printer) finish(found any) error {
	if !p.json || p.err != nil {
		return p.err
	}
	return report.JSON(p.w, found)
}

func (p *printer) head(r *Report) {
	p.printf("%s, %s, %s\nmodel %s\n", r.Date, r.Device, r.Format, r.Model)
	if r.Counted {
		p.printf("Lengths ×%g. Tokens are counted, nothing is computed; %d requests after %d to warm up, one at a time.\n",
			r.TokenScale, r.Blocks*r.BlockRequests, r.WarmupBlocks*r.BlockRequests)
	} else {
		p.printf("Lengths ×%g. %d clients in a closed loop; %d blocks of %d requests after %d to warm up, policies in "+
			"turns.\n", r.TokenScale, r.Clients, r.Blocks, r.BlockRequests, r.WarmupBlocks)
	}
	if r.DryWarmup {
		p.printf("All of the warm-up but one block filled the caches without computing.\n")
	}
	if r.Start == Cold {
		p.printf("Caches start cold: items are computed when first asked for.\n")
	} else {
		p.printf("Items were computed before the first request for the policies that can use them; \"cold\" columns are " +
			"counted without that.\n")
	}
}

func (p *printer) workload(r *Workload) {
	s := &r.Stream
	p.printf("\n%s: %d users, %d items (×%.4g), %d requests in %.0f minutes of the stream; per request %.0f user and "+
		"%.0f item tokens\n",
		r.Name, r.Users, r.Items, r.Scale, s.Requests, s.Span.Minutes(), s.RequestUserTokens, s.RequestItemTokens)
	p.printf("memory of each cache: %s, room for all items (%s) and %.3g %% of the users' tokens\n", mib(r.Bytes),
		mib(r.ItemBytes), 100*r.Share)
	timed := r.Policies[0].Saturated.Requests > 0
	head := []string{""}
	if timed {
		head = append(head, "requests/s")
		head = append(head, r.ratios()...)
		head = append(head, "P50 ms", "P99 ms")
		if r.Pressure {
			head = append(head, "P99 of blocks")
		}
	}
	head = append(head, "tokens", "computed", "reused", "user first", "cached", "users", "items", "evicted")
	if r.Cold != nil {
		head = append(head, "cold: computed", "reused", "user first")
	}
	rows := [][]string{head}
	for i := range r.Policies {
		l := &r.Policies[i]
		row := []string{l.Name}
		if timed {
			row = append(row, fmt.Sprintf("%.1f", l.Saturated.Throughput), interval(&l.OverUP))
			if !r.Pressure {
				row = append(row, interval(&l.OverRE))
			}
			row = append(row, fmt.Sprintf("%.1f", l.Saturated.Latency.P50), fmt.Sprintf("%.1f", l.Saturated.Latency.P99))
			if r.Pressure {
				row = append(row, interval(&l.P99OverFirst))
			}
		}
		row = append(row,
			fmt.Sprintf("%.0f", l.PromptTokens), fmt.Sprintf("%.0f", l.ComputedTokens), percent(l.Reused), percent(l.UserFirst),
			mib(l.PoolBytes), fmt.Sprint(l.Users), fmt.Sprint(l.Items), fmt.Sprintf("%d+%d", l.EvictedUsers, l.EvictedItems),
		)
		if r.Cold != nil {
			c := &r.Cold[i]
			row = append(row, fmt.Sprintf("%.0f", c.ComputedTokens), percent(c.Reused), percent(c.UserFirst))
		}
		rows = append(rows, row)
	}
	p.table(rows)
	if !r.Pressure {
		p.printf("with the future known no choice computes less than %.0f tokens in this memory (all items kept), %.0f "+
			"with room for everything\n", r.MemoryBound, r.Bound)
	}
	for i := range r.Policies {
		l := &r.Policies[i]
		if l.Indexed > 0 {
			p.printf("%s: %d items indexed in %.1f s\n", l.Name, l.Indexed, l.IndexSeconds)
		}
		p.decided(l, "")
		if r.Cold != nil {
			p.decided(&r.Cold[i], ", cold,")
		}
	}
	p.openLoop(r)
	p.found(r)
	p.sweep(r)
}

// decided prints why a policy chose its orders.
func (p *printer) decided(l *Policy, start string) {
	if len(l.Decisions) < 2 {
		return
	}
	p.printf("%s%s decided:", l.Name, start)
	for _, why := range slices.Sorted(maps.Keys(l.Decisions)) {
		p.printf(" %s %d", why, l.Decisions[why])
	}
	p.printf("\n")
}

// ratios are the heads of the columns with ratios.
func (r *Workload) ratios() []string {
	if r.Pressure {
		return []string{"over " + r.Policies[0].Name}
	}
	return []string{"over UP", "over RE"}
}

func (p *printer) openLoop(r *Workload) {
	if len(r.Policies) == 0 || r.Policies[0].Open == nil {
		return
	}
	first := r.Policies[0].Open
	p.printf("open loop: %d requests to each as a Poisson process of %.1f per second, in turns; the SLO is %.0f ms from "+
		"the intended time of sending\n",
		first.Requests, first.Offered, first.SLO)
	rows := [][]string{{"", "answered/s", "within SLO", "P50 ms", "P90 ms", "P99 ms"}}
	for i := range r.Policies {
		o := r.Policies[i].Open
		rows = append(rows, []string{
			o.Name, fmt.Sprintf("%.1f", o.Throughput), percent(float64(o.Good) / float64(max(o.Requests, 1))),
			fmt.Sprintf("%.1f", o.Latency.P50), fmt.Sprintf("%.1f", o.Latency.P90), fmt.Sprintf("%.1f", o.Latency.P99),
		})
	}
	p.table(rows)
}

func (p *printer) found(r *Workload) {
	if len(r.Policies) < 2 || r.Policies[0].Found == nil {
		return
	}
	p.printf("sustained rate: the highest of a Poisson process with 99 %% of the requests within the SLO, their " +
		"deadline; searched in turns\n")
	head := append(append([]string{"", "sustains/s", "fails at/s"}, r.ratios()...), "rates tried", "requests at it",
		"P50 ms", "P99 ms")
	rows := [][]string{head}
	over := func(f *load.Found, base int) string {
		if rate := r.Policies[base].Found.Rate; rate > 0 {
			return fmt.Sprintf("%.2f", f.Rate/rate)
		}
		return "-"
	}
	for i := range r.Policies {
		f := r.Policies[i].Found
		row := []string{f.Name, "none", fmt.Sprintf("%.1f", f.Limit)}
		if f.Rate > 0 {
			row[1] = fmt.Sprintf("%.1f", f.Rate)
		}
		if r.Pressure {
			row = append(row, over(f, 0))
		} else {
			row = append(row, over(f, 1), over(f, 0))
		}
		tried := fmt.Sprint(len(f.Trials))
		if f.Cut {
			tried += ", cut"
		}
		rows = append(rows, append(row, tried,
			fmt.Sprint(f.Best.Requests), fmt.Sprintf("%.1f", f.Best.Latency.P50), fmt.Sprintf("%.1f", f.Best.Latency.P99)))
	}
	p.table(rows)
}

func (p *printer) sweep(r *Workload) {
	if len(r.Sweep) == 0 {
		return
	}
	p.printf("tokens computed per request by memory (counted, nothing computed)\n")
	head := []string{"users that fit", "memory"}
	for i := range r.Policies {
		head = append(head, r.Policies[i].Name)
	}
	rows := [][]string{head}
	for _, s := range r.Sweep {
		row := []string{fmt.Sprintf("%.3g %%", 100*s.Share), mib(s.Bytes)}
		for i := range r.Policies {
			row = append(row, fmt.Sprintf("%.0f", s.Computed[r.Policies[i].Name]))
		}
		rows = append(rows, row)
	}
	p.table(rows)
}

func interval(m *load.MetricRatio) string {
	return fmt.Sprintf("%.2f [%.2f, %.2f]", m.Ratio, m.Low, m.High)
}

func percent(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }

func mib(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

package rank

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// Cell is one stream, one seed and one start, counted: how many tokens auto computes beside the best other policy.
type Cell struct {
	Workload string  `json:"workload"`
	Start    string  `json:"start"` // cold or indexed
	Seed     uint64  `json:"seed"`
	Auto     float64 `json:"auto_tokens"` // per request
	Best     float64 `json:"best_tokens"`
	Policy   string  `json:"best_policy"`
	Ratio    float64 `json:"ratio"` // of tokens
	// Work is the same ratio by FLOPs, to the policy that takes the fewest: auto minimises time, and a token that
	// attends to many keys takes longer than one that attends to few.
	Work float64 `json:"work_ratio"`
	OK   bool    `json:"ok"`
}

// CellReport is what Cells counted.
type CellReport struct {
	Date     string `json:"date"`
	Model    string `json:"model"`
	Requests int    `json:"requests"` // counted per cell, after the warm-up
	Cells    []Cell `json:"cells"`
}

// Passed reports whether every cell keeps the bar.
func (r *CellReport) Passed() bool {
	return !slices.ContainsFunc(r.Cells, func(c Cell) bool { return !c.OK })
}

// Cells counts tokens on every workload, with every seed, from a cold and from an indexed start, and writes auto's
// ratio to the best other policy of each, or the report as JSON, to w.
func Cells(ctx context.Context, o Options, seeds []uint64, w io.Writer) (*CellReport, error) {
	o.Count = true
	if err := o.setDefaults(); err != nil {
		return nil, fmt.Errorf("bench rank: %w", err)
	}
	if !slices.Contains(o.Policies, "predicted") {
		return nil, fmt.Errorf("bench rank: cells compare predicted with others, it is not among the policies")
	}
	sys, err := open(&o)
	if err != nil {
		return nil, fmt.Errorf("bench rank: %w", err)
	}
	defer sys.close()
	perBlock, _ := o.blocks()
	r := &CellReport{Date: time.Now().UTC().Format(time.DateOnly), Model: sys.describe(), Requests: perBlock * o.Blocks}
	for _, o.Seed = range seeds {
		for _, name := range o.Workloads {
			one, err := sys.workload(ctx, &o, name)
			if err != nil {
				return r, fmt.Errorf("bench rank: %s, seed %d: %w", name, o.Seed, err)
			}
			if one.Cold != nil {
				r.add(one.Name, Cold, o.Seed, one.Cold)
			}
			r.add(one.Name, o.start(), o.Seed, one.Policies)
		}
	}
	p := newPrinter(w, o.JSON)
	p.cells(r, seeds)
	return r, p.finish(r)
}

func (r *CellReport) add(workload, start string, seed uint64, policies []Policy) {
	auto, best := rival(policies)
	least := math.Inf(1)
	for i := range policies {
		if l := &policies[i]; l != auto {
			least = min(least, l.WorkMs)
		}
	}
	c := Cell{
		Workload: workload, Start: start, Seed: seed, Auto: auto.ComputedTokens, Best: best.ComputedTokens, Policy: best.Name,
		Ratio: auto.ComputedTokens / best.ComputedTokens, Work: auto.WorkMs / least,
	}
	c.OK = c.Ratio <= maxComputed
	r.Cells = append(r.Cells, c)
}

func (p *printer) cells(r *CellReport, seeds []uint64) {
	p.printf("%s, model %s\n", r.Date, r.Model)
	p.printf("Tokens that auto computes over those of the best other policy (in brackets: the same by FLOPs); %d "+
		"requests counted per cell.\n",
		r.Requests)
	head := []string{"", "start"}
	for _, s := range seeds {
		head = append(head, fmt.Sprintf("seed %d", s))
	}
	rows := [][]string{head}
	at := map[string]int{}
	missed := 0
	for _, c := range r.Cells {
		key := c.Workload + " " + c.Start
		if _, ok := at[key]; !ok {
			at[key] = len(rows)
			rows = append(rows, []string{c.Workload, c.Start})
		}
		cell := fmt.Sprintf("%.0f / %.0f %s = %.3f [%.3f]", c.Auto, c.Best, c.Policy, c.Ratio, c.Work)
		if !c.OK {
			cell += " FAIL"
			missed++
		}
		rows[at[key]] = append(rows[at[key]], cell)
	}
	p.table(rows)
	verdict := "PASS"
	if missed > 0 {
		verdict = "FAIL"
	}
	p.printf("%s  auto computes at most %.2f× the tokens of the best other policy in %d of %d cells\n",
		verdict, maxComputed, len(r.Cells)-missed, len(r.Cells))
}

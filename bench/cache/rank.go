package cache

import (
	"context"
	"fmt"

	"grebe/bench/rank"
	"grebe/bench/rivals"
)

// rank counts what eviction does to rankings that reuse users.
func (r *Report) rank(ctx context.Context, o *Options, _ []*trace, p *printer) error {
	p.printf("\nrankings that reuse users, equal memory: tokens computed in the second half (counted, not computed)\n")
	p.printf("%-10s %7s %-10s %12s %12s %10s %7s %9s\n", "workload", "users", "policy", "prompt", "computed", "to LRU",
		"models", "RMS log2")
	var lru int
	worst, best := 0.0, 0.0
	var err error
	for _, name := range rankWorkloads {
		var lines []rank.Eviction
		count := rank.EvictionOptions{Workload: name, Policies: []string{"lru", "laru", rivals.LARUCost, "default"},
			Dir: o.Dir}
		lines, err = rank.CountEvictions(ctx, count, func(e *rank.Eviction) {
			if e.Policy == "lru" {
				lru = e.Computed
			}
			change := float64(e.Computed)/float64(lru) - 1
			if e.Policy == "default" {
				worst, best = max(worst, change), min(best, change)
			}
			p.printf("%-10s %6g%% %-10s %12d %12d %9.2f%% %7d %9.2f\n", e.Workload, 100*e.Share, e.Policy, e.Prompt, e.Computed,
				100*change, e.Models, e.RMS)
		})
		r.Rank = append(r.Rank, lines...)
		if err != nil {
			return err
		}
	}
	r.check(best < 0 && worst <= 0.01, "rankings: default computes fewer tokens than LRU at equal memory, never 1 % more",
		"%s", fmt.Sprintf("%+.2f %% to %+.2f %%", 100*best, 100*worst))
	return nil
}

var rankWorkloads = []string{"books", "beauty"}

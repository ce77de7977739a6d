package main

import (
	"strings"

	"grebe/bench/cache"
	"grebe/internal/cli"
)

type cacheCmd struct {
	Data     string    `type:"path" default:"../shared/data/traces" placeholder:"DIR"`
	Traces   []string  `placeholder:"NAME"`
	Trace    string    `type:"path" help:"Replay your own trace: --parts floor,replay by default." placeholder:"FILE"`
	Format   string    `default:"text" want:"one of text, binary, arc, mooncake" placeholder:"FORMAT"`
	Sizes    []float64 `want:"above 0 and at most 1" placeholder:"SHARE"`
	Policies []string  `help:"Policies beside the optimum; default all." placeholder:"NAME"`
	Parts    []string  `want:"one of table, floor, replay, sweep, train, rank" placeholder:"PART"`
	XGBoost  bool      `name:"xgboost" help:"Also train XGBoost on the same samples (Debian: python3-xgboost)."`
	Python   string    `help:"The Python that has XGBoost; default python3." placeholder:"FILE"`
	SVG      string    `name:"svg" type:"path" want:"a file that can be written" placeholder:"FILE"`
	Check    bool      `help:"Fail when a target is not reached."`
	JSON     bool      `name:"json" help:"Print JSON."`
}

func (cacheCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"data":   "Folder of the real traces; default ${default}.",
		"traces": "Traces to replay, as listed below; default all.",
		"format": "Of --trace: text (a key per line), binary (big-endian 64-bit keys), arc (lines of first key and " +
			"count) or mooncake (JSON lines with hash_ids); default ${default}.",
		"sizes": "Shares of the distinct keys that the cache holds; default 0.01,0.03,0.1,0.3.",
		"parts": "table, floor, replay, sweep, train, rank; default all.",
		"svg":   "Write the plot of the error sweep here.",
	}
}

func (cacheCmd) Help() string {
	return `Replays real and generated traces through every eviction policy, beside the offline optimum. Predictions are
learnt on the way. Then perfect predictions are made wrong, from 0 to 100 %. Everything takes more than an hour on two
cores; the options choose.

Traces: ` + strings.Join(cache.Traces(), ", ") + `.

The part "floor" compares the default policy with LRU at every request: after 5,000 requests its hits so far must be 99
% of LRU's so far, or at most 10 fewer. On pure loops it must close half of the gap from LRU to the optimum. --check
exits 1 when a line fails.

Examples:

    grebe-bench cache --parts floor --check
    grebe-bench cache --trace requests.txt --format text
    grebe-bench cache --traces scarab-recs --sizes 0.01,0.1 --policies lru,sieve,laru,default`
}

func (c *cacheCmd) Run(w *cli.World) error {
	o := cache.Options{
		Data: c.Data, Traces: c.Traces, File: c.Trace, Format: c.Format, Sizes: c.Sizes, Policies: c.Policies, Parts: c.Parts,
		XGBoost: c.XGBoost, Python: c.Python,
		SVG: c.SVG, JSON: c.JSON,
	}
	if err := o.Validate(); err != nil {
		return cli.Usage(err)
	}
	r, err := cache.Run(w.Ctx, o, w.Stdout)
	if err == nil && c.Check && !cache.Passed(r.Checks) {
		return cli.ErrReported
	}
	return err
}

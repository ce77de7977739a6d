package main

import (
	"strings"

	"grebe/bench/cache"
	"grebe/internal/cli"
)

type cacheCmd struct {
	Data     string    `type:"path" default:"../shared/data/traces" placeholder:"DIR"`
	Traces   []string  `help:"Traces from the list above; default all." placeholder:"NAME"`
	Trace    string    `type:"path" placeholder:"FILE"`
	Format   string    `default:"text" want:"one of text, binary, arc, mooncake" placeholder:"FORMAT"`
	Sizes    []float64 `want:"above 0 and at most 1" placeholder:"SHARE"`
	Policies []string  `help:"Policies to compare with the optimum; default all." placeholder:"NAME"`
	Parts    []string  `want:"one of table, floor, replay, sweep, train, rank" placeholder:"PART"`
	XGBoost  bool      `name:"xgboost" help:"Also train XGBoost on the same samples (Debian: python3-xgboost)."`
	Python   string    `help:"Python that has XGBoost; default python3." placeholder:"FILE"`
	SVG      string    `name:"svg" type:"path" want:"a file that can be written" placeholder:"FILE"`
	Check    bool      `help:"Exit with 1 if a target is missed."`
	JSON     bool      `name:"json" help:"Print JSON."`
}

func (cacheCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"data":  "Folder of the real traces; default ${default}.",
		"trace": "Replay a trace of your own. --parts is then floor,replay by default.",
		"format": "Format of --trace: text (a key per line), binary (big-endian 64-bit keys), arc (first key and " +
			"count per line) or mooncake (JSON lines with hash_ids); default ${default}.",
		"sizes": "Cache sizes, as shares of the distinct keys; default 0.01,0.03,0.1,0.3.",
		"parts": "Parts from the list above; default all.",
		"svg":   "Also write the plot of the part sweep to this file.",
	}
}

func (cacheCmd) Help() string {
	return `Compares eviction policies on real and generated traces with LRU and the offline optimum. Policies that learn
do so during the replay. All parts take more than an hour on two cores.

    table   published hit rates of LRU, SIEVE and the optimum, to check the
            replay
    floor   the default policy against LRU, request by request: after 5,000
            requests it must always have 99 % of LRU's hits, or at most 10
            fewer. On pure loops it must close half of the gap from LRU to the
            optimum.
    replay  hit rates of all policies, and the time of a lookup
    sweep   perfect predictions of which 0 to 100 % are made wrong
    train   time to train the predictors and to predict
    rank    rankings with a real model behind each policy

Traces: ` + strings.Join(cache.Traces(), ", ") + `.

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

package main

import "grebe/bench/cache"

type benchCacheCmd struct {
	Data     string    `type:"path" default:"../shared/data/traces" help:"Folder of the real traces; default ${default}." placeholder:"DIR"`
	Traces   []string  `want:"one of scarab-recs, mooncake-conversation, mooncake-synthetic, zipf, scans, loops, drift" help:"scarab-recs, mooncake-conversation, mooncake-synthetic, zipf, scans, loops, drift; default all." placeholder:"NAME"`
	Sizes    []float64 `want:"above 0 and at most 1" help:"Shares of the distinct keys that the cache holds; default 0.01,0.03,0.1,0.3." placeholder:"SHARE"`
	Policies []string  `help:"Policies beside the optimum; default all." placeholder:"NAME"`
	Parts    []string  `want:"one of table, replay, sweep, train, rank" help:"table, replay, sweep, train, rank; default all." placeholder:"PART"`
	XGBoost  bool      `name:"xgboost" help:"Also train XGBoost on the same samples (Debian: python3-xgboost)."`
	Python   string    `help:"The Python that has XGBoost; default python3." placeholder:"FILE"`
	SVG      string    `name:"svg" type:"path" want:"a file that can be written" help:"Write the plot of the error sweep here." placeholder:"FILE"`
	Check    bool      `help:"Fail when a target is not reached."`
	JSON     bool      `name:"json" help:"Print JSON."`
}

func (benchCacheCmd) Help() string {
	return `Replays real and generated traces through every eviction policy, beside the offline optimum. Predictions are learnt
on the way. Then perfect predictions are made wrong, from 0 to 100 %. Everything takes more than an hour on two cores; the options choose.

Example:

    grebe bench cache --traces scarab-recs --sizes 0.01,0.1 --policies lru,sieve,laru,default`
}

func (c *benchCacheCmd) Run(w *world) error {
	o := cache.Options{
		Data: c.Data, Traces: c.Traces, Sizes: c.Sizes, Policies: c.Policies, Parts: c.Parts, XGBoost: c.XGBoost, Python: c.Python,
		SVG: c.SVG, JSON: c.JSON,
	}
	if err := o.Validate(); err != nil {
		return usageError{err}
	}
	r, err := cache.Run(w.ctx, o, w.stdout)
	if err == nil && c.Check && !cache.Passed(r.Checks) {
		return errReported
	}
	return err
}

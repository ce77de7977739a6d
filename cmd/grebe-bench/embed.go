package main

import (
	"time"

	"grebe/bench/embed"
	"grebe/internal/cli"
)

type embedCmd struct {
	Rows     int           `want:"at least 1" help:"Rows of the table; default 1000000." placeholder:"N"`
	Percents []float64     `want:"above 0 and at most 100" placeholder:"P"`
	Batches  []int         `want:"at least 1" help:"Sums per batch; default 64,256,1024,4096." placeholder:"N"`
	Traces   []string      `want:"one of drift, fast, zipf, scarab" placeholder:"TRACE"`
	Policies []string      `want:"one of none, lru, laru, default" placeholder:"POLICY"`
	Skew     float64       `want:"above 0 and at most 10" help:"Exponent of Zipf's law; default 0.99." placeholder:"S"`
	HalfLife int           `want:"at least 10" placeholder:"N"`
	Warm     int           `want:"at least 1" help:"Lookups before the measurement; default 4000000." placeholder:"N"`
	Rounds   int           `want:"at least 1" placeholder:"N"`
	Parts    []string      `want:"one of hits, sums, gather, outage, refill" placeholder:"PART"`
	Outage   time.Duration `want:"above 0" placeholder:"T"`
	Data     string        `type:"path" default:"../shared/data/traces" placeholder:"DIR"`
	Seed     uint64        `help:"Seed of the traces; default 0." placeholder:"N"`
	JSON     bool          `name:"json" help:"Print JSON."`
}

func (embedCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"percents": "Cache sizes in percent of the table; default 1,3,5.",
		"traces": "Lookups: zipf, drift (popularity changes), fast (ten times as quickly), scarab (recorded); " +
			"default all.",
		"policies":  "none (no cache), lru, laru, default; default all.",
		"half-life": "Trace drift: lookups after which half of the popular rows are different; default 20 per row.",
		"rounds":    "Repetitions; the policies take turns in each. Default 9.",
		"parts":     "Parts from the list above; default all.",
		"outage":    "How long Redis is away in the part outage; default 10s.",
		"data":      "Folder with scarab-recs.trace; default ${default}.",
	}
}

func (embedCmd) Help() string {
	return `Measures sums of embedding rows (SparseLengthsSum) that are read from Redis through a cache. It starts a
redis-server on the loopback. The eviction policies have the same memory, their own bookkeeping included. Takes some
minutes, 2 GB of memory, and redis-server (Debian: apt-get install redis-server).

    hits    hit rate by policy
    sums    sums per second by policy, with the compared ways in turns
    gather  copying cached rows, compared with a plain copy
    outage  answers while Redis is away, and after it comes back
    refill  hit rate with and without refills in the background

Example:

    grebe-bench embed --percents 1 --batches 1024 --traces drift`
}

func (c *embedCmd) Run(w *cli.World) error {
	o := embed.Options{
		Rows: c.Rows, Percents: c.Percents, Batches: c.Batches, Traces: c.Traces, Policies: c.Policies, Skew: c.Skew,
		HalfLife: c.HalfLife, Warm: c.Warm, Rounds: c.Rounds, Parts: c.Parts, Data: c.Data, Outage: c.Outage, Seed: c.Seed,
		JSON: c.JSON,
	}
	if err := o.Validate(); err != nil {
		return cli.Usage(err)
	}
	_, err := embed.Run(w.Ctx, o, w.Stdout)
	return err
}

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
	Warm     int           `want:"at least 1" help:"Lookups before measuring; default 4000000." placeholder:"N"`
	Rounds   int           `want:"at least 1" help:"Rounds, in which the policies take turns; default 9." placeholder:"N"`
	Parts    []string      `want:"one of hits, sums, gather, outage, refill" placeholder:"PART"`
	Outage   time.Duration `want:"above 0" help:"How long Redis is gone in outage; default 10s." placeholder:"T"`
	Data     string        `type:"path" default:"../shared/data/traces" placeholder:"DIR"`
	Seed     uint64        `help:"Seed of the traces." placeholder:"N"`
	JSON     bool          `name:"json" help:"Print JSON."`
}

func (embedCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"percents":  "Cache sizes, percent of the table; default 1,3,5.",
		"traces":    "drift, fast, zipf, scarab; default all.",
		"policies":  "none, lru, laru, default; default all.",
		"half-life": "Lookups after which half of the popular rows are others, in drift; default 20 per row.",
		"parts":     "hits, sums, gather, outage, refill; default all.",
		"data":      "Folder of scarab-recs.trace; default ${default}.",
	}
}

func (embedCmd) Help() string {
	return `Sums of embedding rows (SparseLengthsSum) from a table in a redis-server that it starts on loopback, through a
cache of a few percent of the table. The policies have the same memory, what they keep beside rows included. Takes some
minutes, 2 GB of memory, and redis-server (Debian: apt-get install redis-server).

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

package main

import (
	"time"

	"grebe/bench/embed"
)

type benchEmbedCmd struct {
	Rows     int           `help:"Rows of the table; default 1000000." placeholder:"N"`
	Percents []float64     `help:"Cache sizes, percent of the table; default 1,3,5." placeholder:"P"`
	Batches  []int         `help:"Sums per batch; default 64,256,1024,4096." placeholder:"N"`
	Traces   []string      `help:"drift, fast, zipf, scarab; default all." placeholder:"TRACE"`
	Policies []string      `help:"none, lru, laru, default; default all." placeholder:"POLICY"`
	Skew     float64       `help:"Exponent of Zipf's law; default 0.99." placeholder:"S"`
	HalfLife int           `help:"Lookups after which half of the popular rows are others, in drift; default 20 per row." placeholder:"N"`
	Warm     int           `help:"Lookups before measuring; default 4000000." placeholder:"N"`
	Rounds   int           `help:"Rounds, in which the policies take turns; default 9." placeholder:"N"`
	Parts    []string      `help:"hits, sums, gather, outage; default all." placeholder:"PART"`
	Outage   time.Duration `help:"How long Redis is gone in outage; default 10s." placeholder:"T"`
	Data     string        `type:"path" default:"../shared/data/traces" help:"Folder of scarab-recs.trace; default ${default}." placeholder:"DIR"`
	Seed     uint64        `help:"Seed of the traces." placeholder:"N"`
	JSON     bool          `name:"json" help:"Print JSON."`
}

func (benchEmbedCmd) Help() string {
	return `Sums of embedding rows (SparseLengthsSum) from a table in a redis-server that it starts on loopback, through a cache of a
few percent of the table. The policies have the same memory, what they keep beside rows included. Takes some
minutes, 2 GB of memory, and redis-server (Debian: apt-get install redis-server).

Example:

    grebe bench embed --percents 1 --batches 1024 --traces drift`
}

func (c *benchEmbedCmd) Run(w *world) error {
	if err := positive("--batches", c.Batches); err != nil {
		return err
	}
	_, err := embed.Run(w.ctx, embed.Options{
		Rows: c.Rows, Percents: c.Percents, Batches: c.Batches, Traces: c.Traces, Policies: c.Policies, Skew: c.Skew,
		HalfLife: c.HalfLife, Warm: c.Warm, Rounds: c.Rounds, Parts: c.Parts, Data: c.Data, Outage: c.Outage, Seed: c.Seed, JSON: c.JSON,
	}, w.stdout)
	return err
}

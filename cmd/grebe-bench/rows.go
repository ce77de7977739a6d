package main

import (
	"grebe/bench/rows"
	"grebe/internal/cli"
)

type rowsCmd struct {
	Bytes    int64  `want:"at least 65536" help:"Bytes of all rows of a case; default 4 GiB." placeholder:"N"`
	Features int    `want:"at least 1" help:"Tables that are pooled; default 26." placeholder:"N"`
	Requests int    `want:"at least 1" help:"Bags of each table; default 4096." placeholder:"N"`
	Bag      int    `want:"at least 1" help:"Mean length of a bag; default 20." placeholder:"N"`
	Users    int    `want:"at least 1" help:"Sequences; default 64." placeholder:"N"`
	Events   int    `want:"at least 1" help:"Events of a sequence; default 15000." placeholder:"N"`
	Missing  int    `want:"at least 1 and at most 65536" help:"Rows that are fetched; default 16384." placeholder:"N"`
	RowBytes []int  `want:"at least 64 and at most 32768" help:"Sizes of rows; default 128,256,512,1024." placeholder:"N"`
	Repeats  int    `want:"at least 1" help:"Repeats, of which medians are shown; default 20." placeholder:"N"`
	GPU      int    `name:"gpu" want:"at least 0" help:"Number of the GPU." placeholder:"N"`
	Peers    string `help:"A Python with torch that runs the peers; default: no peers." placeholder:"PYTHON"`
	Seed     uint64 `help:"Seed of ids and rows; default 1." placeholder:"N"`
	JSON     bool   `name:"json" help:"Print JSON."`
}

func (rowsCmd) Help() string {
	return `The cache of embedding rows in a GPU's memory: sums of bags over several tables, sequences, and rows that are
fetched from pinned memory, each beside the rate of a plain copy. Results are compared with the host's. Takes some
minutes, up to 10 GiB of the GPU's memory and 2 GiB of the host's.

Examples:

    grebe-bench rows
    grebe-bench rows --row-bytes 256 --peers python3 --json`
}

func (c *rowsCmd) Run(w *cli.World) error {
	for _, n := range c.RowBytes {
		if n%16 != 0 {
			return cli.Usagef("--row-bytes: %d: want a multiple of 16", n)
		}
	}
	_, err := rows.Run(w.Ctx, rows.Options{
		Bytes: c.Bytes, Features: c.Features, Requests: c.Requests, Bag: c.Bag, Users: c.Users, Events: c.Events,
		Missing: c.Missing, RowBytes: c.RowBytes, Repeats: c.Repeats, GPU: c.GPU, Peers: c.Peers, Seed: c.Seed, JSON: c.JSON,
	}, w.Stdout)
	return err
}

package main

import (
	"grebe/bench/rows"
	"grebe/internal/cli"
)

type rowsCmd struct {
	Bytes    int64  `want:"at least 65536" help:"Size of all rows of a case, in bytes; default 4 GiB." placeholder:"N"`
	Features int    `want:"at least 1" help:"Tables whose rows are pooled; default 26." placeholder:"N"`
	Requests int    `want:"at least 1" placeholder:"N"`
	Bag      int    `want:"at least 1" help:"Mean number of rows in a bag; default 20." placeholder:"N"`
	Users    int    `want:"at least 1" help:"Number of sequences; default 64." placeholder:"N"`
	Events   int    `want:"at least 1" help:"Rows in a sequence; default 15000." placeholder:"N"`
	Missing  int    `want:"at least 1 and at most 65536" placeholder:"N"`
	RowBytes []int  `want:"at least 64 and at most 32768" placeholder:"N"`
	Repeats  int    `want:"at least 1" help:"Repetitions; the median is shown. Default 20." placeholder:"N"`
	GPU      int    `name:"gpu" want:"at least 0" help:"Index of the GPU, from 0; default 0." placeholder:"N"`
	Peers    string `help:"Python with torch, to compare with. Default: no comparison." placeholder:"PYTHON"`
	Seed     uint64 `help:"Seed of ids and rows; default 1." placeholder:"N"`
	JSON     bool   `name:"json" help:"Print JSON."`
}

func (rowsCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"requests":  "Bags (groups of rows that are summed) per table; default 4096.",
		"missing":   "Rows to fetch from the host; default 16384.",
		"row-bytes": "Sizes of a row in bytes; default 128,256,512,1024.",
	}
}

func (rowsCmd) Help() string {
	return `Measures a cache of embedding rows in a GPU's memory, and shows the rate of a plain copy beside each case:
pooled rows of several tables, sequences of rows, and rows that are fetched from pinned host memory. Results are
compared with sums on the host before timing. Takes some minutes, up to 10 GiB of GPU memory and 2 GiB of host memory.

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

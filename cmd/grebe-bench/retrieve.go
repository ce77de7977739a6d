package main

import (
	"grebe/bench/retrieve"
	"grebe/compute/cuda"
	"grebe/internal/cli"
)

type retrieveCmd struct {
	Items   int   `want:"at least 1 and at most 1000000000" help:"Items; default 10,000,000." placeholder:"N"`
	Width   int   `want:"at least 1 and at most 8192" help:"Dimensions of their vectors; default 512." placeholder:"N"`
	Queries []int `want:"at least 1 and at most 64" help:"Queries at a time; default 1,8,64." placeholder:"N"`
	Best    []int `want:"at least 1 and at most 1024" help:"Items to find for each; default 100,1000." placeholder:"N"`
	Repeats int   `want:"at least 1" help:"Repeats, of which medians are shown; default 20." placeholder:"N"`
	GPU     int   `name:"gpu" want:"at least 0" help:"Number of the GPU." placeholder:"N"`
	Plain   bool  `help:"Keep to instructions of Ampere."`
	JSON    bool  `name:"json" help:"Print JSON."`
}

func (retrieveCmd) Help() string {
	return `The vectors are random, and are compared with the time of reading as many bytes. Each search is timed from the
call to its results in the host's memory.

Example:

    grebe-bench retrieve --queries 1,64 --best 100`
}

func (c *retrieveCmd) Run(w *cli.World) error {
	_, err := retrieve.Run(w.Ctx, retrieve.Options{
		Items: c.Items, Width: c.Width, Queries: c.Queries, K: c.Best, Repeats: c.Repeats, JSON: c.JSON,
		Device: cuda.Options{GPU: c.GPU, Plain: c.Plain},
	}, w.Stdout)
	return err
}

package main

import (
	"grebe/bench/retrieve"
	"grebe/compute/cuda"
	"grebe/internal/cli"
)

type retrieveCmd struct {
	Items   int   `want:"at least 1 and at most 1000000000" help:"Number of items; default 10000000." placeholder:"N"`
	Width   int   `want:"at least 1 and at most 8192" help:"Dimensions of a vector; default 512." placeholder:"N"`
	Queries []int `want:"at least 1 and at most 64" help:"Queries per search; default 1,8,64." placeholder:"N"`
	Best    []int `want:"at least 1 and at most 1024" placeholder:"N"`
	Repeats int   `want:"at least 1" help:"Repetitions; the median is shown. Default 20." placeholder:"N"`
	GPU     int   `name:"gpu" want:"at least 0" help:"Index of the GPU, from 0; default 0." placeholder:"N"`
	Plain   bool  `help:"Use only kernels that run on GPUs since Ampere."`
	JSON    bool  `name:"json" help:"Print JSON."`
}

func (retrieveCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"best": "Items to find for each query; default 100,1000.",
	}
}

func (retrieveCmd) Help() string {
	return `Measures how fast a GPU finds the items whose vectors score highest for a query. The vectors are random.
Each search is timed from the call until its results are in host memory, and compared with the time to read the
vectors once.

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

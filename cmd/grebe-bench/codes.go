package main

import (
	"grebe/bench/codes"
	"grebe/internal/cli"
)

type codesCmd struct {
	Items     int     `default:"1000000" want:"at least 1" help:"Number of items; default ${default}." placeholder:"N"`
	Dims      int     `default:"256" want:"at least 1 and at most 65536" placeholder:"N"`
	Sizes     []int   `default:"256,256,256" want:"at least 1 and at most 65536" placeholder:"N"`
	Balance   float64 `default:"3" want:"at least 1" placeholder:"F"`
	Threads   int     `want:"at least 1 and at most 1024" help:"CPU threads; default: all cores." placeholder:"N"`
	Reference bool    `help:"Also run a plain k-means on all items, which takes many times as long."`
	Write     string  `type:"path" placeholder:"FILE"`
	JSON      bool    `name:"json" help:"Print JSON."`
}

func (codesCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"dims":    "Dimensions of an embedding; default ${default}.",
		"sizes":   "Codes per level; default ${default}.",
		"balance": "Most items per code, as a multiple of the mean; default ${default}.",
		"write": "Only write the embeddings to this .npy file. bench/codes/reference.py then makes codes of them " +
			"in PyTorch.",
	}
}

func (codesCmd) Help() string {
	return `Measures how fast semantic IDs are made from embeddings, as grebe codes makes them, and how good they are.
The embeddings are generated: nested groups of different popularity, with noise.

Example:

    grebe-bench codes --items 100000 --reference`
}

func (c *codesCmd) Run(w *cli.World) error {
	_, err := codes.Run(w.Ctx, codes.Options{
		Items: c.Items, Dims: c.Dims, Sizes: c.Sizes, Balance: c.Balance, Threads: c.Threads, Reference: c.Reference,
		Write: c.Write, JSON: c.JSON,
	}, w.Stdout)
	return err
}

package main

import (
	"grebe/bench/codes"
	"grebe/internal/cli"
)

type codesCmd struct {
	Items     int     `default:"1000000" want:"at least 1" help:"Items; default ${default}." placeholder:"N"`
	Dims      int     `default:"256" want:"at least 1 and at most 65536" placeholder:"N"`
	Sizes     []int   `default:"256,256,256" want:"at least 1 and at most 65536" placeholder:"N"`
	Balance   float64 `default:"3" want:"at least 1" help:"As of grebe codes; default ${default}." placeholder:"F"`
	Threads   int     `want:"at least 1 and at most 1024" help:"Threads; default all cores." placeholder:"N"`
	Reference bool    `help:"Run a plain k-means on all rows too. It takes many times as long."`
	Write     string  `type:"path" placeholder:"FILE"`
	JSON      bool    `name:"json" help:"Print JSON."`
}

func (codesCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"dims":  "Values of an embedding; default ${default}.",
		"write": "Write the embeddings to a .npy file and exit: bench/codes/reference.py makes codes of them in PyTorch.",
		"sizes": "Codes of each level; default ${default}.",
	}
}

func (codesCmd) Help() string {
	return `The embeddings are invented: groups of groups of different popularity, with noise.

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

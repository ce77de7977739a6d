package main

import (
	"grebe/bench/decisions"
	"grebe/internal/cli"
	"grebe/shop/demo"
)

type decisionsCmd struct {
	Old      string `required:"" type:"path" help:"Binary to compare with; required." placeholder:"BINARY"`
	New      string `type:"path" placeholder:"BINARY"`
	Runs     int    `want:"at least 2" help:"Runs of each load; default 12." placeholder:"N"`
	Requests int    `want:"at least 10" placeholder:"N"`
	Seed     uint64 `default:"1" help:"Seed of the requests; default ${default}." placeholder:"N"`
	Check    bool   `help:"Exit with 1 if the new binary is slower."`
	JSON     bool   `name:"json" help:"Print JSON."`
}

func (decisionsCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"new":      "Binary to judge. Default: the grebe beside this program, else the one on the PATH.",
		"requests": "Requests per run, after half as many for the warm-up; default 1000.",
	}
}

func (decisionsCmd) Help() string {
	return `Compares two grebe binaries by the CPU time (user and system) that they take for the same requests when
nothing is computed. It serves the demo with device: none, and measures three things: a request, a request that finds
everything in the cache, and an eviction. The binaries take turns after a few requests. P is the value of a one-sided
signed-rank test over the runs.

Example:

    grebe-bench decisions --old ./grebe-old --check`
}

func (c *decisionsCmd) Run(w *cli.World) error {
	program := c.New
	if program == "" {
		var err error
		if program, err = (&programFlag{}).program(); err != nil {
			return err
		}
	}
	if err := demo.Ensure(demo.Dir()); err != nil {
		return err
	}
	r, err := decisions.Run(w.Ctx, decisions.Options{
		Old: c.Old, New: program, Demo: demo.Dir(), Runs: c.Runs, Requests: c.Requests, Seed: c.Seed, JSON: c.JSON,
	}, w.Stdout)
	if err == nil && c.Check && !r.Passed {
		return cli.ErrReported
	}
	return err
}

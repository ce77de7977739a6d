package main

import (
	"grebe/bench/decisions"
	"grebe/internal/cli"
	"grebe/shop/demo"
)

type decisionsCmd struct {
	Old      string `required:"" type:"path" help:"Binary to compare with." placeholder:"BINARY"`
	New      string `type:"path" help:"Binary that is compared; default this one." placeholder:"BINARY"`
	Runs     int    `want:"at least 2" help:"Of each load; default 12." placeholder:"N"`
	Requests int    `want:"at least 10" help:"Of a run, after half as many for warming up; default 1000." placeholder:"N"`
	Seed     uint64 `default:"1" help:"Of the requests." placeholder:"N"`
	Check    bool   `help:"Fail when this binary is slower."`
	JSON     bool   `name:"json" help:"Print JSON."`
}

func (decisionsCmd) Help() string {
	return `Serves the demo with device: none, which computes nothing, and compares the CPU time (user and system) of two
binaries for the same requests: per request, per request that finds all in the cache, and per eviction. Old and new take
turns of a few requests. P is that of a one-sided signed-rank test over the runs' ratios.

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

package main

import (
	"cmp"
	"slices"

	"grebe/bench/hstu"
	"grebe/internal/cli"
)

type hstuCmd struct {
	Events     []int  `want:"at least 1" help:"Events per history; default 1000,5000,15000." placeholder:"N"`
	New        int    `want:"at least 1" help:"New events of a returning user; default 20." placeholder:"N"`
	Candidates int    `want:"at least 1" help:"Candidates per ranking; default 100." placeholder:"N"`
	Items      int    `want:"at least 1" help:"Items to retrieve from; default 1000000." placeholder:"N"`
	Repeats    int    `want:"at least 1" help:"Repetitions; the median is shown. Default 5." placeholder:"N"`
	Threads    int    `want:"at least 1 and at most 1024" help:"CPU threads; default: all cores." placeholder:"N"`
	DType      string `name:"dtype" default:"bf16" enum:"bf16,f32"`
	JSON       bool   `name:"json" help:"Print JSON."`
}

func (hstuCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"dtype": "Number format: bf16 or f32; default ${default}.",
	}
}

func (hstuCmd) Help() string {
	return `Measures a model of events (HSTU) on CPUs, with random weights. It times rankings for users with long
histories, for returning users with a few new events, and retrieval over all items. Takes a minute or two.

Example:

    grebe-bench hstu --events 5000,15000`
}

func (c *hstuCmd) Run(w *cli.World) error {
	if len(c.Events) > 0 && slices.Min(c.Events) <= cmp.Or(c.New, hstu.New) {
		return cli.Usagef("--events: %d: want more than the %d since the last visit (--new)", slices.Min(c.Events),
			cmp.Or(c.New, hstu.New))
	}
	if c.New >= hstu.Shortest && len(c.Events) == 0 {
		return cli.Usagef("--new: %d: want fewer than the shortest history has, %d", c.New, hstu.Shortest)
	}
	_, err := hstu.Run(w.Ctx, hstu.Options{
		Events: c.Events, New: c.New, Candidates: c.Candidates, Items: c.Items, Repeats: c.Repeats, Threads: c.Threads,
		DType: c.DType, JSON: c.JSON,
	}, w.Stdout)
	return err
}

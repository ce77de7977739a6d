package main

import (
	"cmp"
	"slices"

	"grebe/bench/hstu"
	"grebe/internal/cli"
)

type hstuCmd struct {
	Events     []int  `want:"at least 1" help:"Lengths of histories; default 1000,5000,15000." placeholder:"N"`
	New        int    `want:"at least 1" help:"Events since a returning user's last visit; default 20." placeholder:"N"`
	Candidates int    `want:"at least 1" help:"Candidates of a ranking; default 100." placeholder:"N"`
	Items      int    `want:"at least 1" help:"Items of the table; default 1000000." placeholder:"N"`
	Repeats    int    `want:"at least 1" help:"Repeats, of which medians are shown; default 5." placeholder:"N"`
	Threads    int    `want:"at least 1 and at most 1024" help:"Threads; default all cores." placeholder:"N"`
	DType      string `name:"dtype" default:"bf16" enum:"bf16,f32" help:"bf16 or f32."`
	JSON       bool   `name:"json" help:"Print JSON."`
}

func (hstuCmd) Help() string {
	return `Takes a minute or two. The weights are random.

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

package main

import "grebe/bench/hstu"

type benchHSTUCmd struct {
	Events     []int  `help:"Lengths of histories; default 1000,5000,15000." placeholder:"N"`
	New        int    `help:"Events since a returning user's last visit; default 20." placeholder:"N"`
	Candidates int    `help:"Candidates of a ranking; default 100." placeholder:"N"`
	Items      int    `help:"Items of the table; default 1000000." placeholder:"N"`
	Repeats    int    `help:"Repeats, of which medians are shown; default 5." placeholder:"N"`
	Threads    int    `help:"Threads; default all cores." placeholder:"N"`
	DType      string `name:"dtype" default:"bf16" enum:"bf16,f32" help:"bf16 or f32."`
	JSON       bool   `name:"json" help:"Print JSON."`
}

func (benchHSTUCmd) Help() string {
	return `Takes a minute or two. The weights are random.

Example:

    grebe bench hstu --events 5000,15000`
}

func (c *benchHSTUCmd) Run(w *world) error {
	if err := positive("--events", c.Events); err != nil {
		return err
	}
	_, err := hstu.Run(w.ctx, hstu.Options{
		Events: c.Events, New: c.New, Candidates: c.Candidates, Items: c.Items, Repeats: c.Repeats, Threads: c.Threads, DType: c.DType, JSON: c.JSON,
	}, w.stdout)
	return err
}

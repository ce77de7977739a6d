package main

import (
	"time"

	"grebe/bench/ahead"
	"grebe/internal/cli"
)

type aheadCmd struct {
	Parts   []string `want:"one of reuse, latency" help:"reuse, latency; default both." placeholder:"PART"`
	IdleS   float64  `name:"idle-s" want:"above 0 and at most 86400" help:"Seconds that the cold server is idle; default 60." placeholder:"S"`
	Rounds  int      `want:"at least 1 and at most 1000" help:"Windows of each kind; default 6." placeholder:"N"`
	Seconds float64  `want:"above 0 and at most 86400" help:"Of each window; default 10." placeholder:"S"`
	Copies  int      `want:"at least 1 and at most 1000" help:"Variants of each item, so that there is enough to compute in a window; default 4." placeholder:"N"`
	Threads int      `want:"at least 1 and at most 1024" help:"Threads of the server; default one for each core." placeholder:"N"`
	Check   bool     `help:"Fail when a bar is not reached."`
	JSON    bool     `name:"json" help:"Print JSON."`
	programFlag
}

func (aheadCmd) Help() string {
	return `Leaves a cold server of the demo idle, and then has users who come once rank 60 of the 400 hottest items: at least 60 % of the tokens
are reused. Then ranks at half of the capacity, in windows that take turns: while items are computed ahead the P99 is at most
1.05 times that of windows without. Takes about five minutes.

Examples:

    grebe-bench ahead --check
    grebe-bench ahead --parts latency --rounds 12`
}

func (c *aheadCmd) Run(w *cli.World) error {
	program, err := c.program()
	if err != nil {
		return err
	}
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	r, err := ahead.Run(w.Ctx, ahead.Options{
		Program: program, Parts: c.Parts, Idle: seconds(c.IdleS), Rounds: c.Rounds, Window: seconds(c.Seconds), Copies: c.Copies,
		Threads: c.Threads, JSON: c.JSON,
	}, w.Stdout)
	if err == nil && c.Check && !r.Passed {
		return cli.ErrReported
	}
	return err
}

package main

import (
	"time"

	"grebe/bench/overload"
	"grebe/internal/cli"
)

type overloadCmd struct {
	Parts      []string  `want:"one of load, slow" help:"load, slow; default both." placeholder:"PART"`
	Loads      []float64 `want:"above 0" help:"Multiples of the capacity; default 1.5,3,10." placeholder:"X"`
	Seconds    float64   `want:"above 0 and at most 86400" help:"Of each load; default 60." placeholder:"S"`
	DeadlineMS int       `name:"deadline-ms" want:"at least 1 and at most 60000" placeholder:"MS"`
	RequestMS  int       `name:"request-ms" want:"at least 1 and at most 60000" placeholder:"MS"`
	Conns      int       `want:"at least 1 and at most 50000" placeholder:"N"`
	Kinds      []string  `help:"Kinds of slow connections; default all." placeholder:"KIND"`
	Check      bool      `help:"Fail when a bar is not reached."`
	JSON       bool      `name:"json" help:"Print JSON."`
	programFlag
}

func (overloadCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"deadline-ms": "Deadline of requests; default 500.",
		"request-ms":  "What a request takes at least; default 20.",
		"conns":       "Slow connections of each kind; default 1000.",
	}
}

func (overloadCmd) Help() string {
	return `Serves the demo in a process of its own, on all cores but the last, and asks it for more than it can do: at
most 1 % of the answers may be late, and goodput stays at 85 % of the capacity (75 % above three times). Then keeps
connections waiting in every way that a client can: the P99 of another client may be 1.5 times that of an idle server.
Takes about eight minutes.

Examples:

    grebe-bench overload --check
    grebe-bench overload --parts load --seconds 10 --loads 3`
}

func (c *overloadCmd) Run(w *cli.World) error {
	program, err := c.program()
	if err != nil {
		return err
	}
	r, err := overload.Run(w.Ctx, overload.Options{
		Program: program, Parts: c.Parts, Loads: c.Loads, Duration: time.Duration(c.Seconds * float64(time.Second)),
		Deadline: time.Duration(c.DeadlineMS) * time.Millisecond, Least: time.Duration(c.RequestMS) * time.Millisecond,
		Conns: c.Conns, Slow: c.Kinds, JSON: c.JSON,
	}, w.Stdout)
	if err == nil && c.Check && !r.Passed {
		return cli.ErrReported
	}
	return err
}

package main

import (
	"time"

	"grebe/bench/overload"
	"grebe/internal/cli"
)

type overloadCmd struct {
	Parts      []string  `want:"one of load, slow" help:"Parts from the list above; default both." placeholder:"PART"`
	Loads      []float64 `want:"above 0" help:"Rates, as multiples of the highest; default 1.5,3,10." placeholder:"X"`
	Seconds    float64   `want:"above 0 and at most 86400" help:"Seconds at each rate; default 60." placeholder:"S"`
	DeadlineMS int       `name:"deadline-ms" want:"at least 1 and at most 60000" placeholder:"MS"`
	RequestMS  int       `name:"request-ms" want:"at least 1 and at most 60000" placeholder:"MS"`
	Conns      int       `want:"at least 1 and at most 50000" placeholder:"N"`
	Kinds      []string  `placeholder:"KIND"`
	Check      bool      `help:"Exit with 1 if a target is missed."`
	JSON       bool      `name:"json" help:"Print JSON."`
	programFlag
}

func (overloadCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"deadline-ms": "Deadline of a request in milliseconds; default 500.",
		"request-ms":  "Least time that a request computes, in milliseconds; default 20.",
		"conns":       "Slow connections of each kind; default 1000.",
		"kinds":       "Kinds of slow connections, such as half-header or grpc-streams; default all ten.",
	}
}

func (overloadCmd) Help() string {
	return `Measures a server that gets more requests than it can answer. It serves the demo in a process of its own, on
all cores but the last. Takes about eight minutes.

    load  Requests come at multiples of the highest rate. At most 1 % of the
          answers may be late, and at least 85 % of the highest rate must be
          answered in time (75 % above three times that rate).
    slow  Clients keep connections waiting, in every way that a client can. The
          P99 of another client must stay within 1.5 times that on an idle
          server.

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

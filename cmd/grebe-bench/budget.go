package main

import (
	"time"

	"grebe/bench/budget"
	"grebe/internal/cli"
)

type budgetCmd struct {
	Parts   []string `want:"one of shares, folder" help:"shares, folder; default both." placeholder:"PART"`
	Rate    float64  `want:"above 0 and at most 10000" placeholder:"N"`
	Seconds float64  `want:"above 0 and at most 86400" help:"Of each phase; default 60." placeholder:"S"`
	Check   bool     `help:"Fail when a bar is not reached."`
	JSON    bool     `name:"json" help:"Print JSON, with all samples."`
	programFlag
}

func (budgetCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"rate": "Requests per second of a busy model; default 16.",
	}
}

func (budgetCmd) Help() string {
	return `Starts a server with three models that compete for 48 MiB of host memory. The users of one of them need 70 MiB.
All fill their parts; then one stays busy and gets at least 90 % within a minute. A second one wakes up, as busy, and
gets at least 30 % (equal parts are 48 %). The first falls idle, and the second one gets 90 %. Then compares two
configurations on one folder with one, and with two copies of the folder. Takes about four minutes.

Examples:

    grebe-bench budget --check
    grebe-bench budget --parts shares --json`
}

func (c *budgetCmd) Run(w *cli.World) error {
	program, err := c.program()
	if err != nil {
		return err
	}
	r, err := budget.Run(w.Ctx, budget.Options{
		Program: program, Parts: c.Parts, Rate: c.Rate, Phase: time.Duration(c.Seconds * float64(time.Second)), JSON: c.JSON,
	}, w.Stdout)
	if err == nil && c.Check && !r.Passed {
		return cli.ErrReported
	}
	return err
}

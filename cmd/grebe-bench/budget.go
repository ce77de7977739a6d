package main

import (
	"time"

	"grebe/bench/budget"
	"grebe/internal/cli"
)

type budgetCmd struct {
	Parts   []string `want:"one of shares, folder" help:"Parts from the list above; default both." placeholder:"PART"`
	Rate    float64  `want:"above 0 and at most 10000" placeholder:"N"`
	Seconds float64  `want:"above 0 and at most 86400" help:"Seconds of each phase; default 60." placeholder:"S"`
	Check   bool     `help:"Exit with 1 if a target is missed."`
	JSON    bool     `name:"json" help:"Print JSON, with all samples."`
	programFlag
}

func (budgetCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"rate": "Requests per second of a busy model; default 16.",
	}
}

func (budgetCmd) Help() string {
	return `Measures how three models of one server share 48 MiB of host memory. Takes about four minutes.

    shares  The users of each model need 70 MiB, and all three models fill their
            share. Then only one stays busy; it must get at least 90 % within a
            phase. A second becomes as busy and must get at least 30 % (an equal
            part is 48 %). The first becomes idle, and the second must get 90 %.
    folder  Two configurations that use one data folder, compared with one, and
            with two copies of the folder.

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

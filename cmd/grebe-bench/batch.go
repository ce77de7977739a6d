package main

import (
	"time"

	"grebe/bench/beside"
	"grebe/internal/cli"
)

type batchCmd struct {
	Device     string  `default:"none:3ms+100us" placeholder:"DEVICE"`
	Load       float64 `default:"0.3" want:"above 0 and at most 0.9" placeholder:"SHARE"`
	Candidates int     `default:"8" want:"at least 1 and at most 40" placeholder:"N"`
	Rounds     int     `default:"7" want:"at least 1 and at most 1000" placeholder:"N"`
	SliceS     float64 `name:"slice-s" default:"10" want:"at least 1 and at most 3600" placeholder:"S"`
	Check      bool    `help:"Exit with 1 if a target is missed."`
	JSON       bool    `name:"json" help:"Print JSON."`
	programFlag
}

func (batchCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"device": "Device of the server: cpu, or none:TIME+TIME, which only waits (per batch and per row); default " +
			"${default}.",
		"load":       "Rate of online requests, as a share of what one client at a time reaches; default ${default}.",
		"candidates": "Candidates per request; default ${default}.",
		"rounds":     "Repetitions of the four measurements; default ${default}.",
		"slice-s":    "Seconds of each measurement; default ${default}.",
	}
}

func (batchCmd) Help() string {
	return `Measures a batch of requests (POST /v1/batches) that runs beside online requests. One server of the demo
gets online requests alone, the batch alone, both, and online requests alone again. The batch must use at least 80 %
of the time that online requests leave. The P99 of online requests must stay within 1.1 times that without the batch.
Both are medians over the rounds.

Examples:

    grebe-bench batch --check
    grebe-bench batch --device cpu --candidates 40`
}

func (c *batchCmd) Run(w *cli.World) error {
	program, err := c.program()
	if err != nil {
		return err
	}
	r, err := beside.Run(w.Ctx, beside.Options{
		Program: program, Device: c.Device, Load: c.Load, Candidates: c.Candidates, Rounds: c.Rounds,
		Slice: time.Duration(c.SliceS * float64(time.Second)), JSON: c.JSON, Progress: w.Stderr,
	}, w.Stdout)
	if err == nil && c.Check && !r.Passed {
		return cli.ErrReported
	}
	return err
}

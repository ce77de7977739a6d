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
	Check      bool    `help:"Fail when a bar is not reached."`
	JSON       bool    `name:"json" help:"Print JSON."`
	programFlag
}

func (batchCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"device":     "Of the server: cpu, or the times of a device that computes nothing; default ${default}.",
		"load":       "Online requests, as a share of what one client at a time gets; default ${default}.",
		"candidates": "Of a request; default ${default}.",
		"rounds":     "Times that all slices are measured; default ${default}.",
		"slice-s":    "Seconds of a slice; default ${default}.",
	}
}

func (batchCmd) Help() string {
	return `Measures a batch of requests (POST /v1/batches) beside online requests, in slices of one server of the demo:
online requests alone, the batch alone, both, online requests alone. The batch must use at least 80 % of the time that
online requests leave, and their P99 may be 1.1 times the one without it, in the medians over the rounds.

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

package main

import (
	"time"

	"grebe/bench/ahead"
	"grebe/internal/cli"
)

type aheadCmd struct {
	Parts   []string `want:"one of reuse, latency" help:"Parts from the list above; default both." placeholder:"PART"`
	IdleS   float64  `name:"idle-s" want:"above 0 and at most 86400" placeholder:"S"`
	Rounds  int      `want:"at least 1 and at most 1000" placeholder:"N"`
	Seconds float64  `want:"above 0 and at most 86400" placeholder:"S"`
	Device  string   `default:"auto" want:"one of auto, cpu, cuda" placeholder:"DEVICE"`
	Threads int      `want:"at least 1 and at most 1024" placeholder:"N"`
	Check   bool     `help:"Exit with 1 if a target is missed."`
	JSON    bool     `name:"json" help:"Print JSON."`
	programFlag
}

func (aheadCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"idle-s":  "Seconds for which the cold server is idle; default 60.",
		"rounds":  "Servers to measure latency on; default 12.",
		"seconds": "Seconds of each measurement of latency; default 3, and longer until 300 requests came.",
		"device":  "Device of the server: auto, cpu or cuda; default ${default}.",
		"threads": "CPU threads of the server; default: one per core.",
	}
}

func (aheadCmd) Help() string {
	return `Measures what a server gains by computing items while it is idle, and what that costs requests. Takes about
six minutes, and longer on few cores.

    reuse    A cold server is idle for a minute. Then new users each rank 60 of
             the 400 most requested items. At least 60 % of the tokens must come
             from the cache.
    latency  Requests arrive at half of the highest rate: before, during and
             after the computation of items. The P99 during it must be within
             1.05 times that without, in the median of the rounds.

Examples:

    grebe-bench ahead --check
    grebe-bench ahead --parts latency --device cpu --rounds 20`
}

func (c *aheadCmd) Run(w *cli.World) error {
	program, err := c.program()
	if err != nil {
		return err
	}
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	r, err := ahead.Run(w.Ctx, ahead.Options{
		Program: program, Parts: c.Parts, Idle: seconds(c.IdleS), Rounds: c.Rounds, Slice: seconds(c.Seconds),
		Device: c.Device, Threads: c.Threads, JSON: c.JSON, Progress: w.Stderr,
	}, w.Stdout)
	if err == nil && c.Check && !r.Passed {
		return cli.ErrReported
	}
	return err
}

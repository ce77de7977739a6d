package main

import (
	"time"

	"grebe/bench/ahead"
	"grebe/internal/cli"
)

type aheadCmd struct {
	Parts   []string `want:"one of reuse, latency" help:"reuse, latency; default both." placeholder:"PART"`
	IdleS   float64  `name:"idle-s" want:"above 0 and at most 86400" placeholder:"S"`
	Rounds  int      `want:"at least 1 and at most 1000" placeholder:"N"`
	Seconds float64  `want:"above 0 and at most 86400" placeholder:"S"`
	Device  string   `default:"auto" want:"one of auto, cpu, cuda" placeholder:"DEVICE"`
	Threads int      `want:"at least 1 and at most 1024" placeholder:"N"`
	Check   bool     `help:"Fail when a bar is not reached."`
	JSON    bool     `name:"json" help:"Print JSON."`
	programFlag
}

func (aheadCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"idle-s":  "Seconds that the cold server is idle; default 60.",
		"rounds":  "Servers on which latency is measured; default 12.",
		"seconds": "Least length of a slice; default 3. It is longer if fewer than 300 requests would come.",
		"device":  "Of the server: auto, cpu or cuda.",
		"threads": "Threads of the server; default one for each core.",
	}
}

func (aheadCmd) Help() string {
	return `Measures what it is worth that an idle server computes items ahead, and what it costs requests.

Reuse: a cold server of the demo is idle for a minute. Then users who come once rank 60 of the 400 hottest items
each. At least 60 % of the tokens must be reused.

Latency: requests come at half of the capacity, in slices of one server: before, with and after indexing. The P99
with indexing may be 1.05 times the one without, in the median over the rounds. Takes about six minutes, and more on
few cores.

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

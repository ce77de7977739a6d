package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"grebe/bench/drive"
	"grebe/bench/report"
	"grebe/internal/cli"
	"grebe/shop/demo"
	"grebe/sim"
)

type simReplayCmd struct {
	Log      string `arg:"" optional:"" type:"path"`
	Record   string `type:"path" help:"Record a log first, with this grebe." placeholder:"BINARY"`
	Requests int    `default:"2000" want:"at least 10" help:"Requests to record; default ${default}." placeholder:"N"`
	Seed     uint64 `default:"1" help:"Seed of the requests; default ${default}." placeholder:"N"`
	Dir      string `type:"path" default:"." placeholder:"DIR"`
}

func (simReplayCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"log": "Log of a server to replay. Default: the one that --record makes.",
		"dir": "Folder for the recorded log, node.log.gz. Default: the current folder.",
	}
}

func (simReplayCmd) Help() string {
	return `Checks that a node of the simulator (grebe sim) decides as a server does. It feeds one simulated node with
the events of a recorded server: requests, when they came, and how long batches took. Then it compares every decision:
prefix orders, reuse, batches, refusals, published and evicted KV. Exits with 1 if one differs.

The server must have one worker and no disk, and rank for users with an id. --record starts such a server with the
demo's models and sends it more requests than it can answer.

Examples:

    grebe-bench sim-replay --record ./bin/grebe
    grebe-bench sim-replay node.log.gz`
}

func (c *simReplayCmd) Run(w *cli.World) error {
	if c.Record != "" {
		if err := c.record(w); err != nil {
			return err
		}
	}
	if c.Log == "" {
		return cli.Usagef("replay what? Name a log, or a binary with --record")
	}
	r, err := sim.ReplayFile(c.Log)
	if err != nil {
		return err
	}
	t := report.Table(w.Stdout)
	fmt.Fprintln(t, "decisions\tcompared\t")
	for _, kind := range slices.Sorted(maps.Keys(r.Decisions)) {
		fmt.Fprintf(t, "%s\t%d\t\n", kind, r.Decisions[kind])
	}
	fmt.Fprintf(t, "all\t%d\t\n", r.Compared())
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(w.Stdout, "\n%d requests, %d decisions, %d different\n", r.Requests, r.Compared(), r.Different)
	for _, d := range r.Differences {
		fmt.Fprintln(w.Stdout, d)
	}
	if r.Different > 0 {
		return cli.ErrReported
	}
	return nil
}

// record makes the log that is replayed.
func (c *simReplayCmd) record(w *cli.World) error {
	if err := demo.Ensure(demo.Dir()); err != nil {
		return err
	}
	if err := os.MkdirAll(c.Dir, 0o750); err != nil {
		return err
	}
	o := drive.Recording{Program: c.Record, Demo: demo.Dir(), Dir: c.Dir, Requests: c.Requests, Seed: c.Seed}
	answers, err := drive.Record(w.Ctx, o, &drive.Node)
	if err != nil {
		return err
	}
	fmt.Fprintf(w.Stderr, "recorded, answers by status: %v\n", answers)
	c.Log = filepath.Join(c.Dir, drive.Node.Name+".log.gz")
	return nil
}

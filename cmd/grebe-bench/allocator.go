package main

import (
	"fmt"
	"os"

	"grebe/bench/allocator"
	"grebe/internal/cli"
)

type allocatorCmd struct {
	Workloads []string `want:"one of steady, trend, burst, swing, node-steady, node-trend, node-burst" placeholder:"NAME"`
	Seeds     int      `want:"at least 1 and at most 20" help:"Seeds per workload, 1 to 20; default 5." placeholder:"N"`
	Step      float64  `want:"at least 0.01 and at most 0.2" placeholder:"S"`
	Parts     []string `want:"one of boundary, real, verdict, loads, margins, bound, settle" placeholder:"PART"`
	Only      []string `placeholder:"CONTROLLER"`
	Costs     string   `want:"one of measured, derived" placeholder:"NAME"`
	Rate      float64  `want:"at least 0.1 and at most 10" placeholder:"X"`
	Policy    string   `type:"path" placeholder:"FILE"`
	HTML      string   `name:"html" type:"path" want:"a file that can be written" placeholder:"FILE"`
	Check     bool     `help:"Exit with 1 if a target is missed."`
	JSON      bool     `name:"json" help:"Print JSON."`
}

func (allocatorCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"workloads": "steady, trend, burst, swing (one GPU), node-steady, node-trend, node-burst (eight GPUs); " +
			"default all.",
		"step":  "Distance between the fixed shares that are tried; default 0.05.",
		"parts": "Parts from the list above; default all.",
		"only":  "Controllers of the verdict, such as climb, beside the fixed shares and the optimum; default all.",
		"costs": "Costs of an H200: measured (with Grebe's kernels) or derived (from other kernels); default " +
			"measured.",
		"rate":   "For verdict and bound: multiple of the workload's rate. Default: 1 for verdict, several for bound.",
		"policy": "Policy file of \"grebe-bench train allocator\" to judge instead of the built-in one.",
		"html":   "Also write plots of the shares over time to this file.",
	}
}

func (allocatorCmd) Help() string {
	return `Compares ways to divide memory between embeddings and KV. Each controller gets the same requests in virtual
time, with the costs of an H200. The optimum, which knows the best share of each epoch (5 s) in advance, is shown
beside them. All parts take an hour; a single part and workload take minutes.

    boundary  what moving the boundary costs on this machine, in real time
    real      a small workload in real time, on this machine's memory
    verdict   all controllers on each workload
    loads     the gain at other rates
    margins   the optimum against the best fixed share
    bound     the P99 that no schedule of shares can beat
    settle    how soon the default follows a lasting change of the traffic

Example:

    grebe-bench allocator --workloads trend --seeds 2 --html shares.html`
}

func (c *allocatorCmd) Run(w *cli.World) error {
	o := allocator.Options{Workloads: c.Workloads, Seeds: c.Seeds, Step: c.Step, Parts: c.Parts, Only: c.Only,
		Costs: c.Costs, Rate: c.Rate, Policy: c.Policy, JSON: c.JSON}
	if err := o.Validate(); err != nil {
		return cli.Usage(err)
	}
	r, err := allocator.Run(w.Ctx, o, w.Stdout)
	if err != nil {
		return err
	}
	if c.HTML != "" {
		f, err := os.Create(c.HTML)
		if err != nil {
			return err
		}
		if err := r.HTML(f); err != nil {
			f.Close()
			return fmt.Errorf("write %s: %w", c.HTML, err)
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	if c.Check && !allocator.Passed(r.Checks) {
		return cli.ErrReported
	}
	return nil
}

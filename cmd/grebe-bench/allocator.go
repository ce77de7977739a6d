package main

import (
	"fmt"
	"os"

	"grebe/bench/allocator"
	"grebe/internal/cli"
)

type allocatorCmd struct {
	Workloads []string `want:"one of steady, trend, burst, swing, node-steady, node-trend, node-burst" placeholder:"NAME"`
	Seeds     int      `want:"at least 1 and at most 5" help:"Seeds of each; default and most 5." placeholder:"N"`
	Step      float64  `want:"at least 0.01 and at most 0.2" placeholder:"S"`
	Parts     []string `want:"one of boundary, real, verdict, loads, margins, bound" placeholder:"PART"`
	Costs     string   `want:"one of measured, derived" placeholder:"NAME"`
	Rate      float64  `want:"at least 0.1 and at most 10" placeholder:"X"`
	Policy    string   `type:"path" placeholder:"FILE"`
	HTML      string   `name:"html" type:"path" want:"a file that can be written" placeholder:"FILE"`
	Check     bool     `help:"Fail when a bar is not reached."`
	JSON      bool     `name:"json" help:"Print JSON."`
}

func (allocatorCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"workloads": "steady, trend, burst, swing, node-steady, node-trend, node-burst; default all.",
		"step":      "Between the static shares that are tried; default 0.05.",
		"parts":     "boundary, real, verdict, loads, margins, bound; default all.",
		"costs":     "measured, or derived: what work takes on an H200; default measured.",
		"rate":      "Rate of the workloads of verdict and bound, times their own; default 1, and several for the bound.",
		"policy":    "Judge this policy, of grebe-bench train allocator, instead of the one in the binary.",
		"html":      "Write shares over time beside the optimum's here.",
	}
}

func (allocatorCmd) Help() string {
	return `Divides a pool between embeddings and KV by every controller, on the same requests in virtual time, with the
costs of an H200; the optimum knows each epoch's best share beforehand. Also measures what moving the boundary costs on
this machine. Takes an hour; a part and a workload take minutes.

Example:

    grebe-bench allocator --workloads trend --seeds 2 --html shares.html`
}

func (c *allocatorCmd) Run(w *cli.World) error {
	o := allocator.Options{Workloads: c.Workloads, Seeds: c.Seeds, Step: c.Step, Parts: c.Parts, Costs: c.Costs,
		Rate: c.Rate, Policy: c.Policy, JSON: c.JSON}
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

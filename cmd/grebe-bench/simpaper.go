package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"grebe/bench/report"
	"grebe/bench/simpaper"
	"grebe/internal/cli"
)

type simPaperCmd struct {
	Names  []string `arg:"" optional:"" help:"Experiments, or all."`
	Seeds  int      `want:"at least 1 and at most 100" default:"1" help:"Runs of each trial with other seeds; default ${default}." placeholder:"N"`
	Beauty string   `type:"path" default:"../shared/data/beauty/Beauty.txt" help:"Beauty.txt of Amazon Beauty, for rcllm-local." placeholder:"FILE"`
	JSON   bool     `name:"json" help:"Print JSON."`
}

func (simPaperCmd) Help() string {
	return `Repeats the papers' cluster experiments in virtual time, on assumptions that were written down before the first run
(bench/simpaper/assumptions), and prints the papers' values, the simulator's, and their difference.

Experiments: ` + strings.Join(simpaper.Names(), ", ") + `

Examples:

    grebe-bench sim-paper bat-fig7
    grebe-bench sim-paper all --seeds 3 --json`
}

func (c *simPaperCmd) Run(w *cli.World) error {
	if len(c.Names) == 0 {
		return cli.Usagef("name experiments, or all: %s", strings.Join(simpaper.Names(), ", "))
	}
	names := c.Names
	if len(names) == 1 && names[0] == "all" {
		names = simpaper.Names()
	}
	var all []*simpaper.Experiment
	for _, name := range names {
		e, err := simpaper.Load(name)
		if err != nil {
			return cli.Usagef("%v", err)
		}
		all = append(all, e)
	}
	var reports []*simpaper.Report
	var failed error
	for _, e := range all {
		fmt.Fprintln(w.Stderr, e.Name)
		r, err := simpaper.Run(w.Ctx, e, simpaper.Options{
			Seeds: c.Seeds, Beauty: c.Beauty, Log: func(format string, args ...any) { fmt.Fprintf(w.Stderr, format, args...) },
		})
		if errors.Is(err, os.ErrNotExist) {
			fmt.Fprintf(w.Stderr, "  left out: %v\n", err)
			continue
		}
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		if reports = append(reports, r); !c.JSON {
			if err := r.Write(w.Stdout); err != nil {
				return err
			}
		}
	}
	if c.JSON {
		failed = errors.Join(failed, report.JSON(w.Stdout, reports))
	}
	return failed
}

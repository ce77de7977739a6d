package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"grebe/bench/report"
	"grebe/bench/simpaper"
	"grebe/internal/cli"
)

type simPaperCmd struct {
	Names  []string `arg:"" optional:"" help:"Experiments from the list above, all, or better."`
	Seeds  int      `want:"at least 1 and at most 100" placeholder:"N"`
	First  uint64   `name:"first-seed" want:"at least 1 and at most 1000000" placeholder:"SEED"`
	Rates  int      `want:"at least 1 and at most 100" default:"3" placeholder:"N"`
	Beauty string   `type:"path" default:"../shared/data/beauty/Beauty.txt" placeholder:"FILE"`
	JSON   bool     `name:"json" help:"Print JSON."`
}

func (simPaperCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"seeds":      "Runs of each trial, with different seeds; default 1, for better 20.",
		"first-seed": "First seed; default 1, for better 2001. Nothing was tuned on seeds from 2001 on.",
		"rates": "For better: seeds with which the highest rate is searched, which takes many runs; default " +
			"${default}.",
		"beauty": "File Beauty.txt of Amazon Beauty, for rcllm-local; default ${default}.",
	}
}

func (simPaperCmd) Help() string {
	return `Repeats the papers' cluster experiments in virtual time and prints the papers' values, the simulator's, and
the difference. The assumptions were written down before the first run (bench/simpaper/assumptions).

Experiments: ` + strings.Join(simpaper.Names(), ", ") + `

With better, the router of each paper is compared with Grebe's, which predicts milliseconds, on that paper's workload:
by P99 at equal load and by the highest rate within the SLO, with paired intervals over seeds. Names after better choose
workloads.

Examples:

    grebe-bench sim-paper bat-fig7
    grebe-bench sim-paper all --seeds 3 --json
    grebe-bench sim-paper better
    grebe-bench sim-paper better hlem-fig13 --seeds 5`
}

func (c *simPaperCmd) Run(w *cli.World) error {
	if len(c.Names) == 0 {
		return cli.Usagef("name experiments, or all: %s", strings.Join(simpaper.Names(), ", "))
	}
	names := c.Names
	if names[0] == "better" {
		return c.better(w, names[1:])
	}
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
		r, err := simpaper.Run(w.Ctx, e, c.options(w, 1, 1))
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

// options are those of runs, with so many seeds from first on if none are asked for.
func (c *simPaperCmd) options(w *cli.World, seeds int, first uint64) simpaper.Options {
	if c.Seeds > 0 {
		seeds = c.Seeds
	}
	if c.First > 0 {
		first = c.First
	}
	log := func(format string, args ...any) { fmt.Fprintf(w.Stderr, format, args...) }
	return simpaper.Options{Seeds: seeds, First: first, Rates: c.Rates, Beauty: c.Beauty, Log: log}
}

// better compares routers on the workloads of these experiments, or on all.
func (c *simPaperCmd) better(w *cli.World, names []string) error {
	all, err := simpaper.Matches()
	if err != nil {
		return err
	}
	var outcomes []*simpaper.Outcome
	for i := range all {
		if len(names) > 0 && !slices.Contains(names, all[i].Experiment) {
			continue
		}
		o, playErr := all[i].Play(w.Ctx, c.options(w, 20, 2001))
		if playErr != nil {
			err = errors.Join(err, playErr)
			continue
		}
		outcomes = append(outcomes, o)
	}
	if c.JSON {
		return errors.Join(err, report.JSON(w.Stdout, outcomes))
	}
	return errors.Join(err, simpaper.WriteOutcomes(w.Stdout, outcomes))
}

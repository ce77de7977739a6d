package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"grebe/bench/drive"
	"grebe/bench/replay"
	"grebe/bench/report"
	"grebe/internal/cli"
	"grebe/shop/demo"
)

type replayCmd struct {
	Logs     []string `arg:"" optional:"" type:"path" help:"Logs to replay. Default: those that --record makes."`
	Record   string   `type:"path" placeholder:"BINARY"`
	Kinds    []string `placeholder:"KIND"`
	Requests int      `default:"7200" want:"at least 10" help:"Requests per run; default ${default}." placeholder:"N"`
	Seed     uint64   `default:"1" help:"Seed of the requests; default ${default}." placeholder:"N"`
	Dir      string   `type:"path" default:"." placeholder:"DIR"`
}

func (replayCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"record": "Record logs first, with this grebe, which may be an older one.",
		"kinds":  "Runs to record, from the list above. Default: all but tiers, which needs a GPU.",
		"dir":    "Folder for the recorded logs, KIND.log.gz. Default: the current folder.",
	}
}

func (replayCmd) Help() string {
	var kinds strings.Builder
	for i := range drive.Kinds {
		fmt.Fprintf(&kinds, "    %-10s %s\n", drive.Kinds[i].Name, drive.Kinds[i].About)
	}
	return `Replays the decisions of a recorded server with the code of this binary. A server with record: FILE in its
configuration logs what happened and what it decided. This command repeats the same inputs, in order and at their
times, and exits with 1 if a decision differs. With --record it makes such logs first, on the demo's models with
generated requests. An older binary can record them. Kinds of runs:

` + kinds.String() + `
Examples:

    grebe-bench replay decisions.log
    grebe-bench replay --record ./grebe-old --dir logs
    grebe-bench replay --record ./grebe-old --kinds disk --requests 500`
}

func (c *replayCmd) Run(w *cli.World) error {
	if c.Record != "" {
		if err := c.record(w); err != nil {
			return err
		}
	}
	if len(c.Logs) == 0 {
		return cli.Usagef("replay what? Name a log, or a binary with --record")
	}
	t := report.Table(w.Stdout)
	fmt.Fprintln(t, "log\trequests\tinputs\tdecisions\tequal\tdifferent\t")
	var sum replay.Report
	var told []string
	for _, log := range c.Logs {
		r, err := replay.File(log)
		if err != nil {
			return err
		}
		row(t, strings.TrimSuffix(filepath.Base(log), ".log.gz"), r.Requests, r.Inputs, r.Compared(), r.Different)
		sum.Requests, sum.Inputs, sum.Different = sum.Requests+r.Requests, sum.Inputs+r.Inputs, sum.Different+r.Different
		sum.Decisions = r.AddTo(sum.Decisions)
		for _, d := range r.Differences {
			told = append(told, log+": "+d)
		}
	}
	row(t, "all", sum.Requests, sum.Inputs, sum.Compared(), sum.Different)
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w.Stdout)
	for _, d := range told {
		fmt.Fprintln(w.Stdout, d)
	}
	if sum.Different > 0 {
		return cli.ErrReported
	}
	return nil
}

func row(t *tabwriter.Writer, name string, requests, inputs, decisions, different int) {
	fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\t%d\t\n", name, requests, inputs, decisions, decisions-different, different)
}

// record makes logs, and adds them to those that are replayed.
func (c *replayCmd) record(w *cli.World) error {
	if err := demo.Ensure(demo.Dir()); err != nil {
		return err
	}
	if err := os.MkdirAll(c.Dir, 0o750); err != nil {
		return err
	}
	for _, name := range c.Kinds {
		if !slices.ContainsFunc(drive.Kinds, func(k drive.Kind) bool { return k.Name == name }) {
			return cli.Usagef("--kinds: %q is none of them: see grebe-bench replay --help", name)
		}
	}
	o := drive.Recording{Program: c.Record, Demo: demo.Dir(), Dir: c.Dir, Requests: c.Requests, Seed: c.Seed}
	for i := range drive.Kinds {
		k := &drive.Kinds[i]
		if len(c.Kinds) == 0 && k.Name == "tiers" || len(c.Kinds) > 0 && !slices.Contains(c.Kinds, k.Name) {
			continue
		}
		answers, err := drive.Record(w.Ctx, o, k)
		if err != nil {
			return err
		}
		fmt.Fprintf(w.Stderr, "%s: recorded, answers by status: %v\n", k.Name, answers)
		if n := answers[http.StatusInternalServerError]; n > 0 {
			return fmt.Errorf("%s: %d answers had status 500: serve with the same settings, and read its log", k.Name, n)
		}
		c.Logs = append(c.Logs, filepath.Join(c.Dir, k.Name+".log.gz"))
	}
	return nil
}

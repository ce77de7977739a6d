package main

import (
	"errors"
	"fmt"

	"grebe/bench/beam"
	"grebe/internal/cli"
)

type beamCmd struct {
	Parts    []string `want:"one of attention, selection, recommend, filter" placeholder:"PART"`
	Widths   []int    `want:"at least 1 and at most 4096" placeholder:"N"`
	Contexts []int    `want:"at least 1" placeholder:"N"`
	Blocks   int      `want:"at least 1" help:"Blocks that what is compared takes turns in; default 9." placeholder:"N"`
	Clients  []int    `want:"at least 1" help:"Clients of the closed loops; default 1,4,16." placeholder:"N"`
	Requests int      `want:"at least 1" help:"Requests of each closed loop; default 48." placeholder:"N"`
	Model    string   `want:"one of tiny, small, qwen3-0.6b" placeholder:"NAME"`
	Dir      string   `type:"path" placeholder:"DIR"`
	Threads  int      `want:"at least 1 and at most 1024" help:"Threads; default all cores." placeholder:"N"`

	Data   []string `want:"one of industrial, beauty" placeholder:"NAME"`
	Folder string   `type:"path" default:"../shared/data" placeholder:"DIR"`
	Users  int      `want:"at least 1" help:"With --data: test users; default all." placeholder:"N"`

	Check bool `help:"Fail when a bar is not reached."`
	JSON  bool `name:"json" help:"Print JSON."`
}

func (beamCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"parts":  "attention, selection, recommend, filter; default all.",
		"widths": "Beam widths; default 128,256,512 for attention, 128,512 for recommendations, with 32 for closed loops.",
		"contexts": "Tokens of the prompt, multiples of 16; default 1024,4096 for attention, the first for " +
			"recommendations.",
		"model":  "tiny, small, qwen3-0.6b; default small, with --data tiny.",
		"dir":    "Folder of the checkpoint, written when missing; default: in the user's cache folder.",
		"data":   "Recommend to every test user of industrial or beauty instead.",
		"folder": "Folder with the data; default ${default}.",
	}
}

func (beamCmd) Help() string {
	return `Attention of beams behind one prompt beside beams that each attend to it alone, and the memory of both;
selection from logits beside sorting and heaps; recommendations with and without the valid-path constraint, and with
several clients; recommendations from a million items with ranges of prices and without. With --data: 64 beams for every
test user of a catalog with real codes, each answer checked, and how many paths would be no items without the
constraint. Takes about four minutes on two cores. The weights are random.

Examples:

    grebe-bench beam --parts attention --contexts 1024
    grebe-bench beam --data industrial,beauty`
}

func (c *beamCmd) Run(w *cli.World) error {
	for _, n := range c.Contexts {
		if n%16 != 0 {
			return cli.Usagef("--contexts: %d is no multiple of 16", n)
		}
	}
	if len(c.Data) > 0 {
		return c.data(w)
	}
	r, err := beam.Run(w.Ctx, beam.Options{
		Parts: c.Parts, Widths: c.Widths, Contexts: c.Contexts, Blocks: c.Blocks, Clients: c.Clients, Requests: c.Requests,
		Model: c.Model, Dir: c.Dir, Threads: c.Threads, JSON: c.JSON,
	}, w.Stdout)
	return c.verdict(err, r.Checks)
}

// data recommends to the users of real catalogs.
func (c *beamCmd) data(w *cli.World) error {
	o := beam.DataOptions{Folder: c.Folder, Sets: c.Data, Users: c.Users, Model: c.Model, Dir: c.Dir, Threads: c.Threads,
		JSON: c.JSON}
	if len(c.Widths) > 0 {
		o.Width = c.Widths[0]
	}
	_, checks, err := beam.RealData(w.Ctx, o, w.Stdout)
	if errors.Is(err, beam.ErrNoData) {
		fmt.Fprintf(w.Stderr, "grebe: skipped: %v\n", err)
		return nil
	}
	return c.verdict(err, checks)
}

func (c *beamCmd) verdict(err error, checks []beam.Check) error {
	if err == nil && c.Check && !beam.Passed(checks) {
		return cli.ErrReported
	}
	return err
}

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
	Blocks   int      `want:"at least 1" placeholder:"N"`
	Clients  []int    `want:"at least 1" placeholder:"N"`
	Requests int      `want:"at least 1" help:"Requests per number of clients; default 48." placeholder:"N"`
	Model    string   `want:"one of tiny, small, qwen3-0.6b" placeholder:"NAME"`
	Dir      string   `type:"path" placeholder:"DIR"`
	Threads  int      `want:"at least 1 and at most 1024" help:"CPU threads; default: all cores." placeholder:"N"`

	Data   []string `want:"one of industrial, beauty" placeholder:"NAME"`
	Folder string   `type:"path" default:"../shared/data" placeholder:"DIR"`
	Users  int      `want:"at least 1" help:"With --data: number of test users; default all." placeholder:"N"`

	Check bool `help:"Exit with 1 if a target is missed."`
	JSON  bool `name:"json" help:"Print JSON."`
}

func (beamCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"parts": "Parts from the list above; default all.",
		"widths": "Beam widths. Default: 128,256,512 for attention; 128,512 for requests; also 32 with several " +
			"clients.",
		"contexts": "Tokens of the prompt, multiples of 16; default 1024,4096. Requests use the first.",
		"blocks":   "Repetitions; the compared ways take turns in each. Default 9.",
		"clients":  "Clients that each wait for an answer before the next request; default 1,4,16.",
		"model":    "Size of the model: tiny, small, qwen3-0.6b; default small, with --data tiny.",
		"dir":      "Folder for the checkpoint; written if missing. Default: the user's cache folder.",
		"data":     "Recommend to the test users of these real catalogs instead: industrial, beauty.",
		"folder":   "With --data: folder of the data; default ${default}.",
	}
}

func (beamCmd) Help() string {
	return `Measures the generation of items by beam search. The weights are random. Takes about four minutes on two
cores.

    attention  beams that share a prompt's keys, compared with beams that each
               read them alone: time and memory
    selection  choosing the next beams from logits, compared with sorting and
               with heaps
    recommend  whole requests: with and without the constraint to valid paths, and
               with several clients
    filter     whole requests on a million items, with and without ranges of
               prices

With --data it recommends with 64 beams to every test user of a real catalog, and checks each answer. It reports how
many paths would not be items without the check.

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

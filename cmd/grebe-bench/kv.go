package main

import (
	"time"

	"grebe/bench/store"
	"grebe/internal/cli"
)

type kvCmd struct {
	Entries int     `want:"at least 2 and at most 524288" placeholder:"N"`
	Rate    float64 `want:"above 0 and at most 100000" help:"Users published per second; default 1000." placeholder:"N"`
	Seconds float64 `want:"above 0 and at most 3600" help:"Seconds of each measurement; default 2." placeholder:"S"`
	Rounds  int     `want:"at least 1 and at most 1000" placeholder:"N"`
	Dir     string  `type:"path" help:"Folder for the files on disk; default: a temporary folder." placeholder:"DIR"`
	Check   bool    `help:"Exit with 1 if a target is missed."`
	JSON    bool    `name:"json" help:"Print JSON."`
}

func (kvCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"entries": "Entries in memory and on disk; default 500000.",
		"rounds":  "Repetitions, with and without publishing in turns; default 8.",
	}
}

func (kvCmd) Help() string {
	return `Measures lookups in a full KV store whose entries are all on disk, too: alone, and while users are
published. While users are published, the mean and the median must stay within twice those alone. Takes about two
minutes, 1 GB of memory and 3 GB of disk.

Examples:

    grebe-bench kv --check
    grebe-bench kv --entries 100000 --rounds 3`
}

func (c *kvCmd) Run(w *cli.World) error {
	r, err := store.Run(w.Ctx, store.Options{
		Entries: c.Entries, Rate: c.Rate, Window: time.Duration(c.Seconds * float64(time.Second)), Rounds: c.Rounds,
		Dir: c.Dir, JSON: c.JSON,
	}, w.Stdout)
	if err == nil && c.Check && !r.Passed {
		return cli.ErrReported
	}
	return err
}

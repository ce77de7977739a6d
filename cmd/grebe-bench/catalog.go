package main

import (
	"grebe/bench/catalog"
	"grebe/internal/cli"
)

type catalogCmd struct {
	Items   int      `want:"at least 1" help:"Number of items; default 10000000." placeholder:"N"`
	Changes []int    `want:"at least 1" help:"Items that a change touches; default 1,1000,100000." placeholder:"N"`
	Levels  int      `want:"at least 1" help:"Levels of codes; default 3." placeholder:"N"`
	Size    int      `want:"at least 1" help:"Codes per level; default 8192." placeholder:"N"`
	Kinds   []string `want:"one of uniform, clustered" placeholder:"KIND"`
	Parts   []string `want:"one of index, versions" help:"Parts from the list above; default both." placeholder:"PART"`
	Repeats int      `want:"at least 1" help:"Repetitions of each change; default 5." placeholder:"N"`
	Dir     string   `type:"path" help:"Folder for the files; default: a temporary folder." placeholder:"DIR"`
	Check   bool     `help:"Exit with 1 if a target is missed."`
	JSON    bool     `name:"json" help:"Print JSON."`
}

func (catalogCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"kinds": "How items share codes: uniform (at random) or clustered (a few codes have most items); default " +
			"both.",
	}
}

func (catalogCmd) Help() string {
	return `Measures what a large catalog costs in time, memory and disk. Ten million items take about 6 GB of memory, 2
GB of disk and some minutes.

    index     the index of all valid paths: build it, store it, map it from disk
              and change it
    versions  versions of a catalog as a server makes them: files, restarts and
              rollbacks

Example:

    grebe-bench catalog --items 1000000 --kinds clustered`
}

func (c *catalogCmd) Run(w *cli.World) error {
	o := catalog.Options{
		Items: c.Items, Changes: c.Changes, Levels: c.Levels, Size: c.Size, Kinds: c.Kinds, Parts: c.Parts,
		Repeats: c.Repeats,
		Dir:     c.Dir, JSON: c.JSON,
	}
	if err := o.Validate(); err != nil {
		return cli.Usage(err)
	}
	r, err := catalog.Run(w.Ctx, o, w.Stdout)
	if err == nil && c.Check && !catalog.Passed(r.Checks) {
		return cli.ErrReported
	}
	return err
}

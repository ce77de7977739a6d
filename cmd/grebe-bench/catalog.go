package main

import (
	"grebe/bench/catalog"
	"grebe/internal/cli"
)

type catalogCmd struct {
	Items   int      `want:"at least 1" help:"Items; default 10000000." placeholder:"N"`
	Changes []int    `want:"at least 1" help:"Items of each delta; default 1,1000,100000." placeholder:"N"`
	Levels  int      `want:"at least 1" help:"Levels of codes; default 3." placeholder:"N"`
	Size    int      `want:"at least 1" help:"Codes of a level; default 8192." placeholder:"N"`
	Kinds   []string `want:"one of uniform, clustered" help:"uniform, clustered; default both." placeholder:"KIND"`
	Parts   []string `want:"one of index, versions" help:"index, versions; default both." placeholder:"PART"`
	Repeats int      `want:"at least 1" help:"Repeats of each delta; default 5." placeholder:"N"`
	Dir     string   `type:"path" help:"Where the files go; default: a temporary folder." placeholder:"DIR"`
	Check   bool     `help:"Fail when a bar is not reached."`
	JSON    bool     `name:"json" help:"Print JSON."`
}

func (catalogCmd) Help() string {
	return `Builds the index of a catalog's valid paths, stores, maps and changes it; then makes the versions of a catalog
as a server does, with their files, restarts and goes back. Ten million items take about 6 GB of memory, 2 GB of disk
and some minutes.

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

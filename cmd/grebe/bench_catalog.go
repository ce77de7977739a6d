package main

import "grebe/bench/catalog"

type benchCatalogCmd struct {
	Items   int      `help:"Items; default 10000000." placeholder:"N"`
	Changes []int    `help:"Items of each delta; default 1,1000,100000." placeholder:"N"`
	Levels  int      `help:"Levels of codes; default 3." placeholder:"N"`
	Size    int      `help:"Codes of a level; default 8192." placeholder:"N"`
	Kinds   []string `help:"uniform, clustered; default both." placeholder:"KIND"`
	Parts   []string `help:"index, versions; default both." placeholder:"PART"`
	Repeats int      `help:"Repeats of each delta; default 5." placeholder:"N"`
	Dir     string   `type:"path" help:"Where the files go; default: a temporary folder." placeholder:"DIR"`
	Check   bool     `help:"Fail when a bar is not reached."`
	JSON    bool     `name:"json" help:"Print JSON."`
}

func (benchCatalogCmd) Help() string {
	return `Builds the index of a catalog's valid paths, stores, maps and changes it; then makes the versions of a catalog as a
server does, with their files, restarts and goes back. Ten million items take about 6 GB of memory, 2 GB of disk and
some minutes.

Example:

    grebe bench catalog --items 1000000 --kinds clustered`
}

func (c *benchCatalogCmd) Run(w *world) error {
	if err := positive("--changes", c.Changes); err != nil {
		return err
	}
	r, err := catalog.Run(w.ctx, catalog.Options{
		Items: c.Items, Changes: c.Changes, Levels: c.Levels, Size: c.Size, Kinds: c.Kinds, Parts: c.Parts, Repeats: c.Repeats,
		Dir: c.Dir, JSON: c.JSON,
	}, w.stdout)
	if err == nil && c.Check && !catalog.Passed(r.Checks) {
		return errReported
	}
	return err
}

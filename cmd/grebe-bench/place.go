package main

import (
	"grebe/bench/place"
	"grebe/internal/cli"
)

type placeCmd struct {
	Parts   []string `want:"one of beauty, quality, scale" placeholder:"PART"`
	Data    string   `type:"path" default:"../shared/data" placeholder:"DIR"`
	Items   int      `default:"10000000" want:"at least 1 and at most 1000000000" placeholder:"N"`
	Edges   int64    `default:"200000000" want:"at least 0 and at most 100000000000" placeholder:"N"`
	Slots   int      `want:"at least 0 and at most 1024" placeholder:"N"`
	Quality int      `default:"200000" want:"at least 1 and at most 1000000000" placeholder:"N"`
	Nodes   int      `default:"16" want:"at least 1 and at most 1000" placeholder:"N"`
	Passes  int      `default:"10" want:"at least 1 and at most 1000" placeholder:"N"`
	Metis   string   `default:"gpmetis" help:"Program of METIS; default ${default}." placeholder:"FILE"`
	Seed    uint64   `default:"1" help:"Seed of the graphs and of the split of users; default ${default}."`
	JSON    bool     `name:"json" help:"Print JSON."`
}

func (placeCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"parts": "Parts from the list above; default beauty,quality.",
		"data":  "Folder with beauty/Beauty.txt; default ${default}.",
		"items": "scale: number of items; default ${default}.",
		"edges": "scale: number of pairs of items that are requested together; default ${default}.",
		"slots": "scale: count pairs approximately, with so many neighbours per item; default 0, which keeps all " +
			"pairs.",
		"quality": "quality: number of items, with 20 pairs each; default ${default}.",
		"nodes":   "Nodes to divide the generated graphs among; default ${default}.",
		"passes":  "Passes over the items; default ${default}.",
	}
}

func (placeCmd) Help() string {
	return `Measures how well a catalog is divided among nodes, so that items that are requested together lie together.

    beauty   real histories (Amazon Beauty), compared with published shares
    quality  a generated graph, compared with METIS if gpmetis is installed
             (Debian: metis)
    scale    a large generated graph: time and memory

Generated graphs have power-law degrees, communities of 1,000 items and categories of 100,000.

Examples:

    grebe-bench place
    grebe-bench place --parts scale --items 10000000 --edges 200000000`
}

func (c *placeCmd) Run(w *cli.World) error {
	o := place.Options{Parts: c.Parts, Data: c.Data, Items: c.Items, Edges: c.Edges, Quality: c.Quality, Nodes: c.Nodes,
		Slots:  c.Slots,
		Passes: c.Passes, Metis: c.Metis, Seed: c.Seed, JSON: c.JSON}
	var bar *cli.RequestBar
	unit := ""
	o.Progress = func(what string, done, total int64) {
		if what != unit {
			bar, unit = cli.NewBar(w, what), what
		}
		if bar.Update(int(done), int(total)); done == total {
			bar.End()
		}
	}
	if err := o.Validate(); err != nil {
		return cli.Usage(err)
	}
	_, err := place.Run(w.Ctx, o, w.Stdout)
	return err
}

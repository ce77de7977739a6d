package main

import (
	"grebe/bench/ingest"
	"grebe/internal/cli"
)

type ingestCmd struct {
	Items  int    `default:"300000" want:"at least 1 and at most 100000000" placeholder:"N"`
	Events int    `default:"300000" want:"at least 0 and at most 100000000" placeholder:"N"`
	Only   string `want:"one of csv, parquet" help:"Format of the files; default both." placeholder:"FORMAT"`
	Once   bool   `help:"Import durably only, without the dry run."`
	Dir    string `type:"path" placeholder:"DIR"`
	JSON   bool   `name:"json" help:"Print JSON."`
}

func (ingestCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"items":  "Items of each file; default ${default}.",
		"events": "Events; default ${default}.",
		"dir":    "Where files and catalogs are made; default: the folder for temporary files.",
	}
}

func (ingestCmd) Help() string {
	return `Imports generated items from CSV and Parquet, and events from CSV, into an empty folder: once as a dry run,
which parses and checks, and once durably.

Examples:

    grebe-bench ingest
    grebe-bench ingest --items 10000000 --events 0 --only parquet`
}

func (c *ingestCmd) Run(w *cli.World) error {
	o := ingest.Options{Items: c.Items, Events: c.Events, Only: c.Only, Once: c.Once, Dir: c.Dir, JSON: c.JSON}
	if err := o.Validate(); err != nil {
		return cli.Usage(err)
	}
	return ingest.Run(w, o)
}

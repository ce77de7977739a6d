package main

import (
	"grebe/bench/ingest"
	"grebe/internal/cli"
)

type ingestCmd struct {
	Items  int    `default:"300000" want:"at least 1 and at most 100000000" placeholder:"N"`
	Events int    `default:"300000" want:"at least 0 and at most 100000000" placeholder:"N"`
	Only   string `want:"one of csv, parquet" placeholder:"FORMAT"`
	Once   bool   `help:"Leave out the dry run."`
	Dir    string `type:"path" placeholder:"DIR"`
	JSON   bool   `name:"json" help:"Print JSON."`
}

func (ingestCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"items":  "Items per file; default ${default}.",
		"events": "Number of events; default ${default}. 0 leaves them out.",
		"only":   "Import one format only: csv or parquet. Default: both.",
		"dir":    "Folder for files and catalogs. Default: the folder for temporary files.",
	}
}

func (ingestCmd) Help() string {
	return `Measures imports of generated items from CSV and Parquet, and of events from CSV, in records per second.
Each file is imported into an empty folder: once as a dry run, which only parses and checks, and once to disk.

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

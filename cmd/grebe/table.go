package main

import (
	"grebe/app"
	"grebe/ingest"
	"grebe/internal/cli"
)

// tableCmd has the commands for tables of embeddings.
type tableCmd struct {
	Import tableImportCmd `cmd:"" help:"Write rows of a table of embeddings from files."`
}

func (tableCmd) Help() string {
	return `Examples:

    grebe table import items vectors.npy -c grebe.yaml`
}

type tableImportCmd struct {
	Table    string   `arg:"" help:"Name of the table, as the configuration has it."`
	Files    []string `arg:"" type:"path" placeholder:"FILE"`
	Config   string   `short:"c" type:"path" xor:"target" placeholder:"FILE"`
	Server   string   `xor:"target" help:"Write through this running server." placeholder:"URL"`
	Dim      int      `want:"at least 1" help:"Numbers of a row; needed with --server." placeholder:"N"`
	FirstKey uint64   `help:"Key of the first row of .npy and .f32 files; the others follow." placeholder:"N"`
	cli.AccessFlags
}

func (tableImportCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"files": "Rows: .npy (float32, two dimensions), .f32 (numbers row after row) or .ndjson ({\"key\": 17, \"row\": " +
			"[..]} per line).",
		"config": "Write to the table's store, as this configuration names it.",
	}
}

func (tableImportCmd) Help() string {
	return `Rows replace existing rows of the same keys. All servers see rows of a table in Redis at once. A table in
Pebble belongs to the server on its data_dir: use --server while that server runs. A command that was stopped can be
run again.

Examples:

    grebe table import items vectors.npy -c grebe.yaml
    grebe table import items changed.ndjson --server http://127.0.0.1:8080 --dim 128`
}

func (c *tableImportCmd) Run(w *cli.World) error {
	return (&ingest.Rows{
		Table: c.Table, Files: c.Files, Config: c.Config, Server: c.Server, Dim: c.Dim, FirstKey: c.FirstKey,
		Access: &c.AccessFlags,
		Specs:  app.TableSpecs,
	}).Run(w)
}

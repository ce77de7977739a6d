package main

import (
	"grebe/app"
	"grebe/ingest"
	"grebe/internal/cli"
)

type importCmd struct {
	Files   []string `arg:"" type:"path" help:"NDJSON files: one item or user per line, or {\"delete\": \"id\"}." placeholder:"FILE"`
	Server  string   `xor:"target" help:"Import through this running server." placeholder:"URL"`
	Config  string   `short:"c" xor:"target" type:"path" help:"Import into the data_dir of this configuration." placeholder:"FILE"`
	DataDir string   `xor:"target" type:"path" help:"Import into this folder; default: GREBE_DATA_DIR or ./grebe-data." placeholder:"DIR"`
	Kind    string   `default:"" enum:"items,users," help:"What the files hold: items or users; default: told by name or content."`
	OnError string   `default:"stop" enum:"skip,stop" help:"What a bad line does: ${enum}."`
	Restart bool     `help:"Begin at the start of each file, whatever was imported before."`
	Force   bool     `help:"Import even if a model is left with fewer than half of the items that it can generate."`
	cli.AccessFlags
}

func (importCmd) Help() string {
	return `An import becomes one version of the catalog, which POST /v1/catalog:rollback undoes. One that was stopped
goes on where it was when the same command is run again. Bad lines are reported with number and reason.

Before anything changes the items are checked against the models: those of the server, or of -c. Codes that
a model does not have are reported. An import that would leave a model with fewer than half of the items
that it can generate stops; --force lets it go on.

A server has its data_dir to itself: while it runs, import through it with --server.

Examples:

    grebe import items.ndjson users.ndjson -c grebe.yaml
    grebe import --kind items --on-error skip catalog.ndjson --data-dir ./grebe-data
    grebe import items.ndjson --server http://127.0.0.1:8080`
}

func (c *importCmd) Run(w *cli.World) error {
	return (&ingest.Import{
		Files: c.Files, Server: c.Server, Config: c.Config, DataDir: c.DataDir, Kind: c.Kind,
		Skip: c.OnError == "skip", Restart: c.Restart, Force: c.Force, Access: &c.AccessFlags, Codes: app.UsableCodes,
	}).Run(w)
}

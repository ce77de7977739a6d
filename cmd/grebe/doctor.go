package main

import (
	"encoding/json"
	"fmt"
	"os"

	grebev1 "grebe/api/grebe/v1"
	"grebe/app"
	"grebe/app/doctor"
	"grebe/catalog"
	"grebe/generate"
	"grebe/ingest"
	"grebe/internal/cli"
	"grebe/internal/config"
	"grebe/internal/datadir"
	"grebe/prompt"
)

type doctorCmd struct {
	Config  string `short:"c" type:"path" placeholder:"FILE"`
	JSON    bool   `name:"json" help:"Print JSON."`
	Repair  bool   `help:"Repair a damaged data_dir while no server runs on it, and print what was lost."`
	DataDir string `type:"path" placeholder:"DIR"`
}

func (doctorCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"config": "Check this configuration too: models, catalog, addresses.",
		"data-dir": "With --repair: the folder to repair; default: that of the configuration, or GREBE_DATA_DIR or " +
			"./grebe-data.",
	}
}

func (doctorCmd) Help() string {
	return `Exits with 1 when something needed is broken.

With --repair grebe doctor checks the data folder only. It rebuilds damaged files whose content is known. If that is
not enough, it copies everything that can be read and keeps the damaged files in a folder beside. Intact files stay as
they are.

Examples:

    grebe doctor
    grebe doctor -c grebe.yaml
    grebe doctor -c grebe.yaml --repair`
}

func (c *doctorCmd) Run(w *cli.World) error {
	var r *doctor.Report
	if c.DataDir != "" && !c.Repair {
		return cli.Usagef("--data-dir names the folder that --repair repairs. A check reads data_dir of the configuration")
	}
	if c.Repair {
		dir, err := ingest.DataDir(c.DataDir, c.Config, w.Env)
		if err != nil {
			return err
		}
		r = doctor.Repair(dir)
	} else {
		r = doctor.Examine("/", c.Config, w.Env)
		if c.Config != "" && !r.Failed() {
			c.codes(w, r)
		}
	}
	if err := c.print(w, r); err != nil {
		return err
	}
	if r.Failed() {
		return cli.ErrReported
	}
	return nil
}

// codes reports items whose codes a model does not have, of the catalog and of the file that the configuration names.
func (c *doctorCmd) codes(w *cli.World, r *doctor.Report) {
	cfg, err := config.Load(config.Source{File: c.Config, Env: w.Env})
	if err != nil {
		return // it is reported
	}
	models, err := app.CodesOf(&cfg.Config)
	if err != nil {
		r.Warn("codes", "correct the model's codes", "%v", err)
		return
	}
	f := generate.NewForecast(func(string) (*prompt.Item, bool) { return nil, false }, models...)
	if _, err := os.Stat(datadir.Catalog(cfg.DataDir)); err == nil && len(models) > 0 {
		items, err := catalog.Open(datadir.Catalog(cfg.DataDir), catalog.Options{})
		if err != nil { // a server has it, and says at its start what it cannot generate
			return
		}
		for e := range items.All() {
			f.Put(e.Item.ID, e.Item.Codes)
		}
		if err := items.Close(); err != nil {
			r.Warn("catalog", "", "%v", err)
		}
	} else if cfg.Catalog.Items != "" && len(models) > 0 {
		err := ingest.EachItem(w.Ctx, cfg.Catalog.Items, func(it *grebev1.Item) { f.Put(it.Id, it.Codes) })
		if err != nil {
			r.Warn("catalog", "", "%v", err)
		}
	}
	for _, m := range f.Impacts() {
		if text := m.Warning(); text != "" {
			r.Warn("codes", "make the items' codes and the model's codes fit: models[].codes", "%s", text)
		}
	}
}

func (c *doctorCmd) print(w *cli.World, r *doctor.Report) error {
	if c.JSON {
		enc := json.NewEncoder(w.Stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	if err := r.Print(w.Stdout); err != nil {
		return err
	}
	if !r.Failed() {
		_, err := fmt.Fprintln(w.Stdout, "Nothing needed is broken.")
		return err
	}
	_, err := fmt.Fprintln(w.Stdout, "Something needed is broken: see the lines that begin with fail.")
	return err
}

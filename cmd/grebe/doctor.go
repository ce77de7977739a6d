package main

import (
	"encoding/json"
	"fmt"

	"grebe/cmd/grebe/internal/doctor"
)

type doctorCmd struct {
	Config  string `short:"c" type:"path" help:"Check this configuration too: models, catalog, addresses." placeholder:"FILE"`
	JSON    bool   `name:"json" help:"Print JSON."`
	Repair  bool   `help:"Repair a damaged data_dir while no server runs on it, and print what was lost."`
	DataDir string `type:"path" help:"With --repair: the folder to repair; default: that of the configuration, or GREBE_DATA_DIR or ./grebe-data." placeholder:"DIR"`
}

func (doctorCmd) Help() string {
	return `Exits with 1 when something needed is broken.

With --repair nothing but the data folder is looked at. Files that can be made anew are. Where that is not enough, all that can
be read is copied, and the damaged files are kept in a folder beside. What is in order is left as it is.

Examples:

    grebe doctor
    grebe doctor -c grebe.yaml
    grebe doctor -c grebe.yaml --repair`
}

func (c *doctorCmd) Run(w *world) error {
	var r *doctor.Report
	if c.DataDir != "" && !c.Repair {
		return usagef("--data-dir goes with --repair")
	}
	if c.Repair {
		dir, err := (&importCmd{DataDir: c.DataDir, Config: c.Config}).dataDir(w)
		if err != nil {
			return err
		}
		r = doctor.Repair(dir)
	} else {
		r = doctor.Examine("/", c.Config, w.env)
	}
	if err := c.print(w, r); err != nil {
		return err
	}
	if r.Failed() {
		return errReported
	}
	return nil
}

func (c *doctorCmd) print(w *world, r *doctor.Report) error {
	if c.JSON {
		enc := json.NewEncoder(w.stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	if err := r.Print(w.stdout); err != nil {
		return err
	}
	if !r.Failed() {
		_, err := fmt.Fprintln(w.stdout, "Nothing needed is broken.")
		return err
	}
	_, err := fmt.Fprintln(w.stdout, "Something needed is broken: see the lines that begin with fail.")
	return err
}

package main

import (
	"encoding/json"
	"fmt"

	"grebe/cmd/grebe/internal/doctor"
)

type doctorCmd struct {
	Config string `short:"c" type:"path" help:"Check this configuration too: models, catalog, addresses." placeholder:"FILE"`
	JSON   bool   `name:"json" help:"Print JSON."`
}

func (doctorCmd) Help() string {
	return `Exits with 1 when something needed is broken.

Examples:

    grebe doctor
    grebe doctor -c grebe.yaml`
}

func (c *doctorCmd) Run(w *world) error {
	r := doctor.Examine("/", c.Config, w.env)
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

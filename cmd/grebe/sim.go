package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"grebe/internal/cli"
	"grebe/sim"
)

// simCmd simulates a fleet.
type simCmd struct {
	Scenario string  `arg:"" optional:"" type:"existingfile" help:"YAML file that says what to simulate."`
	Example  bool    `help:"Print a scenario that explains all keys."`
	Trace    string  `type:"existingfile" placeholder:"FILE"`
	Seed     *uint64 `help:"Seed; the scenario's if absent." placeholder:"N"`
	JSON     bool    `name:"json" help:"Print JSON."`
	HTML     string  `name:"html" type:"path" want:"a file that can be written" placeholder:"FILE"`
}

func (simCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"trace": "Play the requests of this file (NDJSON) instead of the scenario's.",
		"html":  "Write plots to this file.",
	}
}

func (simCmd) Help() string {
	return `Runs a fleet in virtual time on the code that serves. The same scenario and seed give the same numbers.
docs/how-to/capacity.md shows how to size a fleet. Ctrl-C prints what there is.

Examples:

    grebe sim --example > fleet.yaml
    grebe sim fleet.yaml
    grebe sim fleet.yaml --trace requests.ndjson --html fleet.html
    grebe sim fleet.yaml --seed 7 --json`
}

func (c *simCmd) Run(w *cli.World) error {
	if c.Example {
		_, err := io.WriteString(w.Stdout, sim.Example)
		return err
	}
	if c.Scenario == "" {
		return cli.Usage(errors.New("name a scenario; grebe sim --example prints one"))
	}
	s, err := c.scenario()
	if err != nil {
		return cli.Usage(err)
	}
	bar, last := cli.NewRequestBar(w), 0
	rep, err := sim.Play(w.Ctx, s, sim.Options{Progress: func(done, total int) {
		if done < last { // the next run of a sweep
			bar.End()
			bar = cli.NewRequestBar(w)
		}
		last = done
		bar.Update(done, total)
	}})
	bar.End()
	if err != nil {
		return err
	}
	if text := rep.Warning(); text != "" {
		fmt.Fprintln(w.Stderr, "Warning: "+text)
	}
	if c.HTML != "" {
		if err := writeTo(c.HTML, rep.HTML); err != nil {
			return fmt.Errorf("write plots: %w", err)
		}
	}
	if c.JSON {
		enc := json.NewEncoder(w.Stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(rep)
	}
	return rep.Text(w.Stdout)
}

func (c *simCmd) scenario() (*sim.Scenario, error) {
	return sim.ReadScenario(c.Scenario, func(s *sim.Scenario) {
		if c.Trace != "" {
			s.Trace.File = c.Trace
		}
		if c.Seed != nil {
			s.Seed = *c.Seed
		}
	})
}

func writeTo(file string, write func(io.Writer) error) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

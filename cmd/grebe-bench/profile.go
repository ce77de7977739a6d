package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"grebe/bench/drive"
	"grebe/bench/profile"
	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/compute/cuda"
	"grebe/compute/null"
	"grebe/internal/cli"
)

type profileCmd struct {
	programFlag
	Device  string        `default:"cpu" enum:"cpu,gpu,none"`
	Threads int           `want:"at least 1 and at most 1024" help:"CPU threads; default: all cores." placeholder:"N"`
	Models  []string      `default:"demo,qwen2-0.5b" help:"Models to measure; default ${default}." placeholder:"NAME"`
	Label   string        `help:"First part of the names of profiles. Default: the device." placeholder:"NAME"`
	Repeats int           `want:"at least 1" default:"3" placeholder:"N"`
	Passes  int           `want:"at least 1" default:"4" placeholder:"N"`
	Longest time.Duration `want:"above 0" default:"1500ms" placeholder:"TIME"`
	Budget  time.Duration `want:"above 0" default:"60s" placeholder:"TIME"`
	Out     string        `default:"." type:"path" placeholder:"DIR"`
	Derive  bool
	Seed    uint64 `default:"1" help:"Seed of the weights; default ${default}."`
}

func (profileCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"device":  "cpu, gpu, or none, which only waits; default ${default}.",
		"repeats": "Repetitions of a batch in a pass; default ${default}.",
		"passes":  "Passes over all batches; default ${default}.",
		"longest": "Leave out larger batches once one takes longer than this; default ${default}.",
		"budget":  "Longest time per model; further batches are left out. Default ${default}.",
		"out":     "Folder for the profiles. Default: the current folder.",
		"derive":  "Measure nothing; derive profiles of other devices from those of an H200 in --out.",
	}
}

func (profileCmd) Help() string {
	return `Measures this machine's device for grebe sim: the time of a batch by its rows, keys, segments and cached
tokens, and the bandwidth from host memory. It also runs a server with the demo's model, to measure how much slower
batches are there and how long work outside of batches takes. It writes LABEL-MODEL.json for each model, and the samples
of all.

Models: ` + strings.Join(profile.Names(), ", ") + `

Examples:

    grebe-bench profile --device cpu --threads 2 --models demo,qwen2-0.5b --label amx2 --out sim/profiles
    grebe-bench profile --device gpu --models qwen2-1.5b,llama3-1b,qwen3-8b,hstu-3,hstu-6 \
        --label h200 --out sim/profiles
    grebe-bench profile --derive --out sim/profiles`
}

func (c *profileCmd) Run(w *cli.World) error {
	if c.Derive {
		return profile.Derive(c.Out, func(name string) { fmt.Fprintln(w.Stdout, name) })
	}
	d, err := c.open()
	if err != nil {
		return err
	}
	defer d.Close()
	program, err := c.program()
	if err != nil {
		fmt.Fprintf(w.Stderr, "no server is measured, so that its work outside of batches is left out: %v\n", err)
	}
	if c.Label == "" {
		c.Label = c.Device
	}
	fmt.Fprintln(w.Stdout, d.Name())
	reports, err := profile.Run(w.Ctx, profile.Options{
		Device: d, Label: c.Label, Models: c.Models, Repeats: c.Repeats, Passes: c.Passes, Longest: c.Longest,
		Budget: c.Budget, Seed: c.Seed,
		Program: program, Settings: c.settings(),
		Command: "grebe-bench " + strings.Join(os.Args[1:], " "),
		Log:     func(format string, args ...any) { fmt.Fprintf(w.Stdout, format, args...) },
	})
	if writeErr := profile.Write(c.Out, c.Label, reports); err == nil {
		err = writeErr
	}
	return err
}

// settings are those of a server on the same device.
func (c *profileCmd) settings() []drive.Setting {
	out := []drive.Setting{{Key: "device", Value: map[string]string{
		"cpu": "cpu", "gpu": "cuda", "none": fmt.Sprintf("none:%v+%v", noneBatch, noneToken)}[c.Device]}}
	if c.Threads > 0 {
		out = append(out, drive.Setting{Key: "threads", Value: fmt.Sprint(c.Threads)})
	}
	return out
}

// The times of the device none. A ranking takes about as long as on a GPU with a larger model.
const (
	noneBatch = 4 * time.Millisecond
	noneToken = 40 * time.Microsecond
)

func (c *profileCmd) open() (compute.Device, error) {
	switch c.Device {
	case "gpu":
		return cuda.New(cuda.Options{})
	case "none":
		return null.New(null.Options{Fixed: noneBatch, Row: noneToken}), nil
	}
	return cpu.New(cpu.Options{Threads: c.Threads})
}

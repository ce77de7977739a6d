package main

import (
	"time"

	"grebe/bench/simcheck"
	"grebe/internal/cli"
)

type simCheckCmd struct {
	programFlag
	Device     string        `default:"cpu" enum:"cpu,gpu,none"`
	Nodes      []int         `want:"at least 1 and at most 16" placeholder:"N"`
	Threads    int           `want:"at least 1 and at most 1024" placeholder:"N"`
	Model      string        `default:"demo" enum:"demo,llama3-1b,qwen2-0.5b,qwen2-1.5b,qwen3-8b" placeholder:"NAME"`
	Profile    string        `placeholder:"NAME"`
	Shares     []float64     `want:"above 0 and at most 1.5" placeholder:"SHARE"`
	Length     time.Duration `want:"above 0" placeholder:"TIME"`
	Deadline   time.Duration `want:"above 0" help:"Deadline of a ranking, and the SLO; default 1s." placeholder:"TIME"`
	Candidates int           `want:"at least 1 and at most 1000" placeholder:"N"`
	Where      bool
	Seed       uint64 `default:"1" help:"Seed of the requests; default ${default}." placeholder:"N"`
	Check      bool   `help:"Exit with 1 if a prediction is too far off."`
	JSON       bool   `name:"json" help:"Print JSON."`
}

func (simCheckCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"device":     "cpu, gpu, or none, which only waits; default ${default}.",
		"nodes":      "Sizes of clusters to compare; default 1, a server without a cluster.",
		"threads":    "CPU threads; default: all cores.",
		"model":      "Model of the server: demo, or the size of one with random weights; default ${default}.",
		"profile":    "Profile to use, a name or a .json file. Default: measure one first.",
		"shares":     "Rates, as shares of the predicted highest; default 0.3,0.5,0.7.",
		"length":     "Length of the measurement at each rate; default 25s.",
		"candidates": "Candidates per ranking; default 60.",
		"where":      "Also compare batch by batch. The server then records its decisions, which costs time.",
	}
}

func (simCheckCmd) Help() string {
	return `Checks how well grebe sim predicts a server. It measures a profile of this machine's device, as grebe-bench
profile does. Then it starts a server and sends rankings at random times: customers of the demo shop return with
longer histories. One simulated node gets the same requests at the same times. The command compares throughput,
refusals, reused tokens and latencies. Both caches are empty at the start. Run it on a machine that does nothing else.

With --nodes 1,3 it also compares a cluster of three nodes with three simulated ones. The device none lets several
nodes share a machine: it waits as long as a batch would take.

With --where it shows where a difference comes from: the time of each batch, measured and predicted.

Examples:

    grebe-bench sim-check --device cpu --threads 2 --check
    grebe-bench sim-check --device gpu --model qwen2-1.5b --check
    grebe-bench sim-check --device none --nodes 1,3 --shares 0.5 --length 60s
    grebe-bench sim-check --profile amx2-demo --shares 0.5 --length 10s`
}

func (c *simCheckCmd) Run(w *cli.World) error {
	program, err := c.program()
	if err != nil {
		return err
	}
	device := profileCmd{Device: c.Device, Threads: c.Threads}
	r, err := simcheck.Run(w.Ctx, simcheck.Options{
		Program: program, Device: c.Device, Model: c.Model, Profile: c.Profile, Settings: device.settings(),
		Open:  device.open,
		Nodes: c.Nodes, Shares: c.Shares, Length: c.Length,
		Deadline: c.Deadline, Candidates: c.Candidates, Where: c.Where, Seed: c.Seed, JSON: c.JSON, Progress: w.Stderr,
	}, w.Stdout)
	if err == nil && c.Check && !r.Passed {
		return cli.ErrReported
	}
	return err
}

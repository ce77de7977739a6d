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
	Length     time.Duration `want:"above 0" help:"Of a rate; default 25s." placeholder:"TIME"`
	Deadline   time.Duration `want:"above 0" help:"Of a ranking, and the SLO; default 1s." placeholder:"TIME"`
	Candidates int           `want:"at least 1 and at most 1000" help:"Of a ranking; default 60." placeholder:"N"`
	Where      bool          `help:"Also compare batch by batch; the server records its decisions, which costs time."`
	Seed       uint64        `default:"1" help:"Of the requests." placeholder:"N"`
	Check      bool          `help:"Fail when a prediction is outside the bars."`
	JSON       bool          `name:"json" help:"Print JSON."`
}

func (simCheckCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"device":  "cpu, gpu, or none, which computes nothing in a given time; default ${default}.",
		"nodes":   "Sizes of clusters on this machine that get the same requests; default 1, a server without one.",
		"threads": "Threads of a CPU; default all cores.",
		"model":   "Model of the server: the demo's, or one of random weights; default ${default}.",
		"profile": "Profile of this device and model, by name or a .json file; default one is fitted first.",
		"shares":  "Rates, as shares of the capacity; default 0.3,0.5,0.7.",
	}
}

func (simCheckCmd) Help() string {
	return `Checks how well grebe sim predicts a server. It fits a profile to this machine's device, as grebe-bench profile
does, starts a server with the model and sends rankings at random times: customers of the shop come back with longer
histories. Then it gives the same requests at the same times to one simulated node whose batches take as long as the
profile predicts, and compares throughput, refusals, reused tokens and latencies. Both begin with an empty cache.

With --nodes 1,3 it also compares a cluster of three with three simulated nodes, and says how much less each request
computes than on one node. The device none lets several nodes share a machine: it waits as long as a batch would take.

With --where it also shows where a difference is: each batch of the server beside what the profile predicts for that
batch.

Run it on a machine that does nothing else.

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

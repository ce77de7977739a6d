package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"grebe/bench/load"
	"grebe/bench/report"
	"grebe/bench/serving"
	"grebe/internal/cli"
)

type serveCmd struct {
	URL     string        `name:"url" help:"Address of the server; default ${default}." default:"http://127.0.0.1:8080" placeholder:"URL"`
	Model   string        `help:"Model to ask; default the server's only one." placeholder:"NAME"`
	Rates   []float64     `want:"above 0" help:"Rates of open loops, per second." placeholder:"RATE"`
	Clients []int         `want:"at least 1 and at most 4096" help:"Clients of closed loops." placeholder:"N"`
	Width   int           `want:"at least 1 and at most 8192" default:"128" help:"Beams of a request; default ${default}." placeholder:"N"`
	Filter  string        `help:"Filter of each request as JSON; items of --make have one of ten values of tenth." placeholder:"JSON"`
	Rank    int           `want:"at least 1 and at most 10000" help:"Ask for rankings of so many candidates instead." placeholder:"N"`
	Users   int           `want:"at least 1" default:"2000" help:"Users of the server, named u0, u1 and so on; default ${default}." placeholder:"N"`
	Zipf    float64       `want:"above 0" default:"1.05" help:"Exponent of the law that users are drawn by; default ${default}." placeholder:"S"`
	Length  time.Duration `want:"above 0" default:"20s" help:"Length of each loop; default ${default}." placeholder:"TIME"`
	Warmup  time.Duration `want:"above 0" default:"2s" help:"Load ahead of each loop that is not counted; default ${default}." placeholder:"TIME"`
	SLO     time.Duration `name:"slo" want:"above 0" default:"200ms" help:"Within which an answer counts; default ${default}." placeholder:"TIME"`
	Seed    uint64        `default:"1" help:"Of requests and files; default ${default}."`
	Make    string        `type:"path" help:"Write a model, items, users and grebe.yaml to this folder, and ask nobody." placeholder:"DIR"`
	Shape   string        `default:"qwen3-0.6b" enum:"tiny,qwen2-1.5b,qwen3-0.6b,qwen3-1.7b" help:"Model that --make writes: tiny, qwen2-1.5b, qwen3-0.6b or qwen3-1.7b; default ${default}."`
	Ranker  string        `help:"Second model that --make writes, for rankings: qwen2-1.5b or another shape." placeholder:"SHAPE"`
	Items   int           `want:"at least 1" default:"1000000" help:"Items that --make writes; default ${default}." placeholder:"N"`
	Codes   int           `want:"at least 1 and at most 65536" default:"512" help:"Codes of each of an item's three levels; default ${default}." placeholder:"N"`
	Memory  string        `default:"20GiB" help:"Memory of the device for KV, in grebe.yaml; default ${default}." placeholder:"SIZE"`
	JSON    bool          `name:"json" help:"Print JSON."`
	File    string        `type:"path" want:"a file that can be written" help:"Write JSON to this file besides." placeholder:"FILE"`
}

func (serveCmd) Help() string {
	return `Asks a running server for recommendations or, with --rank, for rankings. An open loop sends requests at random
times (Poisson), whether earlier ones were answered or not. A rate is sustained if 99 % of all requests are answered
within the SLO of the time at which they were due; refused ones count as misses. A closed loop has clients that wait for
each answer. Run it on cores of its own. The same seed sends the same requests again, whose users are then cached: take
another one for each run on the same server.

Examples:

    grebe-bench serve --make bench-serve
    grebe serve -c bench-serve/grebe.yaml
    grebe-bench serve --rates 200,400 --clients 1,16,64
    grebe-bench serve --rates 200 --filter '{"tenth": ["3"]}'
    taskset -c 12-15 grebe-bench serve --seed 2 --width 512 --rates 250 --length 60s --json`
}

func (c *serveCmd) Run(w *cli.World) error {
	if c.Make != "" {
		name, err := serving.Make(c.Make, serving.Files{
			Shape: c.Shape, Rank: c.Ranker, Items: c.Items, Codes: c.Codes, Users: c.Users, Memory: c.Memory, Seed: c.Seed})
		if err == nil {
			fmt.Fprintf(w.Stdout, "grebe serve -c %s\n", name)
		}
		return err
	}
	if len(c.Rates) == 0 && len(c.Clients) == 0 {
		return cli.Usagef("nothing to do: give --rates, --clients or --make")
	}
	loops, err := serving.Run(w.Ctx, serving.Options{
		URL: c.URL, Model: c.Model, Users: c.Users, Zipf: c.Zipf, Width: c.Width, Filter: c.Filter, Candidates: c.Rank,
		Rates: c.Rates, Clients: c.Clients,
		Length: c.Length, Warmup: c.Warmup, SLO: c.SLO, Seed: c.Seed,
	})
	if err != nil {
		return err
	}
	if c.File != "" {
		if err := c.write(loops); err != nil {
			return err
		}
	}
	if c.JSON {
		return report.JSON(w.Stdout, loops)
	}
	return printLoops(w.Stdout, loops)
}

func (c *serveCmd) write(loops []serving.Loop) error {
	f, err := os.Create(c.File)
	if err != nil {
		return err
	}
	if err := load.WriteJSON(f, loops); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

func printLoops(w io.Writer, loops []serving.Loop) error {
	t := report.Table(w)
	fmt.Fprintln(t, "\twidth\trequests\tanswered/s\twithin SLO\tsustained\tP50 ms\tP99 ms\tlag "+
		"P99\tcomputed\tcached\terrors\t")
	for i := range loops {
		l := &loops[i]
		sustained := map[bool]string{true: "yes", false: "no"}[l.Sustained]
		if l.Clients > 0 {
			sustained = "–"
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%.1f\t%.2f %%\t%s\t%.1f\t%.1f\t%.1f\t%.0f\t%.0f\t%v\t\n", l.Name, l.Width, l.Requests,
			l.Throughput, 100*l.Within,
			sustained, l.Latency.P50, l.Latency.P99, l.Lag.P99, l.Computed, l.Cached, l.Errors)
	}
	return t.Flush()
}

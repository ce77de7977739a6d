package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"grebe/bench/load"
	"grebe/bench/report"
	"grebe/bench/serving"
	"grebe/internal/cli"
	"grebe/internal/human"
)

type serveCmd struct {
	URL      string        `name:"url" default:"http://127.0.0.1:8080" placeholder:"URL"`
	Model    string        `help:"Model to ask; default the server's only one." placeholder:"NAME"`
	Rates    []float64     `want:"above 0" help:"Rates of open loops, per second." placeholder:"RATE"`
	Clients  []int         `want:"at least 1 and at most 4096" help:"Clients of closed loops." placeholder:"N"`
	Width    int           `want:"at least 1 and at most 8192" default:"128" placeholder:"N"`
	Filter   string        `placeholder:"JSON"`
	Rank     int           `want:"at least 1 and at most 10000" placeholder:"N"`
	New      int           `want:"at least 1 and at most 10000" placeholder:"N"`
	Send     string        `default:"new" enum:"new,append,whole"`
	Users    int           `want:"at least 1" default:"2000" placeholder:"N"`
	Zipf     float64       `want:"above 0" default:"1.05" placeholder:"S"`
	Length   time.Duration `want:"above 0" default:"20s" placeholder:"TIME"`
	Warmup   time.Duration `want:"above 0" default:"2s" placeholder:"TIME"`
	SLO      time.Duration `name:"slo" want:"above 0" default:"200ms" placeholder:"TIME"`
	Deadline time.Duration `want:"above 0" placeholder:"TIME"`
	First    bool
	Soak     string        `type:"path" placeholder:"DIR"`
	Reload   time.Duration `want:"above 0" default:"60s" placeholder:"TIME"`
	Swap     time.Duration `want:"above 0" default:"20s" placeholder:"TIME"`
	Seed     uint64        `default:"1" help:"Of requests and files; default ${default}."`
	Make     string        `type:"path" placeholder:"DIR"`
	Shape    string        `default:"qwen3-0.6b" enum:"tiny,qwen2-1.5b,qwen3-0.6b,qwen3-1.7b,hstu-tiny,hstu-6x15000"`
	Ranker   string        `placeholder:"SHAPE"`
	Items    int           `want:"at least 1" default:"1000000" placeholder:"N"`
	Codes    int           `want:"at least 1 and at most 65536" default:"512" placeholder:"N"`
	Events   int           `want:"at least 1 and at most 20000" placeholder:"N"`
	Memory   string        `default:"20GiB" placeholder:"SIZE"`
	Rows     string        `name:"device-rows" placeholder:"SHARE"`
	JSON     bool          `name:"json" help:"Print JSON."`
	File     string        `type:"path" want:"a file that can be written" placeholder:"FILE"`
}

func (serveCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"url":    "Address of the server; default ${default}.",
		"width":  "Beams of a request; default ${default}.",
		"filter": "Filter of each request as JSON; items of --make have one of ten values of tenth.",
		"rank":   "Ask for rankings of so many candidates instead.",
		"new":    "New events of its user that each ranking brings.",
		"send": "How: new, beside the user's id; append, stored by a request ahead of it; whole, behind all stored ones " +
			"in its body; default ${default}.",
		"users":    "Users of the server, named u0, u1 and so on; default ${default}.",
		"zipf":     "Exponent of the law that users are drawn by; default ${default}.",
		"length":   "Length of each loop; default ${default}.",
		"warmup":   "Load ahead of each loop that is not counted; default ${default}.",
		"slo":      "Within which an answer counts; default ${default}.",
		"deadline": "Deadline that requests have; default the SLO, or a minute for --clients.",
		"first":    "Time the first request of each kind and size of a server that has just started, and later ones.",
		"soak":     "Change items and reload the model beside the one rate: the folder of --make that the server serves.",
		"reload":   "From a reload to the next, with --soak; default ${default}.",
		"swap":     "From a change of 1,000 items to the next, with --soak; default ${default}.",
		"make":     "Write a model twice with different weights, items, users and grebe.yaml to this folder, and ask nobody.",
		"shape": "Model that --make writes: tiny, qwen2-1.5b, qwen3-0.6b, qwen3-1.7b, or the models of events hstu-tiny " +
			"and hstu-6x15000; default ${default}.",
		"ranker": "Second model that --make writes, for rankings: qwen2-1.5b or another shape.",
		"items":  "Items that --make writes, and that requests with --new name; default ${default}.",
		"codes":  "Codes of each of an item's three levels; default ${default}.",
		"events": "Stored events of each user of a model of events; default 300 with hstu-tiny, else 15000.",
		"memory": "Memory of the device for KV, in grebe.yaml; default ${default}.",
		"device-rows": "Put the items' rows of a model of events into a file, and let the device cache as much of them " +
			"as this share of device_memory holds.",
		"file": "Write JSON to this file besides.",
	}
}

func (serveCmd) Help() string {
	return `Asks a running server for recommendations or, with --rank, for rankings. An open loop sends requests at random
times (Poisson), whether earlier ones were answered or not. A rate is sustained if 99 % of all requests are answered
within the SLO of the time at which they were due; refused ones count as misses. A closed loop has clients that wait for
each answer. Run it on cores of its own. The same seed sends the same requests again, whose users are then cached: take
another one for each run on the same server.

A soak (--soak) changes 1,000 items and reloads the model with other weights, again and again, while an open loop runs.
It fails if a request is not answered within its deadline, a change takes no effect, or memory grows by more than 2 %
and 32 MiB from the middle fifth of the time to the last. The first fifth, in which caches fill, and samples that were
taken during reloads are left out.

With --first one request of each kind goes to a server that has just started: rankings, scores and recommendations of
50, 128 and 512 beams, for prompts of 8 to 2,048 rows, none of which is cached. Nine more of each follow. A first
request that takes more than twice the median of those is slow, and the command fails.

Examples:

    grebe-bench serve --make bench-serve
    grebe serve -c bench-serve/grebe.yaml
    grebe-bench serve --rates 200,400 --clients 1,16,64
    grebe-bench serve --rank 100 --new 20 --clients 16,64
    grebe-bench serve --rates 200 --filter '{"tenth": ["3"]}'
    taskset -c 12-15 grebe-bench serve --seed 2 --width 512 --rates 250 --length 60s --json
    grebe-bench serve --soak bench-serve --rates 380 --length 5m --deadline 2s
    grebe-bench serve --first`
}

func (c *serveCmd) Run(w *cli.World) error {
	if c.Make != "" {
		name, err := serving.Make(c.Make, serving.Files{
			Shape: c.Shape, Rank: c.Ranker, Items: c.Items, Codes: c.Codes, Users: c.Users, Events: c.Events,
			Memory: c.Memory, DeviceRows: c.Rows, Seed: c.Seed})
		if err == nil {
			fmt.Fprintf(w.Stdout, "grebe serve -c %s\n", name)
		}
		return err
	}
	if c.First {
		return c.first(w)
	}
	if len(c.Rates) == 0 && len(c.Clients) == 0 {
		return cli.Usagef("nothing to do: give --rates, --clients, --first or --make")
	}
	items := 0 // those that can be ranked
	if c.New > 0 {
		items = c.Items
	}
	o := serving.Options{
		URL: c.URL, Model: c.Model, Users: c.Users, Zipf: c.Zipf, Width: c.Width, Filter: c.Filter, Candidates: c.Rank,
		New: c.New, Send: serving.Send(c.Send), Events: c.Events, Items: items,
		Rates: c.Rates, Clients: c.Clients,
		Length: c.Length, Warmup: c.Warmup, SLO: c.SLO, Deadline: c.Deadline, Seed: c.Seed,
	}
	if c.Soak != "" {
		return c.soak(w, o)
	}
	loops, err := serving.Run(w.Ctx, o)
	if err != nil {
		return err
	}
	return c.report(w, loops, func() error { return printLoops(w.Stdout, loops) })
}

// soak runs a soak, prints it and returns what was wrong in it.
func (c *serveCmd) soak(w *cli.World, o serving.Options) error {
	if len(c.Rates) != 1 || len(c.Clients) > 0 || c.Rank > 0 {
		return cli.Usagef("--soak wants one of --rates, and neither --clients nor --rank")
	}
	o.Items = c.Items
	s, err := serving.Soak(w.Ctx, serving.SoakOptions{Options: o, Folder: c.Soak, Reload: c.Reload, Swap: c.Swap})
	if err != nil {
		return err
	}
	return errors.Join(c.report(w, s, func() error { return printSoak(w.Stdout, s) }), s.Err())
}

// first times first requests, prints them and returns an error if some were slow.
func (c *serveCmd) first(w *cli.World) error {
	all, err := serving.Firsts(w.Ctx, serving.FirstOptions{URL: c.URL, Model: c.Model, Seed: c.Seed})
	if err != nil {
		return err
	}
	return errors.Join(c.report(w, all, func() error { return printFirsts(w.Stdout, all) }), serving.SlowFirsts(all))
}

func printFirsts(w io.Writer, all []serving.First) error {
	t := report.Table(w)
	fmt.Fprintln(t, "\trows\tfirst ms\tmedian ms\tmost ms\tfirst / median\t")
	for i := range all {
		f := &all[i]
		slow := map[bool]string{true: " slow"}[f.Slow()]
		fmt.Fprintf(t, "%s\t%d\t%.2f\t%.2f\t%.2f\t%.2f%s\t\n", f.Kind, f.Rows, f.First, f.Median, f.Most, f.Ratio(), slow)
	}
	return t.Flush()
}

// report writes a result to a file, if one is named, and prints it.
func (c *serveCmd) report(w *cli.World, result any, text func() error) error {
	if c.File != "" {
		if err := c.write(result); err != nil {
			return err
		}
	}
	if c.JSON {
		return report.JSON(w.Stdout, result)
	}
	return text()
}

func printSoak(w io.Writer, s *serving.Soaked) error {
	if err := printLoops(w, []serving.Loop{s.Loop}); err != nil {
		return err
	}
	t := report.Table(w)
	fmt.Fprintln(t, "\ttook effect\tdid not\tlongest s\t")
	for _, c := range []struct {
		name string
		n    serving.Changes
	}{{"reloads", s.Reloads}, {"catalog swaps", s.Swaps}} {
		fmt.Fprintf(t, "%s\t%d\t%d\t%.1f\t\n", c.name, c.n.Done, c.n.Failed, c.n.Longest)
	}
	fmt.Fprintln(t, "memory\tstart\tmiddle\tend\tmost\tgrowth from the middle\t")
	for i := range s.Memory {
		m := &s.Memory[i]
		grew := map[bool]string{false: " grew"}[m.Flat()]
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%+.1f %%%s\t\n", m.Name, human.Bytes(m.Start), human.Bytes(m.Middle),
			human.Bytes(m.End), human.Bytes(m.Most), 100*m.Growth(), grew)
	}
	return t.Flush()
}

func (c *serveCmd) write(result any) error {
	f, err := os.Create(c.File)
	if err != nil {
		return err
	}
	if err := load.WriteJSON(f, result); err != nil {
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

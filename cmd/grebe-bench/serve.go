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
	Model    string        `help:"Model to ask. Default: the server's only one." placeholder:"NAME"`
	Rates    []float64     `want:"above 0" help:"Rates of requests at random times, per second." placeholder:"RATE"`
	Clients  []int         `want:"at least 1 and at most 4096" placeholder:"N"`
	Width    int           `want:"at least 1 and at most 8192" default:"128" placeholder:"N"`
	Filter   string        `placeholder:"JSON"`
	Rank     int           `want:"at least 1 and at most 10000" placeholder:"N"`
	New      int           `want:"at least 1 and at most 10000" placeholder:"N"`
	Uncached bool          `help:"Have each ranking computed whole, as for a user who comes for the first time."`
	Send     string        `default:"new" enum:"new,append,whole"`
	Users    int           `want:"at least 1" default:"2000" placeholder:"N"`
	Zipf     float64       `want:"above 0" default:"1.05" placeholder:"S"`
	Length   time.Duration `want:"above 0" default:"20s" placeholder:"TIME"`
	Warmup   time.Duration `want:"above 0" default:"2s" placeholder:"TIME"`
	SLO      time.Duration `name:"slo" want:"above 0" default:"200ms" placeholder:"TIME"`
	Deadline time.Duration `want:"above 0" placeholder:"TIME"`
	First    bool          `help:"Time first requests after a start (see above)."`
	Soak     string        `type:"path" placeholder:"DIR"`
	Reload   time.Duration `want:"above 0" default:"60s" placeholder:"TIME"`
	Swap     time.Duration `want:"above 0" default:"20s" placeholder:"TIME"`
	Seed     uint64        `default:"1" help:"Seed of requests and files; default ${default}."`
	Make     string        `type:"path" placeholder:"DIR"`
	Shape    string        `default:"qwen3-0.6b" enum:"tiny,qwen2-1.5b,qwen3-0.6b,qwen3-1.7b,hstu-tiny,hstu-6x15000"`
	Ranker   string        `placeholder:"SHAPE"`
	Items    int           `want:"at least 1" default:"1000000" placeholder:"N"`
	Codes    int           `want:"at least 1 and at most 65536" default:"512" placeholder:"N"`
	Events   int           `want:"at least 1 and at most 20000" placeholder:"N"`
	Memory   string        `default:"20GiB" placeholder:"SIZE"`
	Features int           `want:"at least 1 and at most 4" placeholder:"N"`
	Rows     string        `name:"device-rows" placeholder:"SHARE"`
	JSON     bool          `name:"json" help:"Print JSON."`
	File     string        `type:"path" want:"a file that can be written" placeholder:"FILE"`
}

func (serveCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"url":     "Address of the server; default ${default}.",
		"clients": "Numbers of clients that wait for each answer.",
		"width":   "Beams per recommendation; default ${default}.",
		"filter":  "Filter of each request, as JSON. Items of --make have an attribute tenth with ten values.",
		"rank":    "Send rankings of so many candidates instead of recommendations.",
		"new":     "New events of the user in each ranking.",
		"send": "How new events are sent: new (beside the user's id), append (stored by a request before) or whole " +
			"(with all stored events); default ${default}.",
		"users":    "Number of users on the server, named u0, u1, ...; default ${default}.",
		"zipf":     "Exponent of Zipf's law, by which users are drawn; default ${default}.",
		"length":   "Length of each measurement; default ${default}.",
		"warmup":   "Load before each measurement that is not counted; default ${default}.",
		"slo":      "Latency that 99 % of the requests must meet; default ${default}.",
		"deadline": "Deadline of each request. Default: the SLO, or a minute with --clients.",
		"soak": "Change items and reload the model under load (see above). DIR is the folder of --make that the " +
			"server serves.",
		"reload": "With --soak: time from one reload to the next; default ${default}.",
		"swap":   "With --soak: time from one change of items to the next; default ${default}.",
		"make":   "Write files for a server to this folder (see above) and send nothing.",
		"shape": "Model that --make writes: tiny, qwen2-1.5b, qwen3-0.6b or qwen3-1.7b, or a model of events, " +
			"hstu-tiny or hstu-6x15000; default ${default}.",
		"ranker": "Second model that --make writes, for rankings: qwen2-1.5b or another of --shape.",
		"items":  "Items that --make writes; with --new, items to rank from. Default ${default}.",
		"codes":  "Codes per level; items have three levels. Default ${default}.",
		"events": "Stored events per user of a model of events. Default: 300 with hstu-tiny, else 15000.",
		"memory": "Device memory for KV in the grebe.yaml that --make writes; default ${default}.",
		"features": "With --make and a model of events: features of each item. Each has a table with as many rows as " +
			"there are items.",
		"device-rows": "With --make and a model of events: keep the rows of each table in a file. The device caches as " +
			"many as fit into this share of device_memory.",
		"file": "Also write the report as JSON to this file.",
	}
}

func (serveCmd) Help() string {
	return `Sends load to a running server: recommendations or, with --rank, rankings. Run it on other cores than the
server. The same seed sends the same requests again, whose users are then cached. Use another seed for each run on one
server.

    --rates    Requests arrive at random times (Poisson), whether earlier ones
               were answered or not. A rate is sustained if 99 % of all requests
               are answered within the SLO of the time at which they were due.
               Refused requests count as missed.
    --clients  Each client waits for an answer before it sends the next request.
    --soak     Changes 1,000 items and reloads the model with other weights,
               again and again, during the load. It fails if a request misses
               its deadline, or a change has no effect. It also fails if memory
               grows by more than 2 % and 32 MiB from the middle fifth of the
               time to the last. Samples during reloads are left out.
    --first    Times the first request of each kind on a server that has just
               started: rankings, scores, and recommendations with 50, 128 and
               512 beams, for prompts of 8 to 2,048 rows. Nine more of each
               follow. It fails if a first request takes more than twice the
               median of those.
    --make     Writes a model, items, users and grebe.yaml to a folder, so that
               there is a server to load.

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
			Memory: c.Memory, Features: c.Features, DeviceRows: c.Rows, Seed: c.Seed})
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
		New: c.New, Send: serving.Send(c.Send), Events: c.Events, Items: items, Uncached: c.Uncached,
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

package main

import (
	"errors"
	"fmt"
	"time"

	"grebe/bench/rank"
	"grebe/internal/cli"
)

type rankCmd struct {
	Workloads     []string  `placeholder:"NAME"`
	Policies      []string  `want:"one of item, longer, bat, predicted, none, user" placeholder:"NAME"`
	Requests      int       `want:"at least 1" placeholder:"N"`
	Warmup        float64   `want:"above 0 and below 1" placeholder:"SHARE"`
	DryWarmup     bool      `help:"Fill the caches with random numbers instead of computing the warm-up."`
	CachePolicies []string  `placeholder:"NAME"`
	Blocks        int       `want:"at least 1" placeholder:"N"`
	Tokens        float64   `want:"above 0 and at most 1" placeholder:"SHARE"`
	Memory        float64   `want:"at least 0 and at most 1" default:"-1" placeholder:"SHARE"`
	Sweep         []float64 `want:"at least 0 and at most 1" placeholder:"SHARE"`
	Count         bool      `help:"Only count tokens; compute nothing."`
	Start         []string  `want:"one of cold, indexed" placeholder:"HOW"`
	NoIndex       bool      `help:"Same as --start cold."`
	Cells         bool
	Seeds         []uint64      `want:"at least 1" help:"Seeds of --cells; default 1,2,3,4." placeholder:"N"`
	Clients       int           `want:"at least 1" placeholder:"N"`
	Open          float64       `want:"above 0 and at most 10" placeholder:"SHARE"`
	Search        bool          `help:"Also find the highest rate at which each policy meets the SLO."`
	SearchTime    time.Duration `want:"above 0" help:"Longest search per workload; default 10m." placeholder:"TIME"`
	Repeats       int           `want:"at least 1" placeholder:"N"`
	Seconds       float64       `want:"above 0 and at most 86400" placeholder:"N"`
	SLO           time.Duration `name:"slo" want:"above 0" placeholder:"TIME"`
	Model         string        `want:"one of tiny, small, medium, qwen2-0.5b, qwen2-1.5b" placeholder:"NAME"`
	Device        string        `want:"one of cpu, cuda" help:"cpu or cuda; default cpu." placeholder:"NAME"`
	Dir           string        `type:"path" placeholder:"DIR"`
	Format        string        `want:"one of bf16, f32" placeholder:"FORMAT"`
	Threads       int           `want:"at least 1 and at most 1024" placeholder:"N"`
	Seed          uint64        `help:"Seed of the requests; default 1." placeholder:"N"`
	Check         bool          `help:"Exit with 1 if a target is missed."`
	JSON          bool          `name:"json" help:"Print JSON."`
}

func (rankCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"workloads": "games, beauty, books, industry, industry-spread, or one of the first three with -bursts " +
			"appended; default the first four.",
		"policies": "Policies from the list above; none and user always run. Default all.",
		"requests": "Requests per workload, warm-up included; default 1200. Users and items are scaled so that " +
			"these are an hour's.",
		"warmup":         "Share of the requests that are not measured; default a third.",
		"cache-policies": "Compare eviction policies (lru, laru, default, ...) instead; users are reused.",
		"blocks":         "Blocks of requests; the policies take turns after each. Default 25.",
		"tokens":         "Scale of all lengths, against the paper's; default 0.25.",
		"memory": "Memory beside that for all items, as a share of the users' tokens, 0 to 1. Default: the paper's " +
			"for each workload.",
		"sweep": "Also count tokens, without computing, for these values of --memory.",
		"start": "State of the caches at the start: indexed (all items computed before) or cold. Default: indexed " +
			"is measured, and cold is counted.",
		"cells": "Only count tokens, for each workload, seed and start. Exit with 1 if predicted computes over " +
			"1.03 times the best other policy's.",
		"clients": "Clients that each wait for an answer before the next request; default 4.",
		"open":    "Also send requests at random times, at this share of the highest rate of the policy user.",
		"repeats": "With --search: runs at each rate, most of which must meet the SLO; default 3.",
		"seconds": "Length of a run with random arrivals, in seconds; default 10.",
		"slo":     "Latency that 99 % of the requests must meet; default 200ms.",
		"model":   "Size of the model: tiny, small, medium, qwen2-0.5b, qwen2-1.5b; default small.",
		"dir":     "Folder for the checkpoint; written if missing. Default: the user's cache folder.",
		"format":  "Number format: bf16 or f32; default bf16.",
		"threads": "CPU threads; default: all cores.",
	}
}

func (rankCmd) Help() string {
	return `Measures what reuse gains for rankings, on workloads with the shapes of Table 1 of the BAT paper. Each
policy has a cache of the same size and sees the same requests. The weights are random. Takes about ten minutes on two
cores.

    none       computes everything (RE in the paper)
    user       reuses users (UP)
    item       reuses items (IP)
    longer     puts the longer side first, and reuses it
    bat        the paper's rule (BAT)
    predicted  Grebe's rule, which predicts milliseconds (prefix: auto)

Examples:

    grebe-bench rank --cells
    grebe-bench rank --workloads beauty --sweep 0.05,0.2,0.5 --check
    grebe-bench rank --workloads books --search --seconds 5 --repeats 1
    grebe-bench rank --workloads beauty --memory 0.1 --requests 20000 --warmup 0.97 --dry-warmup \
        --cache-policies lru,laru,default --open 0.9`
}

func (c *rankCmd) Run(w *cli.World) error {
	o := rank.Options{
		Workloads: c.Workloads, Policies: c.Policies, CachePolicies: c.CachePolicies, Requests: c.Requests, Warmup: c.Warmup,
		DryWarmup:  c.DryWarmup,
		SearchTime: c.SearchTime, Repeats: c.Repeats, Blocks: c.Blocks, Tokens: c.Tokens, Memory: c.Memory,
		Sweep: c.Sweep, Count: c.Count || c.Cells, Starts: c.Start, Clients: c.Clients, Open: c.Open, Search: c.Search,
		SLO: c.SLO, Seconds: c.Seconds, Model: c.Model,
		Dir: c.Dir, Format: c.Format, Device: c.Device, Threads: c.Threads, Seed: c.Seed, JSON: c.JSON, Progress: w.Stderr,
	}
	switch {
	case c.NoIndex && len(c.Start) > 0:
		return cli.Usagef("--no-index is --start cold: give one of them")
	case c.NoIndex:
		o.Starts = []string{rank.Cold}
	case len(c.Seeds) > 0 && !c.Cells:
		return cli.Usagef("--seeds belongs to --cells; --seed is that of one run")
	}
	if err := o.Validate(); err != nil {
		return cli.Usage(err)
	}
	if c.Cells {
		if len(c.Seeds) == 0 {
			c.Seeds = []uint64{1, 2, 3, 4}
		}
		r, err := rank.Cells(w.Ctx, o, c.Seeds, w.Stdout)
		if err == nil && !r.Passed() {
			return cli.ErrReported
		}
		return err
	}
	r, err := rank.Run(w.Ctx, o, w.Stdout)
	if err == nil && c.Check && !rank.Passed(r.Checks) {
		return cli.ErrReported
	}
	return err
}

type assembleCmd struct {
	Models  []string `want:"one of tiny, small, medium, qwen2-0.5b, qwen2-1.5b" placeholder:"NAME"`
	Device  string   `want:"one of cpu, cuda" placeholder:"NAME"`
	Dir     string   `type:"path" placeholder:"DIR"`
	Items   int      `want:"at least 1" help:"Cached items per ranking; default 100." placeholder:"N"`
	Tokens  int      `want:"at least 1" help:"Tokens per item; default 10." placeholder:"N"`
	User    int      `want:"at least 1" help:"Tokens of the user; default 1500." placeholder:"N"`
	Repeats int      `want:"at least 1" help:"Repetitions; the median is shown. Default 9." placeholder:"N"`
	Format  string   `want:"one of bf16, f32" help:"Number format: bf16 or f32; default bf16." placeholder:"FORMAT"`
	Threads int      `want:"at least 1 and at most 1024" help:"CPU threads; default: all cores." placeholder:"N"`
	Check   bool     `help:"Exit with 1 if a target is missed."`
	JSON    bool     `name:"json" help:"Print JSON."`
}

func (assembleCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"models": "Sizes of models: tiny, small, medium, qwen2-0.5b, qwen2-1.5b; default small.",
		"device": "cpu or cuda; default cpu. On a GPU, cached items in host memory are measured, too.",
		"dir":    "Folder for the checkpoint of a single model; written if missing. Default: the user's cache folder.",
	}
}

func (assembleCmd) Help() string {
	return `Measures what it costs to rank with items whose KV comes from the cache in pieces, compared with the same
number of keys in one piece. Also measures the time of a decision by number of candidates, and the memory that a
catalog of short items wastes. The weights are random.

Example:

    grebe-bench assemble --models small,qwen2-0.5b`
}

func (c *assembleCmd) Run(w *cli.World) error {
	if c.Dir != "" && len(c.Models) > 1 {
		return cli.Usagef("--dir: %d models cannot share a folder", len(c.Models))
	}
	r, err := rank.Assemble(w.Ctx, rank.AssembleOptions{
		Models: c.Models, Device: c.Device, Dir: c.Dir, Items: c.Items, Tokens: c.Tokens, User: c.User, Repeats: c.Repeats,
		Format: c.Format, Threads: c.Threads, JSON: c.JSON,
	}, w.Stdout)
	if err == nil && c.Check && !rank.Passed(r.Checks) {
		return cli.ErrReported
	}
	return err
}

type beautyCmd struct {
	Data       string `type:"path" default:"../shared/data/beauty" placeholder:"DIR"`
	Tokenizer  string `type:"path" default:"../shared/data/tokenizers/qwen3/tokenizer.json" placeholder:"FILE"`
	Checkpoint string `type:"path" placeholder:"DIR"`
	Dir        string `type:"path" placeholder:"DIR"`
	Users      int    `want:"at least 1" help:"Number of users; default 50." placeholder:"N"`
	Candidates int    `want:"at least 2 and at most 10000" help:"Candidates per user; default 100." placeholder:"N"`
	History    int    `want:"at least 1" help:"Most recent items of a history to use; default 20." placeholder:"N"`
	Format     string `want:"one of bf16, f32" help:"Number format: bf16 or f32; default bf16." placeholder:"FORMAT"`
	Threads    int    `want:"at least 1 and at most 1024" help:"CPU threads; default: all cores." placeholder:"N"`
	JSON       bool   `name:"json" help:"Print JSON."`
}

func (beautyCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"data":       "Folder with Beauty.txt and beauty_joined.tsv; default ${default}.",
		"tokenizer":  "Tokenizer of the random model; default ${default}.",
		"checkpoint": "Folder of a trained model with its tokenizer. Default: a small random model.",
		"dir":        "Folder for the random model; written if missing. Default: the user's cache folder.",
	}
}

func (beautyCmd) Help() string {
	return `Measures how far the two prompt orders agree. It ranks the same candidates for users of Amazon Beauty with
the user first, with the items first, and in the order that auto chooses. Prompts are titles and histories.

Example:

    grebe-bench beauty --checkpoint ./my-model`
}

func (c *beautyCmd) Run(w *cli.World) error {
	_, err := rank.Beauty(w.Ctx, rank.BeautyOptions{
		Data: c.Data, Tokenizer: c.Tokenizer, Checkpoint: c.Checkpoint, Dir: c.Dir, Users: c.Users, Candidates: c.Candidates,
		History: c.History, Format: c.Format, Threads: c.Threads, JSON: c.JSON,
	}, w.Stdout)
	if errors.Is(err, rank.ErrNoData) {
		fmt.Fprintf(w.Stderr, "grebe: skipped: %v\n", err)
		return nil
	}
	return err
}

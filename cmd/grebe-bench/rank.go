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
	DryWarmup     bool      `help:"Warm up without computing: caches hold random numbers then."`
	CachePolicies []string  `placeholder:"NAME"`
	Blocks        int       `want:"at least 1" placeholder:"N"`
	Tokens        float64   `want:"above 0 and at most 1" placeholder:"SHARE"`
	Memory        float64   `want:"at least 0 and at most 1" default:"-1" placeholder:"SHARE"`
	Sweep         []float64 `want:"at least 0 and at most 1" placeholder:"SHARE"`
	Count         bool      `help:"Count tokens only, compute nothing."`
	Start         []string  `want:"one of cold, indexed" placeholder:"HOW"`
	NoIndex       bool      `help:"The same as --start cold."`
	Cells         bool
	Seeds         []uint64      `want:"at least 1" help:"Seeds of --cells; default 1,2,3,4." placeholder:"N"`
	Clients       int           `want:"at least 1" help:"Clients of the closed loop; default 4." placeholder:"N"`
	Open          float64       `want:"above 0 and at most 10" placeholder:"SHARE"`
	Search        bool          `help:"Also look for each policy's highest rate within the SLO."`
	SearchTime    time.Duration `want:"above 0" placeholder:"TIME"`
	Repeats       int           `want:"at least 1" placeholder:"N"`
	Seconds       float64       `want:"above 0 and at most 86400" placeholder:"N"`
	SLO           time.Duration `name:"slo" want:"above 0" help:"The SLO; default 200ms." placeholder:"TIME"`
	Model         string        `want:"one of tiny, small, medium, qwen2-0.5b, qwen2-1.5b" placeholder:"NAME"`
	Device        string        `want:"one of cpu, cuda" help:"cpu or cuda; default cpu." placeholder:"NAME"`
	Dir           string        `type:"path" placeholder:"DIR"`
	Format        string        `want:"one of bf16, f32" help:"bf16 or f32; default bf16." placeholder:"FORMAT"`
	Threads       int           `want:"at least 1 and at most 1024" help:"Threads; default all cores." placeholder:"N"`
	Seed          uint64        `help:"Of the requests; default 1." placeholder:"N"`
	Check         bool          `help:"Fail when a bar is not reached."`
	JSON          bool          `name:"json" help:"Print JSON."`
}

func (rankCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"workloads": "games, beauty, books, industry (default), also industry-spread and with -bursts behind each.",
		"policies":  "item, longer, bat, predicted beside none and user; default all.",
		"requests": "Requests per workload, warm-up included; users and items are scaled so that they are an hour's; " +
			"default 1200.",
		"warmup":         "Share of the requests that warm up; default a third.",
		"cache-policies": "Compare who leaves the cache instead, users reused: lru, laru, default, ...",
		"blocks":         "Blocks that the policies take turns in; default 25.",
		"tokens":         "Scale of the lengths; default 0.25.",
		"memory":         "Share of the users' tokens that fits beside all items; default the paper's for each workload.",
		"sweep":          "Shares of memory for which tokens are counted, without computing.",
		"start": "How caches begin: indexed (all items computed before the first request), cold (computed when first " +
			"asked for); default indexed, with a cold start counted beside it.",
		"cells": "Count tokens for each workload, seed (1 to 4), cold and indexed, print auto's ratio to the best other " +
			"policy, and fail when one is above 1.03.",
		"open":        "Also send Poisson arrivals, at this share of user-first's saturated rate.",
		"search-time": "Most time for the search on a workload; default 10m.",
		"repeats":     "Runs at a rate, of which most must keep the SLO; default 3.",
		"seconds":     "Of each run with arrivals; default 10.",
		"model":       "tiny, small, medium, qwen2-0.5b, qwen2-1.5b; default small.",
		"dir":         "Folder of the checkpoint, written when missing; default: in the user's cache folder.",
	}
}

func (rankCmd) Help() string {
	return `Workloads have the shapes of BAT's Table 1, policies a cache each of the same size. RE computes everything,
UP reuses users, IP items; agnostic puts the longer side first; BAT is the paper's rule, auto Grebe's. Takes about
ten minutes on two cores. The weights are random.

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
	Items   int      `want:"at least 1" help:"Cached items; default 100." placeholder:"N"`
	Tokens  int      `want:"at least 1" help:"Tokens per item; default 10." placeholder:"N"`
	User    int      `want:"at least 1" help:"Tokens of the user; default 1500." placeholder:"N"`
	Repeats int      `want:"at least 1" help:"Repeats; default 9." placeholder:"N"`
	Format  string   `want:"one of bf16, f32" help:"bf16 or f32; default bf16." placeholder:"FORMAT"`
	Threads int      `want:"at least 1 and at most 1024" help:"Threads; default all cores." placeholder:"N"`
	Check   bool     `help:"Fail when a bar is not reached."`
	JSON    bool     `name:"json" help:"Print JSON."`
}

func (assembleCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"models": "tiny, small, medium, qwen2-0.5b, qwen2-1.5b; default small.",
		"device": "cpu or cuda; default cpu. A GPU is also measured with the cached part in the host's memory.",
		"dir":    "Folder of the checkpoint when there is one model; default: in the user's cache folder.",
	}
}

func (assembleCmd) Help() string {
	return `Ranks a user behind cached items, and behind as many keys that lie in one piece. Also the time of a decision by
number of candidates, and how much memory a catalog of short items wastes.

Examples:

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
	Users      int    `want:"at least 1" help:"Users; default 50." placeholder:"N"`
	Candidates int    `want:"at least 2 and at most 10000" help:"Candidates of each; default 100." placeholder:"N"`
	History    int    `want:"at least 1" help:"Last items of a history that are used; default 20." placeholder:"N"`
	Format     string `want:"one of bf16, f32" help:"bf16 or f32; default bf16." placeholder:"FORMAT"`
	Threads    int    `want:"at least 1 and at most 1024" help:"Threads; default all cores." placeholder:"N"`
	JSON       bool   `name:"json" help:"Print JSON."`
}

func (beautyCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"data":       "Folder with Beauty.txt and beauty_joined.tsv; default ${default}.",
		"tokenizer":  "Tokenizer for the random model; default ${default}.",
		"checkpoint": "Folder of a trained model with its tokenizer; default a small random one.",
		"dir":        "Folder of the random model, written when missing; default: in the user's cache folder.",
	}
}

func (beautyCmd) Help() string {
	return `Ranks the same candidates for users of Amazon Beauty with the user first, the items first, and as auto chooses,
and says how far the rankings agree. Titles and histories are the prompts.

Examples:

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

package main

import (
	"grebe/bench/gpu"
	"grebe/compute/cuda"
	"grebe/internal/cli"
)

type gpuCmd struct {
	Tokens     []int  `want:"at least 1" help:"Lengths of prompts; default 256,1024,4096,8192." placeholder:"N"`
	Repeats    int    `want:"at least 1" help:"Repeats of each case; default and least 20." placeholder:"N"`
	GPU        int    `name:"gpu" want:"at least 0" help:"Number of the GPU." placeholder:"N"`
	Peers      string `placeholder:"PYTHON"`
	NoRank     bool   `help:"Leave out the rankings."`
	NoSearch   bool   `help:"Leave out the recommendations."`
	NoKernels  bool   `help:"Leave out single operations."`
	FP8        bool   `name:"fp8" help:"Measure weights of FP8 beside those of bf16, and nothing else."`
	Timeline   bool   `help:"Show the phases of a group of searches, and nothing else."`
	Events     bool   `help:"Time rankings by a model of events with and without graphs, and nothing else."`
	Rank       string `type:"existingfile" placeholder:"FILE"`
	Checkpoint string `type:"existingdir" placeholder:"DIR"`
	Tune       bool   `help:"Measure again how attention is best divided; ignore the cache."`
	NoChecks   bool   `help:"Time without checking results first, for profilers."`
	NoGraphs   bool   `help:"Launch kernels one by one, for profilers."`
	NoOverlap  bool   `help:"Start no kernel before the one ahead has ended."`
	Fixed      bool   `help:"Cut attention by fixed costs, not as measurements say."`
	Plain      bool   `help:"Keep to instructions of Ampere."`
	JSON       bool   `name:"json" help:"Print JSON."`
	File       string `type:"path" want:"a file that can be written" placeholder:"FILE"`
}

func (gpuCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"peers":      "A Python with torch and transformers that runs the peers; default: no peers.",
		"rank":       "A report of bench rank --search --json on this GPU, for the sustained rate.",
		"checkpoint": "With --fp8: hold this checkpoint's hidden states against the reference.",
		"file":       "Write JSON to this file besides.",
	}
}

func (gpuCmd) Help() string {
	return `Measures shapes of Qwen2-1.5B and Qwen3-1.7B with random weights. Results are compared with the reference
first. The first run on a machine compiles kernels and times products and attention; later runs read both from a cache.

Examples:

    grebe-bench gpu
    grebe-bench gpu --tokens 1024 --peers python3 --json`
}

func (c *gpuCmd) Run(w *cli.World) error {
	_, err := gpu.Run(w.Ctx, gpu.Options{
		Tokens: c.Tokens, Repeats: c.Repeats, Peers: c.Peers, NoRank: c.NoRank, NoRecommend: c.NoSearch, NoChecks: c.NoChecks,
		NoKernels: c.NoKernels, FP8: c.FP8, Timeline: c.Timeline, Events: c.Events, Checkpoint: c.Checkpoint, Tune: c.Tune,
		Rank: c.Rank, JSON: c.JSON, File: c.File,
		Device: cuda.Options{GPU: c.GPU, Plain: c.Plain, NoGraphs: c.NoGraphs, NoOverlap: c.NoOverlap, FixedSplit: c.Fixed},
	}, w.Stdout)
	return err
}

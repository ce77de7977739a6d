package main

import (
	"grebe/bench/gpu"
	"grebe/compute/cuda"
	"grebe/internal/cli"
)

type gpuCmd struct {
	Tokens     []int  `want:"at least 1" placeholder:"N"`
	Repeats    int    `want:"at least 1" help:"Repetitions of each case, at least 20; default 20." placeholder:"N"`
	GPU        int    `name:"gpu" want:"at least 0" help:"Index of the GPU, from 0; default 0." placeholder:"N"`
	Peers      string `placeholder:"PYTHON"`
	NoRank     bool   `help:"Do not measure rankings."`
	NoSearch   bool   `help:"Do not measure recommendations."`
	NoKernels  bool   `help:"Do not measure single operations."`
	FP8        bool   `name:"fp8" help:"Only compare weights in FP8 with weights in bf16."`
	Timeline   bool   `help:"Only show the phases of a group of searches."`
	Events     bool   `help:"Only time rankings by a model of events, with and without CUDA graphs."`
	Rank       string `type:"existingfile" placeholder:"FILE"`
	Checkpoint string `type:"existingdir" placeholder:"DIR"`
	Tune       bool   `help:"Tune attention again and ignore the cached result."`
	NoChecks   bool   `help:"Do not compare results before timing (for profilers)."`
	NoGraphs   bool   `help:"Launch kernels one by one, without CUDA graphs (for profilers)."`
	NoOverlap  bool   `help:"Start each kernel only when the one before it has ended."`
	Fixed      bool   `help:"Split attention by a fixed rule instead of the tuned one."`
	Plain      bool   `help:"Use only kernels that run on GPUs since Ampere."`
	JSON       bool   `name:"json" help:"Print JSON."`
	File       string `type:"path" want:"a file that can be written" placeholder:"FILE"`
}

func (gpuCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"tokens":     "Lengths of prompts in tokens; default 256,1024,4096,8192.",
		"peers":      "Python with torch and transformers, to compare with. Default: no comparison.",
		"rank":       "Report of \"grebe-bench rank --search --json\" on this GPU. Its sustained rates are shown, too.",
		"checkpoint": "With --fp8: also compare the hidden states of this checkpoint with the reference.",
		"file":       "Also write the report as JSON to this file.",
	}
}

func (gpuCmd) Help() string {
	return `Measures prompts, rankings and recommendations with models of the sizes of Qwen2-1.5B and Qwen3-1.7B, with
random weights. With --peers it compares them with PyTorch and transformers on the same GPU. Before timing, results
are compared with a reference in float64.

The first run on a machine compiles the kernels and tunes products and attention. Later runs read both from a cache.

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

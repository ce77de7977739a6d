package main

import (
	"time"

	"grebe/bench/gemm"
	"grebe/bench/prefill"
	"grebe/compute"
	"grebe/internal/cli"
)

type gemmCmd struct {
	Rows    []int    `want:"at least 1" help:"Rows of activations; default 256,512,1024." placeholder:"N"`
	Threads []int    `want:"at least 1 and at most 1024" help:"Numbers of threads; default 1,2." placeholder:"N"`
	Formats []string `want:"one of bf16, f32, int8" help:"bf16, f32, int8; default bf16, f32." placeholder:"FORMAT"`
	Models  []string `want:"one of qwen2-0.5b, qwen2-1.5b" placeholder:"MODEL"`
	Rounds  int      `want:"at least 1" help:"Least rounds of a line; default and least 11." placeholder:"N"`
	Seconds float64  `want:"above 0 and at most 86400" placeholder:"S"`
	Check   bool
	JSON    bool `name:"json" help:"Print JSON."`
}

func (gemmCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"models":  "qwen2-0.5b, qwen2-1.5b; default both.",
		"seconds": "How long a line may go on while its confidence interval is wide; default 9.",
		"check":   "Say whether every line reaches its bar (bf16 1.0, f32 0.95, int8 0.9 and 1.5 over bf16) and fail if not.",
	}
}

func (gemmCmd) Help() string {
	return `oneDNN and OpenBLAS are opened when their shared libraries are installed (Debian: libdnnl3 or libdnnl2,
libopenblas0); the contenders take turns, medians are shown.

Example:

    grebe-bench gemm --models qwen2-0.5b --rows 512 --threads 2`
}

func (c *gemmCmd) Run(w *cli.World) error {
	_, err := gemm.Run(w.Ctx, gemm.Options{
		Rows: c.Rows, Threads: c.Threads, Formats: formats(c.Formats), Models: c.Models, Rounds: c.Rounds,
		Patience: time.Duration(c.Seconds * float64(time.Second)), Check: c.Check, JSON: c.JSON,
	}, w.Stdout)
	return err
}

type prefillCmd struct {
	Tokens  []int    `want:"at least 1" help:"Lengths of prompts; default 128,512,1000,4000." placeholder:"N"`
	Formats []string `want:"one of bf16, f32, int8" help:"bf16, f32, int8; default bf16, f32." placeholder:"FORMAT"`
	Repeats int      `want:"at least 1" placeholder:"N"`
	Threads int      `want:"at least 1 and at most 1024" help:"Threads; default all cores." placeholder:"N"`
	NoRank  bool     `help:"Leave out the rankings."`
	Dir     string   `type:"path" placeholder:"DIR"`
	JSON    bool     `name:"json" help:"Print JSON."`
}

func (prefillCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"repeats": "Repeats of short prompts; long ones have fewer, at least 3; default 7.",
		"dir":     "Folder of the checkpoint, written (1 GB) when missing; default: in the user's cache folder.",
	}
}

func (prefillCmd) Help() string {
	return `Takes a few minutes. The weights are random.

Example:

    grebe-bench prefill --tokens 512,1000 --formats bf16`
}

func (c *prefillCmd) Run(w *cli.World) error {
	_, err := prefill.Run(w.Ctx, prefill.Options{
		Dir: c.Dir, Tokens: c.Tokens, Formats: formats(c.Formats), Repeats: c.Repeats, Threads: c.Threads, NoRank: c.NoRank,
		JSON: c.JSON,
	}, w.Stdout)
	return err
}

// formats returns those of names that were checked.
func formats(names []string) []compute.DType {
	var out []compute.DType
	for _, n := range names {
		switch n {
		case "bf16":
			out = append(out, compute.BF16)
		case "int8":
			out = append(out, compute.INT8)
		default:
			out = append(out, compute.F32)
		}
	}
	return out
}

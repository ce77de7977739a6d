package main

import (
	"time"

	"grebe/bench/gemm"
	"grebe/bench/prefill"
	"grebe/compute"
	"grebe/internal/cli"
)

type gemmCmd struct {
	Rows    []int    `want:"at least 1" help:"Rows of the left matrix (tokens); default 256,512,1024." placeholder:"N"`
	Threads []int    `want:"at least 1 and at most 1024" placeholder:"N"`
	Formats []string `want:"one of bf16, f32, int8" placeholder:"FORMAT"`
	Models  []string `want:"one of qwen2-0.5b, qwen2-1.5b" placeholder:"MODEL"`
	Rounds  int      `want:"at least 1" help:"Repetitions of each product, at least 11; default 11." placeholder:"N"`
	Seconds float64  `want:"above 0 and at most 86400" placeholder:"S"`
	Check   bool     `help:"Print whether each product reaches its target; exit with 1 if one does not."`
	JSON    bool     `name:"json" help:"Print JSON."`
}

func (gemmCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"threads": "CPU threads, one measurement for each; default 1,2.",
		"formats": "Number formats: bf16, f32, int8; default bf16,f32.",
		"models":  "Shapes to use: qwen2-0.5b, qwen2-1.5b; default both.",
		"seconds": "Repeat a product for at most so many seconds while its confidence interval is wide; default 9.",
	}
}

func (gemmCmd) Help() string {
	return `Measures the rate of matrix products on CPUs, with the shapes of Qwen2's layers. It compares Grebe's kernels
with oneDNN and OpenBLAS if their shared libraries are installed (Debian: libdnnl3 or libdnnl2, libopenblas0). The
libraries take turns, and the table shows medians.

With --check, Grebe's rate must reach these multiples of the fastest other library's: bf16 1.0, f32 0.95, int8 0.9.
Products in int8 must also be 1.5 times as fast as in bf16, on average.

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
	Tokens  []int    `want:"at least 1" help:"Lengths of prompts in tokens; default 128,512,1000,4000." placeholder:"N"`
	Formats []string `want:"one of bf16, f32, int8" placeholder:"FORMAT"`
	Repeats int      `want:"at least 1" placeholder:"N"`
	Threads int      `want:"at least 1 and at most 1024" help:"CPU threads; default: all cores." placeholder:"N"`
	NoRank  bool     `help:"Do not measure rankings."`
	Dir     string   `type:"path" placeholder:"DIR"`
	JSON    bool     `name:"json" help:"Print JSON."`
}

func (prefillCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"formats": "Number formats: bf16, f32, int8; default bf16,f32.",
		"repeats": "Repetitions of short prompts; default 7. Longer prompts have fewer, at least 3.",
		"dir":     "Folder for the checkpoint (1 GB); written if missing. Default: the user's cache folder.",
	}
}

func (prefillCmd) Help() string {
	return `Measures how fast a model of Qwen2-0.5B's size reads prompts on CPUs, in tokens per second by length of the
prompt. It also shows the latency of a ranking, stage by stage. The weights are random. Takes a few minutes.

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

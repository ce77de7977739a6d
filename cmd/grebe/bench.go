package main

import (
	"time"

	"grebe/bench/gemm"
	"grebe/bench/prefill"
	"grebe/compute"
)

type benchCmd struct {
	Gemm       benchGemmCmd       `cmd:"" help:"Matrix products of Qwen2's shapes beside oneDNN and OpenBLAS."`
	GPU        benchGPUCmd        `cmd:"" name:"gpu" help:"Prompts and rankings of Qwen2-1.5B's shape on a GPU, beside PyTorch."`
	Prefill    benchPrefillCmd    `cmd:"" help:"Reading prompts with a Qwen2-0.5B-shaped model, and rankings by stage."`
	HSTU       benchHSTUCmd       `cmd:"" name:"hstu" help:"A model of events: long histories, returning users, retrieval."`
	Rank       benchRankCmd       `cmd:"" help:"Rankings by each policy for what is reused, on workloads shaped as BAT's."`
	Assemble   benchAssembleCmd   `cmd:"" help:"What it costs to rank with items gathered from the cache; decisions; memory."`
	Beam       benchBeamCmd       `cmd:"" help:"Generating items: attention of beams, selection, recommendations; catalogs with real codes."`
	Catalog    benchCatalogCmd    `cmd:"" help:"What versions of a large catalog cost: build, change, store, map, go back."`
	Cache      benchCacheCmd      `cmd:"" help:"Eviction policies on real and generated traces, beside the offline optimum."`
	Allocator  benchAllocatorCmd  `cmd:"" help:"Dividing memory between embeddings and KV, by every controller, beside the optimum."`
	Embed      benchEmbedCmd      `cmd:"" help:"Sums of embedding rows from Redis through a cache, by policy of eviction."`
	KV8        benchKV8Cmd        `cmd:"" name:"kv8" help:"What KV in FP8 does to rankings: scores, orders, quality, memory, time."`
	Blend      benchBlendCmd      `cmd:"" help:"Prompts of which KV from anywhere stands in for some tokens: quality, speed."`
	Prototypes benchPrototypesCmd `cmd:"" help:"Prototypes of history tokens: error of their keys and values, coverage, lookups."`
	Tiers      benchTiersCmd      `cmd:"" help:"Check that logits are the same from KV on the device, in host memory and on disk."`
	Overload   benchOverloadCmd   `cmd:"" help:"More requests than a server can answer, and slow connections of every kind."`
	Import     benchImportCmd     `cmd:"" help:"Rankings and events beside an import that changes all items, with several models."`
	KV         benchKVCmd         `cmd:"" name:"kv" help:"Lookups of cached KV in a full store, beside users that are published."`
	Replay     benchReplayCmd     `cmd:"" help:"Record the decisions of a server, and take them again with this binary's code."`
	Decisions  benchDecisionsCmd  `cmd:"" help:"CPU time of requests, hits and evictions when nothing is computed, beside another binary."`
	Beauty     benchBeautyCmd     `cmd:"" help:"Whether both prompt orders rank Amazon Beauty alike."`
}

func (benchCmd) Help() string {
	return `Examples:

    grebe bench gemm
    grebe bench prefill --json`
}

type benchGemmCmd struct {
	Rows    []int    `want:"at least 1" help:"Rows of activations; default 256,512,1024." placeholder:"N"`
	Threads []int    `want:"at least 1 and at most 1024" help:"Numbers of threads; default 1,2." placeholder:"N"`
	Formats []string `want:"one of bf16, f32" help:"bf16, f32; default both." placeholder:"FORMAT"`
	Models  []string `want:"one of qwen2-0.5b, qwen2-1.5b" help:"qwen2-0.5b, qwen2-1.5b; default both." placeholder:"MODEL"`
	Rounds  int      `want:"at least 1" help:"Least rounds of a line; default and least 11." placeholder:"N"`
	Seconds float64  `want:"above 0 and at most 86400" help:"How long a line may go on while its confidence interval is wide; default 9." placeholder:"S"`
	Check   bool     `help:"Say whether every line reaches its bar (bf16 1.0, f32 0.95) and fail if not."`
	JSON    bool     `name:"json" help:"Print JSON."`
}

func (benchGemmCmd) Help() string {
	return `oneDNN and OpenBLAS are opened when their shared libraries are installed (Debian: libdnnl3 or libdnnl2,
libopenblas0); the contenders take turns, medians are shown.

Example:

    grebe bench gemm --models qwen2-0.5b --rows 512 --threads 2`
}

func (c *benchGemmCmd) Run(w *world) error {
	_, err := gemm.Run(w.ctx, gemm.Options{
		Rows: c.Rows, Threads: c.Threads, Formats: formats(c.Formats), Models: c.Models, Rounds: c.Rounds,
		Patience: time.Duration(c.Seconds * float64(time.Second)), Check: c.Check, JSON: c.JSON,
	}, w.stdout)
	return err
}

type benchPrefillCmd struct {
	Tokens  []int    `want:"at least 1" help:"Lengths of prompts; default 128,512,1000,4000." placeholder:"N"`
	Formats []string `want:"one of bf16, f32" help:"bf16, f32; default both." placeholder:"FORMAT"`
	Repeats int      `want:"at least 1" help:"Repeats of short prompts; long ones have fewer, at least 3; default 7." placeholder:"N"`
	Threads int      `want:"at least 1 and at most 1024" help:"Threads; default all cores." placeholder:"N"`
	NoRank  bool     `help:"Leave out the rankings."`
	Dir     string   `type:"path" help:"Folder of the checkpoint, written (1 GB) when missing; default: in the user's cache folder." placeholder:"DIR"`
	JSON    bool     `name:"json" help:"Print JSON."`
}

func (benchPrefillCmd) Help() string {
	return `Takes a few minutes. The weights are random.

Example:

    grebe bench prefill --tokens 512,1000 --formats bf16`
}

func (c *benchPrefillCmd) Run(w *world) error {
	_, err := prefill.Run(w.ctx, prefill.Options{
		Dir: c.Dir, Tokens: c.Tokens, Formats: formats(c.Formats), Repeats: c.Repeats, Threads: c.Threads, NoRank: c.NoRank, JSON: c.JSON,
	}, w.stdout)
	return err
}

// formats returns those of names that were checked.
func formats(names []string) []compute.DType {
	var out []compute.DType
	for _, n := range names {
		if n == "bf16" {
			out = append(out, compute.BF16)
		} else {
			out = append(out, compute.F32)
		}
	}
	return out
}

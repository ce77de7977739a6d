// Command grebe-bench measures Grebe, and trains what it carries.
package main

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"

	"grebe/app"
	"grebe/internal/cli"
)

// commands is the command line.
type commands struct {
	Gemm       gemmCmd       `cmd:"" help:"Matrix products on CPUs, compared with oneDNN and OpenBLAS."`
	GPU        gpuCmd        `cmd:"" name:"gpu" help:"Prompts, rankings and searches on a GPU, compared with PyTorch."`
	Prefill    prefillCmd    `cmd:"" help:"Prompts and rankings of a small model on CPUs."`
	HSTU       hstuCmd       `cmd:"" name:"hstu" help:"A model of events on CPUs: long histories, returning users."`
	Retrieve   retrieveCmd   `cmd:"" help:"Search for the best of many items' vectors on a GPU."`
	Rank       rankCmd       `cmd:"" help:"Rankings with each reuse policy, on workloads of the BAT paper."`
	Assemble   assembleCmd   `cmd:"" help:"Rankings with items from the cache: cost, decisions, memory."`
	Beam       beamCmd       `cmd:"" help:"Generation of items: attention, selection, whole requests, filters."`
	Catalog    catalogCmd    `cmd:"" help:"Versions of a large catalog: time, memory, disk."`
	Codes      codesCmd      `cmd:"" help:"Semantic IDs for a million items, compared with a plain k-means."`
	Cache      cacheCmd      `cmd:"" help:"Eviction policies, compared with LRU and the offline optimum."`
	Place      placeCmd      `cmd:"" help:"Division of a catalog among nodes, compared with METIS."`
	Allocator  allocatorCmd  `cmd:"" help:"Ways to divide memory between embeddings and KV."`
	Embed      embedCmd      `cmd:"" help:"Sums of embedding rows from Redis through a cache."`
	Rows       rowsCmd       `cmd:"" help:"Embedding rows cached in a GPU's memory."`
	KV8        kv8Cmd        `cmd:"" name:"kv8" help:"KV in FP8, compared with bf16: scores, quality, memory, time."`
	Blend      blendCmd      `cmd:"" help:"Blended prompts, which use KV of other prompts: quality and speed."`
	Prototypes prototypesCmd `cmd:"" help:"Prototypes of history tokens: error, coverage, lookups."`
	Tiers      tiersCmd      `cmd:"" help:"Check that KV on device, host and disk gives the same logits."`
	Overload   overloadCmd   `cmd:"" help:"A server with too many requests, or with slow connections."`
	Ahead      aheadCmd      `cmd:"" help:"Items computed while a server is idle: gain and cost."`
	Batch      batchCmd      `cmd:"" help:"A batch beside online requests: idle time it uses, and P99."`
	Budget     budgetCmd     `cmd:"" help:"Three models that share a budget of host memory."`
	Import     importCmd     `cmd:"" help:"Rankings and events during an import of all items."`
	Ingest     ingestCmd     `cmd:"" help:"Imports from CSV and Parquet, in records per second."`
	Serve      serveCmd      `cmd:"" help:"Load on a running server."`
	SimPaper   simPaperCmd   `cmd:"" help:"Repeat the papers' cluster experiments in virtual time."`
	Profile    profileCmd    `cmd:"" help:"Measure this machine's device for grebe sim."`
	KV         kvCmd         `cmd:"" name:"kv" help:"Lookups in a full KV store while users are published."`
	Peer       peerCmd       `cmd:"" help:"Blocks of KV between nodes, compared with plain TCP."`
	Replay     replayCmd     `cmd:"" help:"Replay the decisions of a recorded server with this binary."`
	SimReplay  simReplayCmd  `cmd:"" help:"Replay a recorded server with one simulated node."`
	SimCheck   simCheckCmd   `cmd:"" help:"Compare a server with what the simulator predicts of it."`
	Decisions  decisionsCmd  `cmd:"" help:"CPU time of two binaries when nothing is computed."`
	Beauty     beautyCmd     `cmd:"" help:"Agreement of the two prompt orders on Amazon Beauty."`
	Train      trainCmd      `cmd:"" help:"Train the policy that divides memory."`
}

const description = `grebe-bench measures Grebe on this machine and compares it with other software, where that is
installed. It also repeats the experiments of papers, replays recorded servers and trains the policy that divides
memory.

Most commands need no model, because they use random weights. Where a command has targets, --check makes it exit with 1
if one is missed. Targets were set on particular machines, which docs/results/README.md names.

Examples:

    grebe-bench gemm
    grebe-bench prefill --json
    grebe-bench overload --check`

func main() { cli.Main("grebe-bench", description, &commands{}) }

// options are those of an App that logs to log.
func options(log *slog.Logger) app.Options { return app.Options{Log: log, Version: "grebe-bench"} }

// programFlag names the server that is measured.
type programFlag struct {
	Grebe string `type:"path" placeholder:"FILE"`
}

func (programFlag) FlagHelp() cli.Texts {
	return cli.Texts{
		"grebe": "Path of the grebe to measure. Default: the one beside this program, else the one on the PATH.",
	}
}

// program finds it.
func (f *programFlag) program() (string, error) {
	if f.Grebe != "" {
		return f.Grebe, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if beside := filepath.Join(filepath.Dir(self), "grebe"); executable(beside) {
		return beside, nil
	}
	found, err := exec.LookPath("grebe")
	if err != nil {
		return "", cli.Usagef("there is no grebe beside %s nor on the PATH: name one with --grebe FILE", self)
	}
	return found, nil
}

func executable(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

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
	Gemm       gemmCmd       `cmd:"" help:"Matrix products of Qwen2's shapes beside oneDNN and OpenBLAS."`
	GPU        gpuCmd        `cmd:"" name:"gpu" help:"Prompts and rankings of Qwen2-1.5B's shape on a GPU and in PyTorch."`
	Prefill    prefillCmd    `cmd:"" help:"Reading prompts with a Qwen2-0.5B-shaped model, and rankings by stage."`
	HSTU       hstuCmd       `cmd:"" name:"hstu" help:"A model of events: long histories, returning users, retrieval."`
	Retrieve   retrieveCmd   `cmd:"" help:"The best of many items' vectors on a GPU."`
	Rank       rankCmd       `cmd:"" help:"Rankings with each reuse policy, on workloads like those of the BAT paper."`
	Assemble   assembleCmd   `cmd:"" help:"Cost of rankings whose items come from the cache; decisions; memory."`
	Beam       beamCmd       `cmd:"" help:"Generating items: attention of beams, selection, recommendations."`
	Catalog    catalogCmd    `cmd:"" help:"What versions of a large catalog cost: build, change, store, map, go back."`
	Codes      codesCmd      `cmd:"" help:"Making semantic IDs for a million items, beside a plain k-means."`
	Cache      cacheCmd      `cmd:"" help:"Eviction policies on real and generated traces, beside the offline optimum."`
	Place      placeCmd      `cmd:"" help:"Cutting catalogs by similarity, compared with METIS: quality, time, memory."`
	Allocator  allocatorCmd  `cmd:"" help:"Dividing memory between embeddings and KV, by each controller."`
	Embed      embedCmd      `cmd:"" help:"Sums of embedding rows from Redis through a cache, by policy of eviction."`
	Rows       rowsCmd       `cmd:"" help:"Embedding rows in a GPU's memory: bags, sequences and fetched rows."`
	KV8        kv8Cmd        `cmd:"" name:"kv8" help:"What KV in FP8 changes: scores, orders, quality, memory, time."`
	Blend      blendCmd      `cmd:"" help:"Blended prompts, which reuse KV of other prompts: quality, speed."`
	Prototypes prototypesCmd `cmd:"" help:"Prototypes of history tokens: error, coverage, lookups."`
	Tiers      tiersCmd      `cmd:"" help:"Check that logits are the same from KV on device, host and disk."`
	Overload   overloadCmd   `cmd:"" help:"More requests than a server can answer, and slow connections of every kind."`
	Ahead      aheadCmd      `cmd:"" help:"Indexing while idle: tokens that new users reuse, P99 of requests."`
	Batch      batchCmd      `cmd:"" help:"A batch beside online requests: idle time that it uses, their P99."`
	Budget     budgetCmd     `cmd:"" help:"How three models share one budget of host memory."`
	Import     importCmd     `cmd:"" help:"Rankings and events while an import changes all items."`
	Ingest     ingestCmd     `cmd:"" help:"Imports from CSV and Parquet: records per second, checked and durable."`
	Serve      serveCmd      `cmd:"" help:"Load on a running server: recommendations at random times, or by clients."`
	SimPaper   simPaperCmd   `cmd:"" help:"Repeat the papers' cluster experiments in virtual time."`
	Profile    profileCmd    `cmd:"" help:"Measure this machine's device for grebe sim: time of a batch, bandwidth of KV."`
	KV         kvCmd         `cmd:"" name:"kv" help:"Lookups in a full KV store while users are published."`
	Peer       peerCmd       `cmd:"" help:"Blocks of KV from node to node, beside plain TCP: rate, CPU time, latency."`
	Replay     replayCmd     `cmd:"" help:"Record the decisions of a server and replay them with this binary."`
	SimReplay  simReplayCmd  `cmd:"" help:"Replay a recorded server with one node of the simulator."`
	SimCheck   simCheckCmd   `cmd:"" help:"Compare a server on this machine with what the simulator predicts of it."`
	Decisions  decisionsCmd  `cmd:"" help:"CPU time of requests, hits and evictions when nothing is computed."`
	Beauty     beautyCmd     `cmd:"" help:"Whether both prompt orders rank Amazon Beauty alike."`
	Train      trainCmd      `cmd:"" help:"Train the policy that divides memory."`
}

const description = `grebe-bench measures Grebe on this machine, compares it with other software if installed, and
trains the policy that divides memory.

Examples:

    grebe-bench gemm
    grebe-bench prefill --json`

func main() { cli.Main("grebe-bench", description, &commands{}) }

// options are those of an App that logs to log.
func options(log *slog.Logger) app.Options { return app.Options{Log: log, Version: "grebe-bench"} }

// programFlag names the server that is measured.
type programFlag struct {
	Grebe string `type:"path" placeholder:"FILE"`
}

func (programFlag) FlagHelp() cli.Texts {
	return cli.Texts{
		"grebe": "The grebe to measure; default the one beside this program, or else on the PATH.",
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

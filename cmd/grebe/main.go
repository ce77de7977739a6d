// Command grebe is the server for generative recommenders and its tools.
package main

import (
	"log/slog"

	"grebe/app"
	"grebe/internal/cli"
)

// commands is the command line.
type commands struct {
	Demo       demoCmd       `cmd:"" help:"Serve an invented shop with small trained models: see it work."`
	Serve      serveCmd      `cmd:"" help:"Serve models over HTTP and gRPC."`
	Import     importCmd     `cmd:"" help:"Load items, users or events from files or a database."`
	Stream     streamCmd     `cmd:"" help:"Follow items, users or events in Kafka or a stream of Redis."`
	Table      tableCmd      `cmd:"" help:"Fill tables of embeddings."`
	Codes      codesCmd      `cmd:"" help:"Make semantic IDs for items from embeddings."`
	Index      indexCmd      `cmd:"" help:"Compute the keys and values of all items ahead of requests."`
	Rank       rankCmd       `cmd:"" help:"Ask a server to rank candidates for a user."`
	Recommend  recommendCmd  `cmd:"" help:"Ask a server for items of its catalog for a user."`
	Batch      batchCmd      `cmd:"" help:"Answer a file of requests in the time that others leave."`
	Backup     backupCmd     `cmd:"" help:"Copy a running server's catalog, versions and tables into a folder."`
	Restore    restoreCmd    `cmd:"" help:"Restore a backup into a server's data_dir."`
	Doctor     doctorCmd     `cmd:"" help:"Check this machine and a configuration, with a remedy for each problem."`
	Health     healthCmd     `cmd:"" help:"Check that a server is ready."`
	Cluster    clusterCmd    `cmd:"" help:"Show a cluster, take nodes out and back."`
	Key        keyCmd        `cmd:"" help:"Make an API key."`
	Quantise   quantiseCmd   `cmd:"" help:"Report what 8-bit weights cost, write a checkpoint of them."`
	Eval       evalCmd       `cmd:"" help:"Measure how good rankings and recommendations are."`
	Sim        simCmd        `cmd:"" help:"Simulate a fleet in virtual time: how many nodes, which policies."`
	Place      placeCmd      `cmd:"" help:"Compare ways to place items on the nodes of a cluster."`
	Completion completionCmd `cmd:"" help:"Print a script that completes commands in a shell."`
	Complete   completeCmd   `cmd:"" hidden:"" passthrough:""`
	Version    versionCmd    `cmd:"" help:"Print the version."`

	ShowVersion versionFlag `name:"version" help:"Print the version."`
}

const description = `Grebe serves generative recommenders: it ranks candidates with a language model, generates
items of a catalog, and reuses what earlier requests computed.

Try it: grebe demo`

// options are those of an App that logs to log.
func options(log *slog.Logger) app.Options {
	return app.Options{Log: log, Version: versionText()}
}

// process is the process as an App sees it.
func process(w *cli.World) app.Process {
	return app.Process{Started: w.Started, Env: w.Env, Hangup: w.Hangup, Exec: w.Exec}
}

func main() { cli.Main("grebe", description, &commands{}) }

// run runs one command line and returns its exit code.
func run(args []string, w *cli.World) int { return cli.Run("grebe", description, &commands{}, args, w) }

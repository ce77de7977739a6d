// Command grebe is the server for generative recommenders and its tools.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/term"
)

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// cli is the command line.
type cli struct {
	Demo       demoCmd       `cmd:"" help:"Serve an invented shop with small trained models: see it work."`
	Serve      serveCmd      `cmd:"" help:"Serve models over HTTP and gRPC."`
	Import     importCmd     `cmd:"" help:"Load items or users from NDJSON files."`
	Table      tableCmd      `cmd:"" help:"Fill tables of embeddings."`
	Index      indexCmd      `cmd:"" help:"Compute the keys and values of all items ahead of requests."`
	Rank       rankCmd       `cmd:"" help:"Ask a server to rank candidates for a user."`
	Recommend  recommendCmd  `cmd:"" help:"Ask a server for items of its catalog for a user."`
	Doctor     doctorCmd     `cmd:"" help:"Check this machine and a configuration, with a remedy for each problem."`
	Health     healthCmd     `cmd:"" help:"Check that a server is ready."`
	Key        keyCmd        `cmd:"" help:"Make an API key."`
	Eval       evalCmd       `cmd:"" help:"Measure how good rankings and recommendations are."`
	Train      trainCmd      `cmd:"" help:"Train what the binary carries."`
	Bench      benchCmd      `cmd:"" help:"Measure this machine."`
	Completion completionCmd `cmd:"" help:"Print a script that completes commands in a shell."`
	Complete   completeCmd   `cmd:"" hidden:"" passthrough:""`
	Version    versionCmd    `cmd:"" help:"Print the version."`

	ShowVersion versionFlag `name:"version" help:"Print the version."`
}

const description = `Grebe serves generative recommenders: it ranks candidates with a language model, generates
items of a catalog, and reuses what earlier requests computed.

Try it: grebe demo`

// world is what commands see of the outside.
type world struct {
	ctx      context.Context
	stdin    io.Reader
	stdout   io.Writer
	stderr   io.Writer
	terminal bool // stdout is one
	env      []string
	started  time.Time
	hangup   <-chan os.Signal // a signal asks to read the configuration again; nil: never
	// exec replaces the process by another of the same command line, with that environment; nil: it cannot.
	exec func(env []string) error
}

// usageError is a mistake on the command line that the parser could not see.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// errReported ends a command that has told the user already what failed.
var errReported = errors.New("failed")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	code := run(os.Args[1:], &world{
		hangup: hangup,
		ctx:    ctx, stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
		terminal: term.IsTerminal(int(os.Stdout.Fd())), env: os.Environ(), started: time.Now(), exec: execSelf,
	})
	stop()
	os.Exit(code)
}

// execSelf replaces the process by a new one of the same command line.
func execSelf(env []string) error {
	path, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(path, os.Args, env)
}

// run parses and runs one command line and returns its exit code.
func run(args []string, w *world) int {
	exited := -1
	parser, err := kong.New(&cli{},
		kong.Name("grebe"), kong.Description(description), kong.Writers(w.stdout, w.stderr), kong.Bind(w),
		kong.Exit(func(code int) { exited = code }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, WrapUpperBound: 100}),
	)
	if err != nil {
		panic(err) // the struct above is wrong: every test of a command fails
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	cmd, err := parser.Parse(args)
	if exited >= 0 {
		return exited // --help
	}
	if err == nil {
		err = checkFlags(cmd)
	}
	if err != nil {
		fmt.Fprintf(w.stderr, "grebe: %v\nTry: grebe --help\n", err)
		return exitUsage
	}
	return exitCode(w, cmd.Run(w))
}

func exitCode(w *world, err error) int {
	var usage usageError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &usage):
		fmt.Fprintf(w.stderr, "grebe: %v\n", err)
		return exitUsage
	case !errors.Is(err, errReported):
		fmt.Fprintf(w.stderr, "grebe: %v\n", err)
	}
	return exitFailed
}

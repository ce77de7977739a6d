// Package cli has what grebe and grebe-bench share: the environment of a command, parsing and checks of command
// lines, exit codes, and common flags.
package cli

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
	Done   = 0
	Failed = 1
	Misuse = 2
)

// World is the environment of a command. Tests replace it.
type World struct {
	Ctx      context.Context
	Stdin    io.Reader
	Stdout   io.Writer
	Stderr   io.Writer
	Terminal bool // Stdout is a terminal
	Env      []string
	Started  time.Time
	Hangup   <-chan os.Signal // a signal means to read the configuration again; nil: never
	// Exec replaces the process by a new one with the same command line and the given environment; nil: not possible.
	Exec func(env []string) error
}

// usageError is a mistake on the command line that the parser cannot find.
type usageError struct{ error }

// Usagef returns an error for a mistake on the command line. The command exits with Misuse.
func Usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// Usage wraps err as a mistake on the command line.
func Usage(err error) error { return usageError{err} }

// ErrReported ends a command that has already printed its error.
var ErrReported = errors.New("failed")

// Main runs the process's command line and exits. commands is a pointer to kong's structure.
func Main(name, description string, commands any) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the process at once
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	code := Run(name, description, commands, os.Args[1:], &World{
		Hangup: hangup,
		Ctx:    ctx, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Terminal: term.IsTerminal(int(os.Stdout.Fd())), Env: os.Environ(), Started: time.Now(), Exec: ExecSelf,
	})
	stop()
	os.Exit(code)
}

// ExecSelf replaces the process by a new one with the same command line.
func ExecSelf(env []string) error {
	path, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(path, os.Args, env)
}

// Parser returns a parser for commands.
func Parser(name, description string, commands any, w *World, options ...kong.Option) *kong.Kong {
	all := append([]kong.Option{
		kong.Name(name), kong.Description(description), kong.Writers(w.Stdout, w.Stderr), kong.Bind(w),
		kong.PostBuild(func(k *kong.Kong) error { return longHelp(k.Model.Node) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, WrapUpperBound: 100}),
	}, options...)
	parser, err := kong.New(commands, all...)
	if err != nil {
		panic(err) // the structure is wrong: every test of a command fails
	}
	return parser
}

// Run parses and runs one command line and returns its exit code.
func Run(name, description string, commands any, args []string, w *World) int {
	exited := -1
	parser := Parser(name, description, commands, w, kong.Exit(func(code int) { exited = code }))
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
		fmt.Fprintf(w.Stderr, "%s: %v\nTry: %s --help\n", name, err, commandOf(name, cmd, err))
		return Misuse
	}
	return exitCode(name, w, cmd.Run(w))
}

// commandOf returns the command that a wrong command line names, as far as it was understood.
func commandOf(name string, cmd *kong.Context, err error) string {
	if wrong := (*kong.ParseError)(nil); errors.As(err, &wrong) {
		cmd = wrong.Context
	}
	if cmd == nil || cmd.Selected() == nil {
		return name
	}
	return cmd.Selected().FullPath()
}

func exitCode(name string, w *World, err error) int {
	var usage usageError
	switch {
	case err == nil:
		return Done
	case errors.As(err, &usage):
		fmt.Fprintf(w.Stderr, "%s: %v\n", name, err)
		return Misuse
	case !errors.Is(err, ErrReported):
		fmt.Fprintf(w.Stderr, "%s: %v\n", name, err)
	}
	return Failed
}

// Package cli is what the project's commands have in common: the outside world as they see it, how a command line is read
// and checked, exit codes, and flags that several commands have.
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

// World is what commands see of the outside.
type World struct {
	Ctx      context.Context
	Stdin    io.Reader
	Stdout   io.Writer
	Stderr   io.Writer
	Terminal bool // Stdout is one
	Env      []string
	Started  time.Time
	Hangup   <-chan os.Signal // a signal asks to read the configuration again; nil: never
	// Exec replaces the process by another of the same command line, with that environment; nil: it cannot.
	Exec func(env []string) error
}

// usageError is a mistake on the command line that the parser could not see.
type usageError struct{ error }

// Usagef returns an error for a mistake on the command line: the command ends with the code Misuse.
func Usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// Usage returns err as such a mistake.
func Usage(err error) error { return usageError{err} }

// ErrReported ends a command that has told the user already what failed.
var ErrReported = errors.New("failed")

// Main runs the process's command line on commands, a pointer to kong's structure, and ends the process.
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

// ExecSelf replaces the process by a new one of the same command line.
func ExecSelf(env []string) error {
	path, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(path, os.Args, env)
}

// Parser reads command lines of commands.
func Parser(name, description string, commands any, w *World, options ...kong.Option) *kong.Kong {
	all := append([]kong.Option{
		kong.Name(name), kong.Description(description), kong.Writers(w.Stdout, w.Stderr), kong.Bind(w),
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
		fmt.Fprintf(w.Stderr, "%s: %v\nTry: %[1]s --help\n", name, err)
		return Misuse
	}
	return exitCode(name, w, cmd.Run(w))
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

package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"grebe/internal/cli"
)

var rewriteReference = flag.Bool("rewrite", false, "write the reference of the commands again")

const commandsFile = "../../docs/reference/commands.md"

const commandsHead = `# Reference: commands

What ` + "`grebe COMMAND --help`" + ` prints, for all commands. Made by the binary: do not edit it, run
` + "`go test ./cmd/grebe -run Reference -rewrite`" + `.

Exit codes: 0 done, 1 failed, 2 wrong usage.
`

// TestReference compares the page of commands with the binary's own help.
func TestReference(t *testing.T) {
	var page bytes.Buffer
	page.WriteString(commandsHead)
	w := &cli.World{Stdout: &bytes.Buffer{}, Stderr: &bytes.Buffer{}}
	describe(t, &page, cli.Parser("grebe", description, &commands{}, w, kong.Exit(func(int) {})).Model.Node, nil)
	if *rewriteReference {
		if err := os.WriteFile(commandsFile, page.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got, err := os.ReadFile(commandsFile); err != nil || !bytes.Equal(got, page.Bytes()) {
		t.Errorf("%s is not what the binary says (%v): run go test ./cmd/grebe -run Reference -rewrite", commandsFile, err)
	}
}

// describe writes the help of each command at and below a node that has flags or arguments of its own.
func describe(t *testing.T, page *bytes.Buffer, at *kong.Node, path []string) {
	for _, child := range at.Children {
		if child.Hidden || child.Type != kong.CommandNode {
			continue
		}
		words := append(path[:len(path):len(path)], child.Name)
		var out bytes.Buffer
		w := &cli.World{Stdout: &out, Stderr: &out}
		if code := run(append(words, "--help"), w); code != 0 {
			t.Fatalf("grebe %s --help: exit code %d\n%s", strings.Join(words, " "), code, &out)
		}
		fmt.Fprintf(page, "\n## grebe %s\n\n```text\n%s\n```\n", strings.Join(words, " "), strings.TrimSpace(out.String()))
		describe(t, page, child, words)
	}
}

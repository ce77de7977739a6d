// Command lines counts what a command links of this project: lines of Go that are no comments and not empty, without
// generated code.
//
//	go run ./internal/lines ./cmd/grebe          the sum
//	go run ./internal/lines -each ./cmd/grebe    the sum and each package
package main

import (
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	each := flag.Bool("each", false, "print each package too")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: lines [-each] PACKAGE")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *each); err != nil {
		fmt.Fprintln(os.Stderr, "lines:", err)
		os.Exit(1)
	}
}

type count struct {
	name  string
	lines int
}

func run(command string, each bool) error {
	const format = `{{if .Module}}{{if .Module.Main}}{{.ImportPath}}{{range .GoFiles}}` + "\t" +
		`{{$.Dir}}/{{.}}{{end}}{{end}}{{end}}`
	list := exec.Command("go", "list", "-deps", "-f", format, command)
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	var counts []count
	sum := 0
	for line := range strings.Lines(string(out)) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		if fields[0] == "" {
			continue
		}
		c := count{name: fields[0]}
		for _, file := range fields[1:] {
			n, err := linesOf(file)
			if err != nil {
				return err
			}
			c.lines += n
		}
		counts, sum = append(counts, c), sum+c.lines
	}
	if each {
		slices.SortFunc(counts, func(a, b count) int { return cmp.Compare(b.lines, a.lines) })
		for _, c := range counts {
			fmt.Printf("%7d  %s\n", c.lines, c.name)
		}
	}
	fmt.Printf("%7d  lines in %d packages that %s links\n", sum, len(counts), filepath.Base(command))
	return nil
}

// linesOf counts the lines of a file on which something other than a comment stands; none of a generated file.
func linesOf(file string) (int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, text, parser.ParseComments|parser.PackageClauseOnly)
	if err != nil {
		return 0, err
	}
	if ast.IsGenerated(parsed) {
		return 0, nil
	}
	var s scanner.Scanner
	at := set.AddFile(file, -1, len(text))
	s.Init(at, text, nil, 0) // which leaves out comments
	n, last := 0, 0
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return n, nil
		}
		if tok == token.SEMICOLON && lit == "\n" {
			continue // put in at the end of a line, perhaps behind a comment
		}
		first := at.Line(pos)
		end := first + strings.Count(lit, "\n") // a text of several lines
		n += max(0, end-max(first-1, last))
		last = max(last, end)
	}
}

// Package scripttest runs scenarios that are text files: commands, a line of dashes, and what the commands print.
//
//	# Comments and empty lines stay as they are.
//	add r1 rows=900
//	step 5ms
//	----
//	5ms: run r1
//
// Expected output ends at an empty line. `go test -rewrite` writes what a scenario prints into its file: the
// change is then reviewed as a diff.
package scripttest

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var rewrite = flag.Bool("rewrite", false, "write what the scenarios in testdata print as what they should print")

// Files runs each scenario that a pattern names in a subtest. Each begins with a new S, on which run carries out its
// commands.
func Files[S any](t *testing.T, pattern string, run func(*S, *Command, *strings.Builder)) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: no scenarios (%v)", pattern, err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), filepath.Ext(name)), func(t *testing.T) {
			s := new(S)
			File(t, name, func(c *Command, out *strings.Builder) { run(s, c, out) })
		})
	}
}

// File runs one scenario.
func File(t testing.TB, name string, run func(*Command, *strings.Builder)) {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	got := replay(string(data), t, run)
	if got == string(data) {
		return
	}
	if !*rewrite {
		t.Errorf("%s prints (-rewrite accepts it):\n%s", name, got)
		return
	}
	if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Golden compares a text with a file of expected output, line by line.
func Golden(t testing.TB, name, got string) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	lines, want := strings.Split(got, "\n"), strings.Split(string(data), "\n")
	for i := range max(len(lines), len(want)) {
		var g, w string
		if i < len(lines) {
			g = lines[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if g != w {
			t.Errorf("%s:%d (-rewrite accepts it):\n%s\nwant\n%s", name, i+1, g, w)
		}
	}
}

// Rewriting reports whether files of expected output are to be written again.
func Rewriting() bool { return *rewrite }

// replay runs the commands of a file and returns its text with what they print.
func replay(text string, t testing.TB, run func(*Command, *strings.Builder)) string {
	var out, printed strings.Builder
	expected := false // between the dashes and the next empty line
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case expected:
			if expected = line != ""; !expected {
				out.WriteString("\n")
			}
		case line == "----":
			out.WriteString("----\n" + printed.String())
			printed.Reset()
			expected = true
		default:
			out.WriteString(line + "\n")
			if c := Parse(t, line); c != nil {
				run(c, &printed)
			}
		}
	}
	if printed.Len() > 0 {
		t.Errorf("the last commands print, and no line of dashes follows them:\n%s", printed.String())
	}
	return out.String()
}

// Command is one line: a name, words, and values that have a key.
type Command struct {
	Name   string
	Words  []string // without those that have a key
	t      testing.TB
	line   string
	values map[string]string
}

// Parse reads a line. It returns nil for an empty line and for a comment.
func Parse(t testing.TB, line string) *Command {
	words := strings.Fields(line)
	if len(words) == 0 || strings.HasPrefix(words[0], "#") {
		return nil
	}
	c := &Command{Name: words[0], t: t, line: line, values: map[string]string{}}
	for _, w := range words[1:] {
		if key, value, ok := strings.Cut(w, "="); ok {
			c.values[key] = value
		} else {
			c.Words = append(c.Words, w)
		}
	}
	return c
}

// Fatal ends the test because of this command.
func (c *Command) Fatal(why any) {
	c.t.Helper()
	c.t.Fatalf("%q: %v", c.line, why)
}

// Word returns word i. A command that has fewer ends the test.
func (c *Command) Word(i int) string {
	if i >= len(c.Words) {
		c.Fatal(fmt.Sprintf("it needs %d words", i+1))
	}
	return c.Words[i]
}

// Has reports whether a key has a value.
func (c *Command) Has(key string) bool {
	_, ok := c.values[key]
	return ok
}

// Text returns a key's value; or otherwise, where there is none.
func (c *Command) Text(key, otherwise string) string {
	if v, ok := c.values[key]; ok {
		return v
	}
	return otherwise
}

// List returns a key's values, which commas separate.
func (c *Command) List(key string) []string {
	if c.Text(key, "") == "" {
		return nil
	}
	return strings.Split(c.values[key], ",")
}

// Int returns a key's number; or otherwise, where there is none.
func (c *Command) Int(key string, otherwise int) int { return int(c.Float(key, float64(otherwise))) }

// Float returns a key's number; or otherwise, where there is none.
func (c *Command) Float(key string, otherwise float64) float64 {
	if !c.Has(key) {
		return otherwise
	}
	n, err := strconv.ParseFloat(c.values[key], 64)
	if err != nil {
		c.Fatal(err)
	}
	return n
}

// Duration returns a key's span of time, such as 5ms; 0 where there is none.
func (c *Command) Duration(key string) time.Duration {
	if !c.Has(key) {
		return 0
	}
	return c.span(c.values[key])
}

// WordDuration returns word i as a span of time.
func (c *Command) WordDuration(i int) time.Duration { return c.span(c.Word(i)) }

func (c *Command) span(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		c.Fatal(err)
	}
	return d
}

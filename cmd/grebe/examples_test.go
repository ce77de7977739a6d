package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"grebe/internal/cli"
	"grebe/internal/config"
	"grebe/sim"
)

// example is a block of code on a page.
type example struct {
	page, mark, text string // mark is what follows the three backticks; "indented" for a block without any
}

// examples returns the blocks of all pages.
func examples(t *testing.T) []example {
	t.Helper()
	pages, err := filepath.Glob("../../docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	var out []example
	for _, page := range append(pages, "../../README.md") {
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		name, mark := strings.TrimPrefix(filepath.ToSlash(page), "../../"), ""
		if strings.HasPrefix(name, "docs/results/") || strings.HasPrefix(name, "docs/reference/") {
			continue // runs are kept as they were; references are made by the code
		}
		var block strings.Builder
		end := func() {
			if block.Len() > 0 {
				out = append(out, example{name, mark, block.String()})
			}
			block.Reset()
			mark = ""
		}
		before := ""
		for line := range strings.Lines(string(data)) {
			switch fence, ok := strings.CutPrefix(strings.TrimSpace(line), "```"); {
			case ok && mark != "" && mark != "indented":
				end()
			case ok:
				end()
				mark = fence
			case mark != "" && mark != "indented":
				block.WriteString(line)
			case mark == "indented" && strings.HasPrefix(line, "    "):
				block.WriteString(strings.TrimPrefix(line, "    "))
			case mark == "" && strings.HasPrefix(line, "    ") && strings.TrimSpace(before) == "":
				mark = "indented"
				block.WriteString(strings.TrimPrefix(line, "    "))
			default:
				end()
			}
			before = line
		}
		end()
	}
	return out
}

// Every configuration on a page has keys that exist and values that are allowed.
func TestConfigurationsInTheDocuments(t *testing.T) {
	checked := 0
	for _, e := range examples(t) {
		if e.mark != "yaml" || e.page == "docs/how-to/kubernetes.md" || e.page == "docs/how-to/kubernetes-coordinator.md" {
			continue // values of the chart, and a Role: tests of the chart and of cluster/coord/kube read them
		}
		checked++
		file := filepath.Join(t.TempDir(), "grebe.yaml")
		if err := os.WriteFile(file, []byte(whole(e.text)), 0o600); err != nil {
			t.Fatal(err)
		}
		var err error
		if e.page == "docs/how-to/capacity.md" {
			_, err = sim.ReadScenario(file, nil)
		} else {
			_, err = config.Load(config.Source{File: file})
		}
		if err == nil {
			continue
		}
		for line := range strings.Lines(err.Error()) {
			if strings.HasPrefix(line, file) { // others are of keys that the page leaves out
				t.Errorf("%s: %s\n%s", e.page, strings.TrimPrefix(line, file), e.text)
			}
		}
	}
	if checked < 8 {
		t.Errorf("found %d configurations: are they read right?", checked)
	}
}

// whole makes a configuration of a part of one: keys of a model get a model.
func whole(part string) string {
	if strings.HasPrefix(part, "    ") {
		return "models:\n  - name: m\n    path: ./m\n    " + strings.TrimSpace(part) + "\n"
	}
	return part
}

var (
	commandLine = regexp.MustCompile(`^(\$ )?grebe\s`)
	remark      = regexp.MustCompile(`\s+#.*$`)
)

// Every command on a page has flags and arguments that exist. Those in blocks marked sh are also run
// (TestCommandsInTheDocuments).
func TestFlagsInTheDocuments(t *testing.T) {
	checked := 0
	for _, e := range examples(t) {
		if e.mark == "yaml" || e.mark == "json" {
			continue
		}
		for line := range strings.Lines(strings.ReplaceAll(e.text, "\\\n", " ")) {
			if !commandLine.MatchString(line) {
				continue
			}
			checked++
			line = strings.TrimPrefix(remark.ReplaceAllString(strings.TrimSpace(line), ""), "$ ")
			line, _, _ = strings.Cut(line, " > ")
			line = strings.ReplaceAll(line, "$!", "1") // of the line before
			line = strings.TrimSpace(strings.TrimSuffix(line, "&"))
			split, err := exec.Command("bash", "-c", `printf '%s\0' `+line).Output()
			if err != nil {
				t.Errorf("%s: %s: %v", e.page, line, err)
				continue
			}
			args := strings.Split(strings.TrimSuffix(string(split), "\x00"), "\x00")
			w := &cli.World{Stdout: &bytes.Buffer{}, Stderr: &bytes.Buffer{}}
			_, err = cli.Parser("grebe", description, &commands{}, w, kong.Exit(func(int) {})).Parse(args[1:])
			if err != nil && !strings.Contains(err.Error(), "no such file") {
				t.Errorf("%s: `%s`: %v", e.page, line, err)
			}
		}
	}
	if checked < 30 {
		t.Errorf("found %d commands: are they read right?", checked)
	}
}

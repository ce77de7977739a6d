package main

import (
	"os/exec"
	"strings"
	"testing"

	"grebe/internal/cli"
)

func TestCompletion(t *testing.T) {
	for _, c := range []struct {
		words string
		want  []string
		not   []string
	}{
		{"", []string{"demo", "serve", "rank", "eval"}, []string{"complete"}},
		{"ra", []string{"rank"}, []string{"recommend"}},
		{"eval wo", []string{"world"}, []string{"rank"}},
		{"rank --pre", []string{"--prefix"}, []string{"--user"}},
		{"rank --prefix ", []string{"auto", "item", "user"}, []string{"--user"}},
		{"rank --prefix i", []string{"item"}, []string{"user"}},
		{"completion ", []string{"bash", "fish", "zsh"}, nil},
		{"serve -c ", nil, []string{"demo"}},
	} {
		out, errs, code := grebe(t, append([]string{"complete", "--"}, strings.Split(c.words, " ")...)...)
		got := strings.Fields(out)
		have := map[string]bool{}
		for _, g := range got {
			have[g] = true
		}
		for _, w := range c.want {
			if !have[w] {
				t.Errorf("%q: no %q in %q (%d, %s)", c.words, w, got, code, errs)
			}
		}
		for _, n := range c.not {
			if have[n] {
				t.Errorf("%q: %q should not be offered", c.words, n)
			}
		}
	}
}

// The scripts are read by their shells, where these are installed.
func TestCompletionScripts(t *testing.T) {
	for shell := range completionScripts {
		out, errs, code := grebe(t, "completion", shell)
		if code != cli.Done || !strings.Contains(out, "grebe complete") {
			t.Errorf("%s: exits with %d and says %s%s", shell, code, out, errs)
		}
		if path, err := exec.LookPath(shell); err == nil {
			cmd := exec.Command(path, "-n")
			cmd.Stdin = strings.NewReader(out)
			if text, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s cannot read its script: %v\n%s", shell, err, text)
			}
		}
	}
}

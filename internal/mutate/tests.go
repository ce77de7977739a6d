package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// What the tests made of a mutant.
const (
	passed = iota
	failed
	broken // it does not compile
)

// tests are a package's own tests and those of the further packages, with what they take without a mutant.
type tests struct {
	*options
	folder string // the package's
	binary string // where its tests are built
	quick  string // pattern of the tests that run first; empty: all run at once
	limit  time.Duration
	others time.Duration // limit of the further packages
}

// measure runs the tests without a mutant. It fails if they do.
func (o *options) measure(ctx context.Context, dir string) (*tests, error) {
	out, err := o.command(ctx, "list", "-f", "{{.Dir}}", o.pkg).Output()
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", o.pkg, err)
	}
	t := &tests{options: o, folder: strings.TrimSpace(string(out)), binary: filepath.Join(dir, "package.test")}
	if text, outcome := t.build(ctx, ""); outcome != passed {
		return nil, fmt.Errorf("the tests do not build without a mutant:\n%s", text)
	}
	if _, err := os.Stat(t.binary); errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s has no tests", o.pkg)
	}
	start := time.Now()
	text, outcome := t.own(ctx, 30*time.Minute, "-test.v", "-test.run", o.run)
	if outcome != passed {
		return nil, fmt.Errorf("the tests do not pass without a mutant:\n%s", text)
	}
	t.limit = 4*time.Since(start) + 20*time.Second
	if o.run == "" {
		t.quick = quick(text)
	}
	if len(o.with) > 0 {
		start := time.Now()
		if text, outcome := t.further(ctx, "", 30*time.Minute); outcome != passed {
			return nil, fmt.Errorf("the tests do not pass without a mutant:\n%s", text)
		}
		t.others = 4*time.Since(start) + 5*time.Minute // the go command may have remembered that they pass
	}
	return t, nil
}

var ended = regexp.MustCompile(`(?m)^--- PASS: (\S+) \(([0-9.]+)s\)$`)

// quick returns a pattern of the shortest tests that take a quarter of the time together. Most mutants die there.
func quick(log string) string {
	type test struct {
		name string
		took float64
	}
	var all []test
	var sum float64
	for _, m := range ended.FindAllStringSubmatch(log, -1) {
		took, _ := strconv.ParseFloat(m[2], 64) // the pattern allows numbers alone
		all = append(all, test{m[1], took})
		sum += took
	}
	slices.SortFunc(all, func(a, b test) int {
		if a.took < b.took {
			return -1
		}
		return 1
	})
	var names []string
	rest := sum / 4
	for _, t := range all {
		if rest -= t.took; rest < 0 {
			break
		}
		names = append(names, t.name)
	}
	if len(names) == 0 || len(names) == len(all) {
		return ""
	}
	return "^(" + strings.Join(names, "|") + ")$"
}

// try runs the tests on a mutant until one notices it.
func (t *tests) try(ctx context.Context, overlay string) int {
	if _, outcome := t.build(ctx, overlay); outcome != passed {
		return outcome
	}
	stages := [][]string{{"-test.run", t.run}}
	if t.quick != "" {
		stages = [][]string{{"-test.run", t.quick}, {"-test.skip", t.quick}}
	}
	for _, args := range stages {
		if _, outcome := t.own(ctx, t.limit, args...); outcome != passed {
			return outcome
		}
	}
	if len(t.with) > 0 {
		_, outcome := t.further(ctx, overlay, t.others)
		return outcome
	}
	return passed
}

// build compiles the package's own tests, without debug information: linking takes half the time.
func (t *tests) build(ctx context.Context, overlay string) (string, int) {
	args := []string{"test", "-c", "-vet=off", "-ldflags=-s -w", "-o", t.binary, "-overlay", overlay}
	if t.race {
		args = append(args, "-race")
	}
	out, err := t.command(ctx, append(args, t.pkg)...).CombinedOutput()
	if err != nil {
		return string(out), broken
	}
	return string(out), passed
}

// own runs the package's own tests as they were built. A mutant may allocate without end: it gets 8 GiB of memory, but
// for the race detector, which reserves far more.
func (t *tests) own(ctx context.Context, limit time.Duration, args ...string) (string, int) {
	ctx, stop := context.WithTimeout(ctx, limit+10*time.Second)
	defer stop()
	args = append([]string{"-test.failfast", "-test.timeout", limit.String()}, args...)
	cmd := exec.CommandContext(ctx, t.binary, args...)
	if !t.race {
		script := `ulimit -d 8388608 2>/dev/null; exec "$0" "$@"`
		cmd = exec.CommandContext(ctx, "sh", append([]string{"-c", script, t.binary}, args...)...)
	}
	cmd.Dir, cmd.WaitDelay = t.folder, 5*time.Second
	cmd.Env = append(os.Environ(), "TMPDIR="+filepath.Dir(t.binary)) // what a killed test leaves goes with the rest
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), failed
	}
	return string(out), passed
}

// further runs the tests of the further packages.
func (t *tests) further(ctx context.Context, overlay string, limit time.Duration) (string, int) {
	args := []string{"test", "-failfast", "-vet=off", "-timeout", limit.String(), "-overlay", overlay}
	if t.race {
		args = append(args, "-race")
	}
	if t.run != "" {
		args = append(args, "-run", t.run)
	}
	out, err := t.command(ctx, append(args, t.with...)...).CombinedOutput()
	switch {
	case err == nil:
		return string(out), passed
	case strings.Contains(string(out), "[build failed]") || strings.Contains(string(out), "[setup failed]"):
		return string(out), broken
	}
	return string(out), failed
}

// command returns a call of the go command. Without the race detector it needs no C compiler.
func (o *options) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = o.dir
	if !o.race {
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	}
	return cmd
}

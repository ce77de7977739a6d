package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"grebe/internal/cli"
	"grebe/internal/cli/clitest"
)

// command runs a command line in this process.
func command(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	code = cli.Run("grebe-bench", description, &commands{}, args,
		&cli.World{Ctx: t.Context(), Stdout: &out, Stderr: &errs})
	return out.String(), errs.String(), code
}

// A value on the command line that makes no sense is refused before anything begins, whichever flag it is.
func TestFlagsThatMakeNoSense(t *testing.T) {
	clitest.Senseless(t, "grebe-bench", func() any { return &commands{} }, map[string][]string{"decisions": {"--old=x"}},
		190)
}

func TestOptionsThatMakeNoSense(t *testing.T) {
	for _, args := range []string{
		"catalog --items 10 --changes 11",
		"catalog --items 10",
		"cache --policies sideways",
		"rank --workloads sideways",
		"rank --cache-policies sideways",
		"rank --count --cache-policies lru",
		"embed --parts sums --policies laru",
		"beam --contexts 17",
		"hstu --events 1000,20",
		"hstu --new 1000",
		"hstu --events 1000,5 --new 5",
		"kv8 --to bf16",
		"prototypes --left 0.5",
		"prefill --formats int4",
		"gemm --rows 0",
		"serve",
	} {
		if _, errs, code := command(t, strings.Fields(args)...); code != cli.Misuse || errs == "" {
			t.Errorf("%s: exit code %d, %q", args, code, errs)
		}
	}
}

// Each command has help with an example.
func TestHelp(t *testing.T) {
	for _, name := range strings.Fields("gemm gpu prefill hstu rank assemble beam catalog cache allocator embed kv8 " +
		"blend prototypes tiers " +
		"overload ahead budget import serve kv peer replay rows sim-check decisions train") {
		if out, errs, code := command(t, name, "--help"); code != cli.Done || !strings.Contains(out, "grebe-bench "+name) {
			t.Errorf("%s: exit code %d\n%s%s", name, code, out, errs)
		}
	}
	if out, _, code := command(t); code != cli.Done || !strings.Contains(out, "grebe-bench gemm") {
		t.Errorf("without arguments: exit code %d\n%s", code, out)
	}
}

// A server that is not there is asked for.
func TestTheServerIsNamed(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, errs, code := command(t, "overload"); code != cli.Misuse || !strings.Contains(errs, "--grebe FILE") {
		t.Errorf("exit code %d, %s", code, errs)
	}
}

// Names of traces and a user's own file reach the benchmark of caches.
func TestTracesOfBenchCache(t *testing.T) {
	own := filepath.Join(t.TempDir(), "own.txt")
	if err := os.WriteFile(own, []byte(strings.Repeat("a\nb\nc\nd\n", 50)), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"--traces zigzag-short,loop-short --sizes 0.03 --parts floor": "loop-short",
		"--trace " + own + " --sizes 0.5 --parts floor":               "own",
	} {
		out, errs, code := command(t, append([]string{"cache"}, strings.Fields(args)...)...)
		if code != 0 || !strings.Contains(out, want) || !strings.Contains(out, "PASS") {
			t.Errorf("%s: exit code %d, %q\n%s", args, code, errs, out)
		}
	}
}

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"grebe/internal/cli"
	"grebe/internal/cli/clitest"
)

// A value on the command line that makes no sense is refused before anything begins, whichever flag it is.
func TestFlagsThatMakeNoSense(t *testing.T) {
	clitest.Senseless(t, "grebe", func() any { return &commands{} }, map[string][]string{
		"sim":           {"main.go"}, // a file that exists
		"cluster drain": {"n1"}, "cluster undrain": {"n1"},
		"table import": {"items", "x.npy"}, "eval world": {"--out=x"}, "key": {"--name=x"}, "codes": {"x", "--codebook=x"},
		"place": {"x", "--nodes=2"}, "index": {"--config=x"},
	}, 60)
}

func TestOptionsThatMakeNoSense(t *testing.T) {
	two := filepath.Join(t.TempDir(), "two.f32")
	if err := os.WriteFile(two, make([]byte, 16), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{
		"index -c no.yaml --prototype-fresh",
		"index -c no.yaml --prototype-users 5",
		"index -c no.yaml --importance-prompts 5",
		"eval --compare cpu+f32,cpu+bf16 --html eval.html",
		"table import items a.npy b.f32 -c no.yaml",
		"place histories.txt --nodes 2 --gbit 10",
		"place histories.txt",
		"table import items --server http://127.0.0.1:1 --dim 2 --first-key 18446744073709551615 " + two,
	} {
		if _, errs, code := grebe(t, strings.Fields(args)...); code != cli.Misuse || errs == "" {
			t.Errorf("%s: exit code %d, %q", args, code, errs)
		}
	}
}

// What makes sense is not refused: it is the missing file that these fail for.
func TestOptionsThatMakeSense(t *testing.T) {
	for _, args := range []string{"index -c no.yaml",
		"index -c no.yaml --prototypes --prototype-users 5 --prototype-fresh"} {
		if _, errs, code := grebe(t, strings.Fields(args)...); code != cli.Failed || !strings.Contains(errs, "no.yaml") {
			t.Errorf("%s: exit code %d, %q", args, code, errs)
		}
	}
}

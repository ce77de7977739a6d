package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// A number on the command line that makes no sense is refused before anything begins, whichever flag it is.
func TestFlagsThatMakeNoSense(t *testing.T) {
	parser, err := kong.New(&cli{}, kong.Name("grebe"))
	if err != nil {
		t.Fatal(err)
	}
	needed := map[string][]string{ // for the command line to be whole otherwise
		"table import": {"items", "x.npy"}, "eval world": {"--out=x"}, "key": {"--name=x"}, "index": {"--config=x"},
		"bench decisions": {"--old=x"},
	}
	flags := 0
	var walk func(n *kong.Node)
	walk = func(n *kong.Node) {
		command := strings.TrimPrefix(n.Path(), "grebe ")
		for _, f := range n.Flags {
			bad := senseless(f)
			if f.Tag.Get("want") != "" && bad == nil {
				t.Errorf("%s --%s: nothing meets the tag %q", command, f.Name, f.Tag.Get("want"))
			}
			if bad == nil && numeric(f.Target.Type()) && f.Name != "seed" && f.Name != "first-key" && f.Enum == "" {
				t.Errorf("%s --%s has no tag want", command, f.Name)
			}
			for _, value := range bad {
				flags++
				args := append(strings.Fields(command), needed[command]...)
				var out bytes.Buffer
				code := run(append(args, fmt.Sprintf("--%s=%s", f.Name, value)), &world{ctx: t.Context(), stdout: &out, stderr: &out})
				if code != exitUsage || !strings.Contains(out.String(), "--"+f.Name+": ") || !strings.Contains(out.String(), ": want ") {
					t.Errorf("%s --%s=%s: exit code %d, %q", command, f.Name, value, code, out.String())
				}
			}
		}
		for _, c := range n.Children {
			walk(c)
		}
	}
	walk(parser.Model.Node)
	if flags < 250 {
		t.Errorf("%d values of flags tried: are tags no longer found?", flags)
	}
}

// senseless returns values that a flag's tag refuses.
func senseless(f *kong.Flag) []string {
	want := f.Tag.Get("want")
	switch {
	case want == "":
		return nil
	case strings.HasPrefix(want, "one of "):
		return []string{"sideways"}
	case want == "a file that can be written":
		return []string{"/nowhere/to/be/found", "/"}
	case strings.HasPrefix(want, "a size"):
		return []string{"much", "0", "50%"}
	case !numeric(f.Target.Type()):
		return nil // meets refuses every value of such a tag
	}
	var out []string
	if element(f.Target.Type()).Kind() == reflect.Float64 || element(f.Target.Type()).Kind() == reflect.Float32 {
		out = append(out, "NaN", "Inf", "-Inf")
	}
	for bound := range strings.SplitSeq(want, " and ") {
		i := strings.LastIndexByte(bound, ' ')
		by := map[string]float64{"at least": -1, "above": 0, "at most": 1, "below": 0}[bound[:i]]
		var limit float64
		fmt.Sscan(bound[i+1:], &limit)
		value := fmt.Sprint(int64(math.Floor(limit + by)))
		if element(f.Target.Type()).String() == "time.Duration" {
			value += "s"
		}
		out = append(out, value)
	}
	return out
}

// element is the type of one value of a flag.
func element(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Slice || t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

func numeric(t reflect.Type) bool {
	return element(t).Kind() >= reflect.Int && element(t).Kind() <= reflect.Float64
}

func TestOptionsThatMakeNoSense(t *testing.T) {
	two := filepath.Join(t.TempDir(), "two.f32")
	if err := os.WriteFile(two, make([]byte, 16), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{
		"bench catalog --items 10 --changes 11",
		"bench catalog --items 10",
		"bench cache --policies sideways",
		"bench rank --workloads sideways",
		"bench rank --cache-policies sideways",
		"bench rank --count --cache-policies lru",
		"bench embed --parts sums --policies laru",
		"bench beam --contexts 17",
		"bench hstu --events 1000,20",
		"bench hstu --new 1000",
		"bench hstu --events 1000,5 --new 5",
		"bench kv8 --to bf16",
		"index -c no.yaml --prototype-fresh",
		"index -c no.yaml --prototype-users 5",
		"index -c no.yaml --importance-prompts 5",
		"eval --compare cpu+f32,cpu+bf16 --html eval.html",
		"bench prototypes --left 0.5",
		"table import items a.npy b.f32 -c no.yaml",
		"table import items --server http://127.0.0.1:1 --dim 2 --first-key 18446744073709551615 " + two,
	} {
		if _, errs, code := grebe(t, strings.Fields(args)...); code != exitUsage || errs == "" {
			t.Errorf("%s: exit code %d, %q", args, code, errs)
		}
	}
}

// What makes sense is not refused: it is the missing file that these fail for.
func TestOptionsThatMakeSense(t *testing.T) {
	for _, args := range []string{"index -c no.yaml", "index -c no.yaml --prototypes --prototype-users 5 --prototype-fresh"} {
		if _, errs, code := grebe(t, strings.Fields(args)...); code != exitFailed || !strings.Contains(errs, "no.yaml") {
			t.Errorf("%s: exit code %d, %q", args, code, errs)
		}
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
		out, errs, code := grebe(t, append([]string{"bench", "cache"}, strings.Fields(args)...)...)
		if code != 0 || !strings.Contains(out, want) || !strings.Contains(out, "PASS") {
			t.Errorf("%s: exit code %d, %q\n%s", args, code, errs, out)
		}
	}
}

// The last key there is can be written.
func TestLastKey(t *testing.T) {
	two := filepath.Join(t.TempDir(), "two.f32")
	if err := os.WriteFile(two, make([]byte, 16), 0o600); err != nil {
		t.Fatal(err)
	}
	rows, err := openRows(two, 2, math.MaxUint64-1)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.close()
	if keys, _, err := rows.next(); err != nil || len(keys) != 2 || keys[1] != math.MaxUint64 {
		t.Errorf("keys %v, %v", keys, err)
	}
}

// Trying a file leaves no trace: neither a new one, nor less in one that is there.
func TestTriedFiles(t *testing.T) {
	dir := t.TempDir()
	there := filepath.Join(dir, "there")
	if err := os.WriteFile(there, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{there: true, filepath.Join(dir, "new"): true, dir: false, filepath.Join(there, "below"): false, os.DevNull: true} {
		if got := writable(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("left behind: %v, %v", files, err)
	}
	if data, err := os.ReadFile(there); err != nil || string(data) != "kept" {
		t.Errorf("%q, %v", data, err)
	}
}

package kernels

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"grebe/compute/cuda/driver"
)

// TestCompiles compiles every kernel to PTX for both paths, with each of its check lines.
func TestCompiles(t *testing.T) {
	clang, err := exec.LookPath("clang-19")
	if err != nil {
		t.Skip("clang-19 is not installed: kernels are compiled on the GPU machine only")
	}
	found, err := filepath.Glob("*.cu")
	if err != nil || len(found) == 0 {
		t.Fatalf("no kernels here: %v", err)
	}
	for _, file := range found {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, defines := range checkLines(string(text)) {
			for arch, path := range map[string]string{"sm_80": "GREBE_ARCH=80", "sm_90a": "GREBE_ARCH=90"} {
				t.Run(file+"/"+arch, func(t *testing.T) {
					t.Parallel()
					args := []string{"-x", "cuda", "--cuda-device-only", "--cuda-gpu-arch=" + arch, "-nocudainc", "-nocudalib",
						"-std=c++17", "-O1", "-S", "-Wall", "-Werror", "-Wno-unknown-cuda-version", "-Wno-unused-function",
						"-Wno-pass-failed",
						"-D" + path, "-o", os.DevNull}
					for _, d := range strings.Fields(defines) {
						args = append(args, "-D"+d)
					}
					if out, err := exec.Command(clang, append(args, file)...).CombinedOutput(); err != nil {
						t.Errorf("check line %d (%s): %v\n%s", i, defines, err, out)
					}
				})
			}
		}
	}
}

// checkLines returns the defines to try a kernel with: none, when it asks for nothing.
func checkLines(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if d, ok := strings.CutPrefix(line, "// check:"); ok {
			out = append(out, strings.TrimSpace(d))
		}
	}
	if out == nil {
		out = []string{""}
	}
	return out
}

func TestSourceHasItsHeadersOnce(t *testing.T) {
	entries, err := files.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".cu") {
			continue
		}
		text, err := source(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(text, "#define KERNEL "); n != 1 || strings.Contains(text, "#include") {
			t.Errorf("%s: grebe.cuh is in it %d times, or an include is left", e.Name(), n)
		}
	}
	if _, err := source("nothing.cu"); err == nil {
		t.Error("a kernel that does not exist was found")
	}
}

// TestCacheKey: whatever changes the code changes its name.
func TestCacheKey(t *testing.T) {
	t.Setenv("GREBE_KERNEL_CACHE", t.TempDir())
	base := cached("a.cu", "text", "13.0", options(90, []string{"N=1"}))
	for name, other := range map[string]string{
		"source":   cached("a.cu", "other", "13.0", options(90, []string{"N=1"})),
		"compiler": cached("a.cu", "text", "13.1", options(90, []string{"N=1"})),
		"arch":     cached("a.cu", "text", "13.0", options(89, []string{"N=1"})),
		"path":     cached("a.cu", "text", "13.0", options(90, []string{"N=1", Plain})),
		"define":   cached("a.cu", "text", "13.0", options(90, []string{"N=2"})),
	} {
		if other == base {
			t.Errorf("another %s has the same name", name)
		}
	}
	here := driver.Info{Name: "a", Processors: 132, Driver: 13000}
	measured := kept(here, "split", base)
	for name, other := range map[string]string{
		"kernel": kept(here, "split", cached("a.cu", "other", "13.0", options(90, []string{"N=1"}))),
		"GPU":    kept(driver.Info{Name: "b", Processors: 132, Driver: 13000}, "split", base),
		"driver": kept(driver.Info{Name: "a", Processors: 132, Driver: 13010}, "split", base),
		"kind":   kept(here, "other", base),
	} {
		if other == measured {
			t.Errorf("measurements of another %s have the same name", name)
		}
	}
	write(base, []byte("code"))
	if code, ok := read(base); !ok || !bytes.Equal(code, []byte("code")) {
		t.Errorf("read back %q, %v", code, ok)
	}
	data, err := os.ReadFile(base)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(base, data[:len(data)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, ok := read(base); ok {
		t.Error("a torn file was taken for machine code")
	}
}

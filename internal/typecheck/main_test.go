package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// module writes a module of one package.
func module(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	files["go.mod"] = "module example\n\ngo 1.26.0\n"
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestFindsWhatDoesNotCompile(t *testing.T) {
	// Each file is wrong on arm64 alone: its name or its constraint leaves it out elsewhere.
	for name, c := range map[string]struct{ file, text, says string }{
		"a type":           {"a_arm64.go", "package example\n\nvar x int = \"a\"\n", "a_arm64.go:3:13"},
		"a body":           {"a_arm64.go", "package example\n\nfunc f() { g() }\n", "undefined: g"},
		"an import":        {"a_arm64.go", "package example\n\nimport \"os\"\n", "imported and not used"},
		"a variable":       {"a_arm64.go", "package example\n\nfunc f() { x := 1 }\n", "declared and not used"},
		"a syntax":         {"a_arm64.go", "package example\n\nfunc f( {}\n", "a_arm64.go:3:9"},
		"no assembly":      {"a_arm64.go", "package example\n\nfunc f()\n", "f has no body"},
		"a constraint":     {"a.go", "//go:build !amd64\n\npackage example\n\nvar x int = true\n", "a.go:5:13"},
		"a test":           {"a_arm64_test.go", "package example\n\nvar x int = \"a\"\n", "a_arm64_test.go:3:13"},
		"an external test": {"a_arm64_test.go", "package example_test\n\nvar x int = \"a\"\n", "a_arm64_test.go:3:13"},
		"an import's name": {"a_arm64.go", "package example\n\nimport \"os\"\n\nvar x = os.None\n", "undefined: os.None"},
		"the size of a word": {"a_arm64.go", "package example\n\nimport \"unsafe\"\n\nvar x [unsafe.Sizeof(0) - 8]int = 1\n",
			"[0]int"},
		"a field of the system": {"a_arm64.go", "package example\n\nimport \"syscall\"\n\nvar x = syscall.PtraceRegs{}.Rax\n",
			"undefined"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := module(t, map[string]string{"doc.go": "package example\n", c.file: c.text})
			if _, errs, err := check(dir, "arm64", "./..."); err != nil || !strings.Contains(fmt.Sprint(errs), c.says) {
				t.Errorf("for arm64 finds %v (%v), want %q", errs, err, c.says)
			}
			if n, errs, err := check(dir, "amd64", "./..."); err != nil || len(errs) > 0 || n == 0 {
				t.Errorf("for amd64 finds %v (%v) in %d packages, want nothing", errs, err, n)
			}
		})
	}
}

func TestTestsOfAPackageMayAddToIt(t *testing.T) {
	dir := module(t, map[string]string{
		"a.go":       "package example\n\nfunc F() int { return 1 }\n",
		"in_test.go": "package example\n\nfunc G() int { return F() }\n",
		"out_test.go": "package example_test\n\nimport (\n\t\"testing\"\n\n\t\"example\"\n)\n\n" +
			"func TestG(t *testing.T) {\n\tif example.G() != 1 {\n\t\tt.Fail()\n\t}\n}\n",
	})
	if n, errs, err := check(dir, "arm64", "./..."); err != nil || len(errs) > 0 || n != 3 {
		t.Errorf("finds %v (%v) in %d packages, want nothing in the package and its two tests", errs, err, n)
	}
}

package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A reader opens a package at its doc comment; two of them would be joined by tools in file order.
func TestOneDocCommentPerPackage(t *testing.T) {
	for _, p := range packages(t) {
		var with []string
		code := false
		for _, f := range p.files {
			if f.test {
				continue
			}
			code = true
			if f.ast.Doc != nil {
				with = append(with, f.path)
			}
		}
		if len(with) > 1 {
			t.Errorf("%s has %d doc comments, want one: %s", p.path, len(with), strings.Join(with, ", "))
		}
		if len(with) == 0 && code && p.name != "main" && !generated(p) {
			t.Errorf("%s has no doc comment: say what it is for and its invariants", p.path)
		}
	}
}

// generated reports whether a package has only generated files, whose generator writes no doc.
func generated(p *pkg) bool {
	return !slices.ContainsFunc(p.files, func(f file) bool { return !ast.IsGenerated(f.ast) })
}

// pure rooms, and packages of others, have no goroutine, no lock, no I/O and no clock: the server and the simulator
// drive the same code, and the same input must give the same decision.
var pure = []string{"prompt", "plan", "beam", "blend", "codes", "schedule", "placement", "route", "evict", "alloc",
	"residency",
	"cluster/member", "cluster/feed", "cluster/rollout", "catalog/filter"}

var impureRooms = under("sync", "os", "net", "io/fs", "io/ioutil", "syscall", "log", "runtime", "context",
	"crypto/rand",
	"golang.org/x/sys", "golang.org/x/sync")

// impure is what a pure room may not import. What the processor can do is no input: assembly gives the bits that Go
// gives.
func impure(path string) bool { return impureRooms(path) && path != "golang.org/x/sys/cpu" }

// clock has the names, by package, that read or wait for a clock. Types of package time are arguments.
var clock = map[string][]string{
	"time":    {"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"},
	"context": {"WithTimeout", "WithTimeoutCause", "WithDeadline", "WithDeadlineCause"},
}

func TestPureRoomsStayPure(t *testing.T) {
	for _, p := range packages(t) {
		if !slices.Contains(pure, room(p.path)) && !slices.Contains(pure, p.path) {
			continue
		}
		for _, f := range p.files {
			if f.test {
				continue
			}
			for _, problem := range impurities(f.ast, f.imports) {
				t.Errorf("%s %s: %s is pure: time and randomness are arguments, I/O and goroutines its caller's",
					f.path, problem, p.path)
			}
		}
	}
}

func impurities(tree *ast.File, imports []string) []string {
	var out []string
	for _, i := range imports {
		if impure(i) {
			out = append(out, "imports "+i)
		}
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n.(type) {
		case *ast.GoStmt:
			out = append(out, "starts a goroutine")
		case *ast.ChanType:
			out = append(out, "uses a channel")
		}
		return true
	})
	return append(out, clocks(tree)...)
}

// clocks lists what a file uses that reads or waits for a clock, under whatever name it imports that.
func clocks(tree *ast.File) (out []string) {
	names := map[string]string{} // packages with a clock, by their name in the file
	for _, i := range tree.Imports {
		path, _ := strconv.Unquote(i.Path.Value)
		if _, ok := clock[path]; !ok {
			continue
		}
		name := path
		if i.Name != nil {
			name = i.Name.Name
		}
		names[name] = path
	}
	if path, ok := names["."]; ok {
		out = append(out, "imports all names of "+path)
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := s.X.(*ast.Ident); ok && slices.Contains(clock[names[x.Name]], s.Sel.Name) {
			out = append(out, "calls "+names[x.Name]+"."+s.Sel.Name)
		}
		return true
	})
	return out
}

// clockless packages decide nothing from time: waits are given to them, and a clock to measure with.
var clockless = []string{"engine"}

func TestClocklessPackagesReadNoClock(t *testing.T) {
	for _, name := range clockless {
		p := packages(t)[name]
		if p == nil {
			t.Errorf("no package %s", name)
			continue
		}
		for _, f := range p.files {
			for _, problem := range clocks(f.ast) {
				if !f.test {
					t.Errorf("%s %s: %s decides nothing from time: give it a wait or a clock", f.path, problem, name)
				}
			}
		}
	}
}

func TestClocksAreSeen(t *testing.T) {
	const src = `package p
import ("context"; "time"; other "time"; "unrelated/time")
var now = time.Now
func f(t time.Time, d time.Duration) {
	_ = other.Since(t)
	_ = t.After(t.Add(d))
	context.WithTimeout(context.Background(), d)
	select { case <-time.After(d): case <-other.NewTimer(d).C: }
	context.WithCancel(context.AfterFunc)
}`
	tree, err := parser.ParseFile(token.NewFileSet(), "p.go", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"calls context.WithTimeout", "calls time.After", "calls time.NewTimer", "calls time.Now",
		"calls time.Since"}
	if got := clocks(tree); !slices.Equal(slices.Sorted(slices.Values(got)), want) {
		t.Errorf("saw %q, want %q", got, want)
	}
}

func TestImpuritiesAreSeen(t *testing.T) {
	const src = `package p
import ("sync"; "time"; "fmt")
var mu sync.Mutex
func f(d time.Duration) { go fmt.Println(time.Now()) }
func g(c chan int) {}`
	tree, err := parser.ParseFile(token.NewFileSet(), "p.go", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	got := impurities(tree, []string{"sync", "time", "fmt"})
	want := []string{"imports sync", "starts a goroutine", "calls time.Now", "uses a channel"}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("saw %q, want %q", got, want)
	}
}

const maxLines = 900

func TestFilesStayReadable(t *testing.T) {
	for _, p := range packages(t) {
		for _, f := range p.files {
			if f.lines > maxLines && !ast.IsGenerated(f.ast) {
				t.Errorf("%s has %d lines, more than %d: split it by what it does", f.path, f.lines, maxLines)
			}
		}
	}
	eachFile(t, ".s", func(name string, data []byte) {
		if n := strings.Count(string(data), "\n"); n > maxLines && !strings.Contains(string(data), "// Code generated ") {
			t.Errorf("%s has %d lines, more than %d: generate it, or split it", name, n, maxLines)
		}
	})
}

// eachFile visits the module's files with an extension.
func eachFile(t *testing.T, ext string, visit func(name string, data []byte)) {
	t.Helper()
	base := root(t)
	err := filepath.WalkDir(base, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && skipped(d.Name()) && name != base {
			return fs.SkipDir
		}
		if d.IsDir() || filepath.Ext(name) != ext {
			return nil
		}
		data, err := os.ReadFile(name)
		if err == nil {
			visit(name, data)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

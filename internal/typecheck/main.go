// Typecheck reports what keeps packages and their tests from compiling for another architecture. It does not compile
// them.
//
//	go run ./internal/typecheck -arch arm64 ./...
//
// It reads the sources of the packages, of their tests and of all they import, chosen for that architecture, and checks
// their types. Bodies of functions are checked in this module only: other modules are released as they are. A function
// without a body is an error, because no assembly is assembled here. This takes a tenth of the time of `go vet`, which
// compiles everything that is imported.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

func main() {
	arch := flag.String("arch", "arm64", "the architecture, as in GOARCH")
	flag.Parse()
	n, errs, err := check(".", *arch, flag.Args()...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "typecheck:", err)
		os.Exit(2)
	}
	for _, err := range errs {
		fmt.Fprintln(os.Stderr, err)
	}
	if len(errs) > 0 {
		os.Exit(1)
	}
	fmt.Printf("%d packages, with those of tests, compile for %s\n", n, *arch)
}

// A listed package is as `go list` prints it.
type listed struct {
	ImportPath string
	Name       string
	Dir        string
	GoFiles    []string
	SFiles     []string
	ImportMap  map[string]string
	Imports    []string
	Module     *struct {
		Main      bool
		GoVersion string
	}

	types *types.Package
	errs  []error
	done  chan struct{} // closed when types and errs are there
}

// own reports whether the package is in this module.
func (p *listed) own() bool { return p.Module != nil && p.Module.Main }

// check checks packages of the module in dir. It returns how many of its packages there are, and what is wrong.
func check(dir, arch string, patterns ...string) (n int, errs []error, err error) {
	all, err := list(dir, arch, patterns)
	if err != nil {
		return 0, nil, err
	}
	byPath := map[string]*listed{}
	for _, p := range all {
		p.done = make(chan struct{})
		byPath[p.ImportPath] = p
	}
	// Imports come before their importers in all. A package holds a slot only while it does not wait, so that those that
	// it waits for get one.
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	files := token.NewFileSet()
	for _, p := range all {
		go func() {
			defer close(p.done)
			for _, path := range p.Imports {
				if q := byPath[path]; q != nil {
					<-q.done
				}
			}
			slots <- struct{}{}
			defer func() { <-slots }()
			p.check(files, byPath, types.SizesFor("gc", arch))
		}()
	}
	for _, p := range all {
		<-p.done
		if p.own() {
			n++
		}
		errs = append(errs, p.errs...)
	}
	return n, errs, nil
}

// list returns the packages, their tests and all they import, imports first.
func list(dir, arch string, patterns []string) ([]*listed, error) {
	cmd := exec.Command("go", append([]string{"list", "-deps", "-test",
		"-json=ImportPath,Name,Dir,GoFiles,SFiles,ImportMap,Imports,Module"}, patterns...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+arch)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, problems.Bytes())
	}
	var all []*listed
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		p := &listed{}
		if err := d.Decode(p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		// The main package of a test is generated, and has no sources to read.
		if p.ImportPath != "unsafe" && !strings.HasSuffix(p.ImportPath, ".test") {
			all = append(all, p)
		}
	}
}

func (p *listed) check(files *token.FileSet, byPath map[string]*listed, sizes types.Sizes) {
	var parsed []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(files, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			p.errs = append(p.errs, err)
			continue
		}
		if p.own() {
			p.errs = append(p.errs, p.bodies(files, f)...)
		}
		parsed = append(parsed, f)
	}
	conf := types.Config{
		Importer: importer(func(path string) (*types.Package, error) {
			if path == "unsafe" {
				return types.Unsafe, nil
			}
			if to := p.ImportMap[path]; to != "" {
				path = to
			}
			if q := byPath[path]; q != nil && q.types != nil {
				return q.types, nil
			}
			return nil, fmt.Errorf("%s is not listed", path)
		}),
		IgnoreFuncBodies: !p.own(),
		Sizes:            sizes,
		Error:            func(err error) { p.errs = append(p.errs, err) },
	}
	if p.Module != nil && p.Module.GoVersion != "" {
		conf.GoVersion = "go" + p.Module.GoVersion
	}
	path, _, _ := strings.Cut(p.ImportPath, " ") // "a [b.test]" is package a with what tests of b add
	p.types, _ = conf.Check(path, files, parsed, nil)
}

// bodies returns an error for each function that has no body and no assembly.
func (p *listed) bodies(files *token.FileSet, f *ast.File) (errs []error) {
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Body == nil && len(p.SFiles) == 0 {
			errs = append(errs, fmt.Errorf("%s: %s has no body", files.Position(fn.Pos()), fn.Name.Name))
		}
	}
	return errs
}

// importer is a function as a types.Importer.
type importer func(path string) (*types.Package, error)

func (i importer) Import(path string) (*types.Package, error) { return i(path) }

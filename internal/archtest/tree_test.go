package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "grebe"

// file is one Go file, parsed.
type file struct {
	path    string // relative to the module's root
	ast     *ast.File
	imports []string
	lines   int
	test    bool
}

// pkg is one folder with Go files; tests included.
type pkg struct {
	path  string // relative to the module's root, "" for the root
	name  string
	files []file
}

// root finds the folder of go.mod.
func root(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.mod above the test")
		}
		dir = parent
	}
}

var parsed map[string]*pkg // by the first test that asks; tests here do not run in parallel

// packages parses every Go file of the module, whatever its build tags.
func packages(t *testing.T) map[string]*pkg {
	t.Helper()
	if parsed != nil {
		return parsed
	}
	base, fset, out := root(t), token.NewFileSet(), map[string]*pkg{}
	err := filepath.WalkDir(base, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != base && (skipped(d.Name()) || otherModule(name)) {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ".go" {
			return nil
		}
		rel, err := filepath.Rel(base, name)
		if err != nil {
			return err
		}
		f, err := parse(fset, name, filepath.ToSlash(rel))
		if err != nil {
			return err
		}
		dir := path.Dir(f.path)
		p := out[dir]
		if p == nil {
			p = &pkg{path: dir}
			out[dir] = p
		}
		p.files = append(p.files, f)
		if !f.test {
			p.name = f.ast.Name.Name
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	parsed = out
	return out
}

// otherModule reports whether a folder is a module of its own, such as deploy/helm/check. The house's rules are not
// its.
func otherModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

func skipped(dir string) bool {
	return dir == "testdata" || dir == "bin" || strings.HasPrefix(dir, ".") || strings.HasPrefix(dir, "_")
}

func parse(fset *token.FileSet, name, rel string) (file, error) {
	tree, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
	if err != nil {
		return file{}, err
	}
	f := file{
		path: rel, ast: tree, test: strings.HasSuffix(rel, "_test.go"),
		lines: fset.File(tree.FileStart).LineCount(),
	}
	for _, i := range tree.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			return file{}, err
		}
		f.imports = append(f.imports, p)
	}
	return f, nil
}

// within reports whether path p is dir or inside it.
func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
)

// A mutant is one small fault: a few replaced pieces of one file.
type mutant struct {
	file  string
	line  int
	kind  string
	what  string // the change, for people
	edits []edit
}

// An edit replaces the bytes from at to end.
type edit struct {
	at, end int
	text    string
}

// apply returns src with a mutant's edits. Lines keep their numbers where an edit removes none.
func (m *mutant) apply(src []byte) []byte {
	edits := slices.Clone(m.edits)
	slices.SortFunc(edits, func(a, b edit) int { return b.at - a.at })
	out := slices.Clone(src)
	for _, e := range edits {
		out = slices.Replace(out, e.at, e.end, []byte(e.text)...)
	}
	return out
}

// operators maps a binary operator to the one that replaces it.
var operators = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.EQL: token.NEQ, token.NEQ: token.EQL,
	token.LAND: token.LOR, token.LOR: token.LAND,
	token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.QUO, token.QUO: token.MUL, token.REM: token.MUL,
	token.SHL: token.SHR, token.SHR: token.SHL, token.AND: token.OR, token.OR: token.AND, token.XOR: token.AND,
}

// A finder collects the mutants of one file.
type finder struct {
	path  string
	src   []byte
	files *token.FileSet
	out   []*mutant
}

// sites returns every mutant of a file, in order of position. Some do not compile; the runner skips those.
func sites(path string, src []byte) ([]*mutant, error) {
	f := &finder{path: path, src: src, files: token.NewFileSet()}
	tree, err := parser.ParseFile(f.files, path, src, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	if ast.IsGenerated(tree) {
		return nil, nil
	}
	for _, d := range tree.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok != token.IMPORT {
				ast.Inspect(d, f.visit)
			}
			continue
		}
		if fn.Body == nil || fn.Name.Name == "String" {
			continue
		}
		f.locks(fn.Body)
		ast.Inspect(fn.Body, f.visit)
	}
	return f.out, nil
}

func (f *finder) offset(p token.Pos) int { return f.files.Position(p).Offset }

func (f *finder) text(n ast.Node) string { return string(f.src[f.offset(n.Pos()):f.offset(n.End())]) }

func (f *finder) add(kind string, at ast.Node, what string, edits ...edit) {
	f.out = append(f.out, &mutant{file: f.path, line: f.files.Position(at.Pos()).Line, kind: kind, what: short(what),
		edits: edits})
}

// short puts a change on one line of bounded length.
func short(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > 120 {
		return string(r[:117]) + "..."
	}
	return s
}

// replace returns the edit that puts text in a node's place.
func (f *finder) replace(n ast.Node, text string) edit {
	return edit{f.offset(n.Pos()), f.offset(n.End()), text}
}

// drop returns the edit that removes a statement but keeps its lines.
func (f *finder) drop(n ast.Node) edit {
	return f.replace(n, "{"+strings.Repeat("\n", strings.Count(f.text(n), "\n"))+"}")
}

func (f *finder) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.CallExpr:
		if logs(n) || name(n.Fun) == "panic" {
			return false // texts for people
		}
	case *ast.BinaryExpr:
		if to, ok := operators[n.Op]; ok && !f.failure(n) {
			at := f.offset(n.OpPos)
			what := fmt.Sprintf("%s → %s", f.text(n), to)
			f.add("operator", n, what, edit{at, at + len(n.Op.String()), to.String()})
		}
	case *ast.BasicLit:
		f.constant(n)
	case *ast.IfStmt:
		if f.failure(n.Cond) {
			f.add("error", n, "ignore "+f.text(n.Cond), f.replace(n.Cond, "false && "+f.text(n.Cond)))
		}
	case *ast.ReturnStmt:
		if last := len(n.Results) - 1; last >= 0 && fails(n.Results[last]) {
			f.add("error", n, f.text(n)+" → nil", f.replace(n.Results[last], "nil"))
		}
	case *ast.ExprStmt, *ast.AssignStmt, *ast.IncDecStmt, *ast.DeferStmt, *ast.BranchStmt:
		f.statement(n.(ast.Stmt))
	}
	return true
}

func (f *finder) constant(n *ast.BasicLit) {
	if n.Kind != token.INT {
		return
	}
	v, err := strconv.ParseInt(n.Value, 0, 64)
	if err != nil {
		return
	}
	f.add("constant", n, fmt.Sprintf("%s → %d", n.Value, v+1), f.replace(n, strconv.FormatInt(v+1, 10)))
}

// failure reports whether an expression asks for an error.
func (f *finder) failure(x ast.Expr) bool {
	b, ok := x.(*ast.BinaryExpr)
	return ok && b.Op == token.NEQ && name(b.Y) == "nil" && strings.HasPrefix(strings.ToLower(name(b.X)), "err")
}

// fails reports whether a result is an error.
func fails(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return strings.HasPrefix(strings.ToLower(x.Name), "err")
	case *ast.CallExpr:
		n := name(x.Fun)
		return n == "Errorf" || n == "New" && name(receiver(x)) == "errors"
	}
	return false
}

func (f *finder) statement(s ast.Stmt) {
	switch s := s.(type) {
	case *ast.ExprStmt:
		if c, ok := s.X.(*ast.CallExpr); !ok || logs(c) || locking(c) || name(c.Fun) == "panic" {
			return
		}
	case *ast.DeferStmt:
		if locking(s.Call) {
			return
		}
	case *ast.AssignStmt:
		if s.Tok == token.DEFINE || len(s.Lhs) != 1 || name(s.Lhs[0]) == "_" {
			return
		}
		f.add("statement", s, "drop "+f.text(s), f.replace(s, "_ = "+f.text(s.Rhs[0])))
		return
	case *ast.BranchStmt:
		if s.Tok == token.GOTO || s.Tok == token.FALLTHROUGH {
			return
		}
	}
	f.add("statement", s, "drop "+f.text(s), f.drop(s))
}

// locks adds a mutant for each lock that a function takes: without any of its calls.
func (f *finder) locks(body *ast.BlockStmt) {
	calls := map[string][]ast.Stmt{}
	var order []string
	ast.Inspect(body, func(n ast.Node) bool {
		var c *ast.CallExpr
		switch s := n.(type) {
		case *ast.ExprStmt:
			c, _ = s.X.(*ast.CallExpr)
		case *ast.DeferStmt:
			c = s.Call
		}
		if c != nil && locking(c) {
			mu := f.text(receiver(c))
			if calls[mu] == nil {
				order = append(order, mu)
			}
			calls[mu] = append(calls[mu], n.(ast.Stmt))
		}
		return true
	})
	for _, mu := range order {
		var edits []edit
		for _, s := range calls[mu] {
			edits = append(edits, f.drop(s))
		}
		f.add("lock", calls[mu][0], "do not lock "+mu, edits...)
	}
}

func locking(c *ast.CallExpr) bool {
	switch name(c.Fun) {
	case "Lock", "Unlock", "RLock", "RUnlock":
		return receiver(c) != nil && len(c.Args) == 0
	}
	return false
}

// logs reports whether a call writes to a log.
func logs(c *ast.CallExpr) bool {
	switch strings.ToLower(name(receiver(c))) {
	case "log", "logger", "slog":
		return true
	}
	return false
}

// receiver returns what stands before the last dot of a call.
func receiver(c *ast.CallExpr) ast.Expr {
	if s, ok := c.Fun.(*ast.SelectorExpr); ok {
		return s.X
	}
	return nil
}

// name returns the last name of an expression.
func name(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return x.Sel.Name
	}
	return ""
}

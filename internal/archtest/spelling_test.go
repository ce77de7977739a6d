package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// spelled are the names of concepts that every room shares. Package plan declares each once: two types for one concept
// need conversions, and drift apart.
var spelled = []string{"Key", "Tier", "Order", "Source"}

// others are types with such a name that mean something else.
var others = map[string]string{
	"server/guard Key":       "an API key",
	"internal/config Key":    "an API key in a file of keys",
	"internal/config Source": "file, environment and flags of a configuration",
}

func TestSharedTypesAreDeclaredOnce(t *testing.T) {
	seen, declared := map[string]bool{}, map[string]int{}
	for _, p := range packages(t) {
		for _, f := range p.files {
			for _, d := range spellings(f.ast) {
				name := p.path + " " + d.name
				switch {
				case p.path == "plan" && d.of == "" && slices.Contains(spelled, d.name):
					declared[d.name]++
				case others[name] != "":
					seen[name] = true
				case d.of != "":
					t.Errorf("%s: type %s is another name of plan.%s: use that", f.path, d.name, d.of)
				default:
					t.Errorf("%s declares a type %s: keys, tiers, orders and sources are package plan's; if it means something else, "+
						"say so in this test", f.path, d.name)
				}
			}
		}
	}
	for _, name := range spelled {
		if declared[name] != 1 {
			t.Errorf("package plan declares type %s %d times, want once", name, declared[name])
		}
	}
	for name := range others {
		if !seen[name] {
			t.Errorf("no type %s: remove it from this test", name)
		}
	}
}

// spelling is a type with the name of a shared concept, or one that is made of plan's.
type spelling struct {
	name string
	of   string // the type of plan that it renames; empty: none
}

func spellings(tree *ast.File) (out []spelling) {
	ast.Inspect(tree, func(n ast.Node) bool {
		s, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		if sel, ok := s.Type.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "plan" && slices.Contains(spelled, sel.Sel.Name) {
				out = append(out, spelling{s.Name.Name, sel.Sel.Name})
				return true
			}
		}
		if slices.Contains(spelled, s.Name.Name) {
			out = append(out, spelling{name: s.Name.Name})
		}
		return true
	})
	return out
}

// A second enumeration of tiers, orders or sources under another name is as bad as a second type of the same name.
func TestSharedValuesAreDeclaredOnce(t *testing.T) {
	of := map[string][]string{} // the names of a type's values, by type
	for _, p := range packages(t) {
		for _, f := range p.files {
			for _, e := range enumerations(f.ast) {
				if p.path == "plan" && slices.Contains(spelled, e.of) {
					of[e.of] = e.names
				}
			}
		}
	}
	for _, name := range []string{"Tier", "Order", "Source"} {
		if len(of[name]) < 2 {
			t.Fatalf("package plan has %d values of type %s", len(of[name]), name)
		}
	}
	for _, p := range packages(t) {
		for _, f := range p.files {
			for _, e := range enumerations(f.ast) {
				if name, both := repeats(e, of); p.path != "plan" && name != "" {
					t.Errorf("%s enumerates %s: these are values of plan.%s", f.path, strings.Join(both, ", "), name)
				}
			}
		}
	}
}

// enumeration is a group of constants.
type enumeration struct {
	of    string // the type of the first one; empty: it has none of its own
	names []string
}

func enumerations(tree *ast.File) (out []enumeration) {
	ast.Inspect(tree, func(n ast.Node) bool {
		d, ok := n.(*ast.GenDecl)
		if !ok || d.Tok != token.CONST {
			return true
		}
		var e enumeration
		for i, s := range d.Specs {
			s := s.(*ast.ValueSpec)
			if id, ok := s.Type.(*ast.Ident); ok && i == 0 {
				e.of = id.Name
			}
			for _, id := range s.Names {
				e.names = append(e.names, strings.ToLower(id.Name))
			}
		}
		out = append(out, e)
		return true
	})
	return out
}

// repeats returns the type of which a group has two values or more, and these. One word alone may mean anything.
func repeats(e enumeration, of map[string][]string) (name string, both []string) {
	for name, values := range of {
		both = slices.DeleteFunc(slices.Clone(e.names), func(s string) bool { return !slices.Contains(values, s) })
		if len(both) > 1 {
			return name, both
		}
	}
	return "", nil
}

func TestEnumerationsAreSeen(t *testing.T) {
	const src = `package p
const one = 1
const (
	Other kind = iota
	cached
	_
	Prototype
)
func f() { const block, host = 1, 2 }`
	tree, err := parser.ParseFile(token.NewFileSet(), "p.go", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	of := map[string][]string{"Source": {"computed", "cached", "block", "prototype"}, "Tier": {"host", "disk"}}
	got := enumerations(tree)
	if len(got) != 3 || got[1].of != "kind" {
		t.Fatalf("saw %v", got)
	}
	for i, want := range []string{"", "Source", ""} {
		if name, both := repeats(got[i], of); name != want ||
			name != "" && !slices.Equal(both, []string{"cached", "prototype"}) {
			t.Errorf("group %d: %v repeats plan.%s, want %q", i, both, name, want)
		}
	}
}

func TestSpellingsAreSeen(t *testing.T) {
	const src = `package p
type Key [32]byte
type Place = plan.Tier
type first plan.Order
type Tier = plan.Tier
type Tiers uint8
type keyed struct { Key plan.Key; Order plan.Order }
type kind plan.Kind
func f() { type Order uint8 }`
	tree, err := parser.ParseFile(token.NewFileSet(), "p.go", src, 0)
	if err != nil {
		t.Fatal(err)
	}
	got := spellings(tree)
	want := []spelling{{"Key", ""}, {"Place", "Tier"}, {"first", "Order"}, {"Tier", "Tier"}, {"Order", ""}}
	if !slices.Equal(got, want) {
		t.Errorf("saw %v, want %v", got, want)
	}
}

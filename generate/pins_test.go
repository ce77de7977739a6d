package generate

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"grebe/beam"
	"grebe/compute"
)

// pinnedShelf is a shelf whose model "a" has an earlier version activated.
func pinnedShelf(t *testing.T) (s *shelf, pinned contents) {
	t.Helper()
	s = newShelf(t)
	s.fill(80)
	s.open()
	pinned = contentsOf(s.models["a"].Snapshot())
	s.put("i1", 2, 2)
	s.keeper.Renew()
	if err := s.keeper.Rollback("a"); err != nil {
		t.Fatal(err)
	}
	return s, pinned
}

// If one of the two files of activated versions is damaged, the model keeps its version, and the damage is counted.
// If both are damaged, the start is refused.
func TestDamagedPins(t *testing.T) {
	damages := map[string]func(name string) error{
		"gone":      os.Remove,
		"empty":     func(name string) error { return os.Truncate(name, 0) },
		"truncated": func(name string) error { return os.Truncate(name, 30) },
		"appended": func(name string) error {
			return os.WriteFile(name, append(must(os.ReadFile(name)), "x"...), 0o600)
		},
		"another number": func(name string) error { // still JSON
			return os.WriteFile(name, []byte(strings.Replace(string(must(os.ReadFile(name))), `"version":8`, `"version":9`, 1)),
				0o600)
		},
	}
	for at := range 5 {
		damages[fmt.Sprint("a byte flipped at ", at, "/5")] = func(name string) error {
			data := must(os.ReadFile(name))
			data[at*(len(data)-1)/5] ^= 1
			return os.WriteFile(name, data, 0o600)
		}
	}
	for what, damage := range damages {
		for _, both := range []bool{false, true} {
			s, pinned := pinnedShelf(t)
			must(0, damage(s.keeper.pinFile()))
			if both {
				must(0, damage(s.keeper.pinCopy()))
			}
			if both && what != "gone" {
				must(0, s.keeper.Close())
				g := &Generator{Prompt: s.prompt}
				if _, err := NewKeeper(s.catalog, KeeperOptions{Dir: s.dir}, Target{"a", g, &packer{4}}); err == nil ||
					!strings.Contains(err.Error(), "Remove both files") {
					t.Errorf("%s, both: %v", what, err)
				}
				continue
			}
			s.open()
			if both { // nothing tells that there ever was one
				continue
			}
			s.want(what, "a", pinned)
			if !s.keeper.Pinned("a") || s.keeper.Damaged() != 1 {
				t.Errorf("%s: pinned %v, %d damaged", what, s.keeper.Pinned("a"), s.keeper.Damaged())
			}
			if s.open(); s.keeper.Damaged() != 0 || !s.keeper.Pinned("a") {
				t.Errorf("%s: it was not put right", what)
			}
		}
	}
}

// The format of earlier builds is read.
func TestPinsOfTheFormatBefore(t *testing.T) {
	s, pinned := pinnedShelf(t)
	p, _ := s.keeper.pin("a")
	must(0, os.Remove(s.keeper.pinCopy()))
	must(0, os.WriteFile(s.keeper.pinFile(), fmt.Appendf(nil, "{\"a\":%d}\n", p.Version), 0o600))
	s.open()
	s.want("the format before", "a", pinned)
	if s.keeper.Damaged() != 0 {
		t.Errorf("%d damaged", s.keeper.Damaged())
	}
}

// A version whose activation cannot be made durable is not activated.
func TestActivationThatCannotBeWritten(t *testing.T) {
	s := newShelf(t)
	s.fill(80)
	s.open()
	s.put("i1", 2, 2)
	s.keeper.Renew()
	latest := contentsOf(s.models["a"].Snapshot())
	must(0, os.Mkdir(s.keeper.pinFile(), 0o700)) // no file can take the place of a folder
	for what, do := range map[string]func() error{
		"rollback": func() error { return s.keeper.Rollback("") },
		"auto":     func() error { return s.keeper.Activate("", Auto, "") },
	} {
		if err := do(); err == nil {
			t.Errorf("%s: no error", what)
		}
		s.want(what, "a", latest)
		if s.keeper.Pinned("a") {
			t.Errorf("%s: pinned", what)
		}
	}
	must(0, os.Remove(s.keeper.pinFile()))
}

type brokenPacker struct{}

func (brokenPacker) Head([]int32) (compute.Linear, error) { return nil, fmt.Errorf("no memory") }

// If a model's snapshot cannot be made, it keeps the one before, and other models follow the catalog.
func TestOneFailingModelDoesNotStopTheOthers(t *testing.T) {
	s := newShelf(t)
	bad, good := &Generator{Prompt: s.prompt}, &Generator{Prompt: s.prompt}
	s.keeper = must(NewKeeper(s.catalog, KeeperOptions{}, Target{"bad", bad, brokenPacker{}},
		Target{"good", good, &packer{4}}))
	s.put("i1", 1, 1)
	s.keeper.Renew()
	if bad.Snapshot().Len() != 0 || good.Snapshot().Len() != 1 {
		t.Errorf("the models generate %d and %d items, want 0 and 1", bad.Snapshot().Len(), good.Snapshot().Len())
	}
}

// A stored index is not used if one of its paths differs from the item's, even if everything else fits.
func TestIndexOfOtherPaths(t *testing.T) {
	s := newShelf(t)
	s.put("i1", 1, 1)
	s.put("i2", 2, 2)
	s.open()
	s.put("gone", 3, 3)
	s.keeper.Renew()
	must(s.catalog.DeleteItem("gone"))
	s.keeper.Renew()
	x := newIndexer(s.prompt)
	v := s.keeper.history.Head()
	slots := v.Live()
	name := filepath.Join(t.TempDir(), "index")
	ix := must(x.build(v.Table(), slots))
	must(0, x.write(name, ix, v))
	if _, err := x.read(name, v); err != nil {
		t.Fatal(err)
	}
	other := newShelf(t)
	other.put("i1", 3, 1) // as many items, other codes
	other.put("i2", 2, 2)
	other.open()
	must(0, x.write(name, must(x.build(other.keeper.history.Head().Table(), slots)), v))
	if _, err := x.read(name, v); err == nil {
		t.Error("the index of other paths is used")
	}
	for what, ix := range map[string]*beam.Index{ // of a model whose codes have another depth or other sizes
		"fewer levels":  must(beam.Build([]int{20}, []int32{1, 2})),
		"more levels":   must(beam.Build([]int{20, 20, 20}, []int32{1, 1, 0, 2, 2, 0})),
		"a wider level": must(beam.Build([]int{20, 21}, []int32{1, 1, 2, 2})),
		"fewer items":   must(beam.Build([]int{20, 20}, []int32{1, 1})),
		"deleted items": must(beam.Build([]int{20, 20}, []int32{1, 1, 2, 2, 3, 3})),
	} {
		must(0, x.write(name, ix, v))
		if _, err := x.read(name, v); err == nil {
			t.Errorf("an index of %s is used", what)
		}
	}
	must(0, os.WriteFile(name, []byte(indexMagic+"short"), 0o600))
	if _, err := x.read(name, v); err == nil {
		t.Error("a header that is cut off is taken")
	}
}

package generate

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
)

// An import large enough to begin a generation, and a change after it, appear together. The models' snapshots are
// then of a generation that is not the one before.
func TestAChangeRightBehindALargeImport(t *testing.T) {
	s := newShelf(t)
	s.fill(80)
	s.open()
	var ops []catalog.Op
	for i := range 120 {
		ops = append(ops, catalog.Op{PutItem: coded(fmt.Sprint("i", i), int32(i%20), int32(i%7))})
	}
	s.imports("x", ops...)
	must(s.catalog.EndImport("x"))
	s.put("i3", 19, 19)
	s.keeper.Renew()
	want := contentsOf(must(NewSnapshot("", s.catalog.Items(), s.prompt, &packer{2}, nil)))
	s.want("both", "a", want)
	if n := len(s.keeper.Versions()); n != 3 {
		t.Errorf("%d versions, want three", n)
	}
	s.open()
	s.want("after a restart", "b", want)
}

// Versions and indices that cannot be written are logged once. Models still generate them until the process ends.
func TestVersionsThatCannotBeWritten(t *testing.T) {
	s := newShelf(t)
	s.dir = filepath.Join(s.dir, "versions")
	s.fill(80)
	s.open()
	if s.log.Len() != 0 {
		t.Errorf("the log says %s", s.log.String())
	}
	must(0, os.Rename(s.dir, s.dir+".away"))
	must(0, os.WriteFile(s.dir, nil, 0o600)) // no folder can be made there
	for i := range 120 {                     // another generation
		s.put(fmt.Sprint("i", i%60), int32(i%20), 3)
	}
	s.keeper.Renew()
	s.want("not on disk", "a", contentsOf(must(NewSnapshot("", s.catalog.Items(), s.prompt, &packer{2}, nil))))
	for i := range 5 {
		s.put("i1", int32(i), 4)
		s.keeper.Renew()
	}
	if strings.Count(s.log.String(), "versions of the catalog are not on disk") != 1 {
		t.Errorf("the log says %s", s.log.String())
	}
	if err := s.keeper.Failing(); err == nil {
		t.Error("nothing fails")
	}
	must(0, os.Remove(s.dir))
	must(0, os.Rename(s.dir+".away", s.dir))
	s.open()
	names := must(filepath.Glob(filepath.Join(s.dir, "index-*")))
	if len(names) == 0 {
		t.Fatal("no index is on disk")
	}
	for _, name := range names {
		must(0, os.Remove(name))
		must(0, os.MkdirAll(filepath.Join(name, "in the way"), 0o700))
	}
	s.open()
	s.want("without its index", "a", contentsOf(must(NewSnapshot("", s.catalog.Items(), s.prompt, &packer{2}, nil))))
	if !strings.Contains(s.log.String(), "indices of items are not on disk") {
		t.Errorf("the log says %s", s.log.String())
	}
}

// A Keeper whose versions cannot be read does not start.
func TestVersionsThatCannotBeRead(t *testing.T) {
	s := newShelf(t)
	s.put("i1", 1, 1)
	s.open()
	must(0, s.keeper.Close())
	folder := filepath.Join(s.dir, fmt.Sprintf("items-%020d", 9))
	must(0, os.Mkdir(folder, 0o700))
	k, err := NewKeeper(s.catalog, KeeperOptions{Dir: s.dir}, Target{"a", &Generator{Prompt: s.prompt}, &packer{4}})
	if err == nil || k != nil {
		t.Errorf("a folder instead of a file of items: %v", err)
	}
	if err := Record(s.catalog, KeeperOptions{Dir: s.dir}); err == nil {
		t.Error("a folder instead of a file of items is no error to Record")
	}
	must(0, os.Remove(folder))
	s.open()
}

// A start warns of items whose codes a model does not have, with their number and examples, for each model. Later it
// warns only if there are more of them.
func TestStartWarnsOfUnusableCodes(t *testing.T) {
	s := newShelf(t)
	s.fill(80)
	must(s.catalog.PutItem(&grebev1.Item{Id: "long", Codes: codesOf(1, 2, 3)}))
	must(s.catalog.PutItem(&grebev1.Item{Id: "high", Codes: codesOf(1, 20)}))
	must(s.catalog.PutItem(&grebev1.Item{Id: "bare"}))
	const warning = "items have codes that the model does not have"
	for range 2 { // a restart reads the versions back
		s.open()
		text := s.log.String()
		if strings.Count(text, warning) != 2 || strings.Count(text, "level=WARN") != 2 ||
			!strings.Contains(text, "model=a items=2 of=82") ||
			!strings.Contains(text, "model=b items=2 of=82") || !strings.Contains(text, "long") ||
			!strings.Contains(text, "high") {
			t.Errorf("the log says %s", text)
		}
	}
	s.put("i1", 3, 3)
	s.keeper.Renew()
	if n := strings.Count(s.log.String(), warning); n != 2 {
		t.Errorf("%d warnings after an item that can be generated: %s", n, s.log.String())
	}
	must(s.catalog.PutItem(&grebev1.Item{Id: "higher", Codes: codesOf(30, 1)}))
	s.keeper.Renew()
	if n := strings.Count(s.log.String(), warning); n != 4 || !strings.Contains(s.log.String(), "items=3 of=83") {
		t.Errorf("%d warnings after one more that cannot: %s", n, s.log.String())
	}
}

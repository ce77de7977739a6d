package generate

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/prompt"
)

// shelf is a keeper on disk that can be opened again.
type shelf struct {
	t       *testing.T
	dir     string
	catalog *catalog.Catalog
	prompt  *prompt.Builder
	models  map[string]*Generator
	keeper  *Keeper
	log     sharedLog
	packed  *packer
}

// sharedLog is a log for concurrent writes and reads.
type sharedLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *sharedLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *sharedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *sharedLog) Len() int { return len(l.String()) }

func (l *sharedLog) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Reset()
}

func newShelf(t *testing.T) *shelf {
	s := &shelf{t: t, dir: t.TempDir(), catalog: catalog.New(catalog.Options{})}
	s.prompt = must(prompt.New(prompt.Config{Codes: prompt.Codes{FirstToken: []int32{0, 20}, Size: []int32{20, 20}}}, nil,
		100))
	t.Cleanup(func() { s.keeper.Close() })
	return s
}

// open starts the Keeper, as after a restart.
func (s *shelf) open() {
	s.t.Helper()
	if s.keeper != nil {
		if err := s.keeper.Close(); err != nil {
			s.t.Fatal(err)
		}
	}
	s.log.Reset()
	s.packed = &packer{4}
	s.models = map[string]*Generator{"a": {Prompt: s.prompt}, "b": {Prompt: s.prompt}}
	s.keeper = must(NewKeeper(s.catalog, KeeperOptions{
		Dir: s.dir, compact: 100, Logger: slog.New(slog.NewTextHandler(&s.log, nil))},
		Target{"a", s.models["a"], s.packed}, Target{"b", s.models["b"], s.packed}))
}

func (s *shelf) put(id string, a, b int32) {
	must(s.catalog.PutItem(&grebev1.Item{Id: id, Codes: codesOf(a, b),
		Attributes: map[string]*grebev1.Values{"kind": {Values: []string{fmt.Sprint(a % 4)}}}}))
}

func (s *shelf) fill(n int) {
	r := rand.New(rand.NewPCG(3, 3))
	for i := range n {
		s.put(fmt.Sprint("i", i), r.Int32N(20), r.Int32N(20))
	}
}

// want fails unless the model generates these contents.
func (s *shelf) want(what, model string, want contents) {
	s.t.Helper()
	if got := contentsOf(s.models[model].Snapshot()); !reflect.DeepEqual(got, want) {
		s.t.Fatalf("%s: model %s generates %+v, want %+v; the log says %s", what, model, got, want, s.log.String())
	}
}

func TestActivatedVersionsOutliveARestart(t *testing.T) {
	s := newShelf(t)
	s.fill(80)
	s.open()
	first, firstVersion := contentsOf(s.models["a"].Snapshot()), s.models["a"].Snapshot().Version
	var past []contents
	var versions []string
	for i := range 12 { // over several generations
		for j := range 20 {
			s.put(fmt.Sprint("i", j*3), int32(i), int32(j))
		}
		must(s.catalog.DeleteItem(fmt.Sprint("i", 70-i)))
		s.keeper.Renew()
		past, versions = append(past, contentsOf(s.models["b"].Snapshot())),
			append(versions, s.models["b"].Snapshot().Version)
	}
	last := past[len(past)-1]
	for i, v := range versions {
		if err := s.keeper.Activate("a", v, ""); err != nil {
			t.Fatalf("version %s, made by change %d: %v", v, i, err)
		}
		s.want("activated", "a", past[i])
		s.want("following", "b", last)
	}
	if err := s.keeper.Activate("a", firstVersion, ""); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s.open()
		s.want("after a restart", "a", first)
		s.want("after a restart", "b", last)
		if !s.keeper.Pinned("a") || s.keeper.Pinned("b") || s.keeper.Damaged() != 0 || s.packed.left != 0 {
			t.Errorf("pinned %v and %v, %d damaged, %d packed", s.keeper.Pinned("a"), s.keeper.Pinned("b"), s.keeper.Damaged(),
				4-s.packed.left)
		}
	}
	if err := s.keeper.Rollback("b"); err != nil {
		t.Fatal(err)
	}
	s.want("rolled back", "b", past[len(past)-2])
	if err := s.keeper.Rollback(""); !errors.Is(err, ErrOldest) {
		t.Errorf("a has nothing before it: %v", err)
	}
	s.want("all or none", "b", past[len(past)-2])
	if err := s.keeper.Activate("", Auto, ""); err != nil {
		t.Fatal(err)
	}
	s.open()
	s.want("following again", "a", last)
	s.want("following again", "b", last)
}

// The indices of an unchanged catalog are mapped, not built.
func TestSnapshotsAreMappedAtAStart(t *testing.T) {
	s := newShelf(t)
	s.fill(80)
	s.open()
	s.put("i3", 1, 1)
	s.keeper.Renew()
	want := contentsOf(s.models["a"].Snapshot())
	names := must(filepath.Glob(filepath.Join(s.dir, "index-*")))
	if len(names) != 2 {
		t.Fatalf("two models have the files %v", names)
	}
	before := must(os.ReadFile(names[0]))
	stat := must(os.Stat(names[0]))
	s.open()
	s.want("mapped", "a", want)
	if after := must(os.Stat(names[0])); !after.ModTime().Equal(stat.ModTime()) {
		t.Error("the index was written again")
	}
	for what, damage := range map[string]func(){
		"a changed byte": func() { before[len(before)/2] ^= 4; must(0, os.WriteFile(names[0], before, 0o600)) },
		"half a file":    func() { must(0, os.Truncate(names[0], 100)) },
		"an empty file":  func() { must(0, os.Truncate(names[0], 0)) },
		"no file":        func() { must(0, os.Remove(names[0])) },
	} {
		damage()
		s.open()
		s.want(what, "a", want)
		s.want(what, "b", want)
		hurt := 1
		if what == "no file" {
			hurt = 0
		}
		if s.keeper.Damaged() != hurt || hurt > 0 && !strings.Contains(s.log.String(), names[0]) {
			t.Errorf("%s: %d damaged, and the log says %s", what, s.keeper.Damaged(), s.log.String())
		}
		before = must(os.ReadFile(names[0]))
		if s.open(); s.keeper.Damaged() != 0 {
			t.Errorf("%s: it was not written again", what)
		}
	}
}

// An index of another vocabulary is not used, and does not count as damage.
func TestAnotherVocabulary(t *testing.T) {
	s := newShelf(t)
	s.fill(80)
	s.open()
	s.prompt = must(prompt.New(prompt.Config{Codes: prompt.Codes{FirstToken: []int32{0, 20}, Size: []int32{9, 20}}}, nil,
		100))
	s.open()
	want := must(NewSnapshot("", s.catalog.Items(), s.prompt, &packer{2}, nil))
	s.want("fewer codes", "a", contentsOf(want))
	if s.keeper.Damaged() != 0 || s.models["a"].Snapshot().Skipped == 0 {
		t.Errorf("%d damaged, %d skipped", s.keeper.Damaged(), s.models["a"].Snapshot().Skipped)
	}
}

// If the files of an activated version are gone, the latest version is used, and that is logged.
func TestAnActivatedVersionIsLost(t *testing.T) {
	s := newShelf(t)
	s.fill(80)
	s.open()
	first := s.models["a"].Snapshot().Version
	for i := range 120 { // another generation
		s.put(fmt.Sprint("i", i%60), int32(i%20), 3)
	}
	s.keeper.Renew()
	s.put("i1", 2, 2)
	s.keeper.Renew()
	if err := s.keeper.Activate("a", first, ""); err != nil {
		t.Fatal(err)
	}
	last := contentsOf(s.models["b"].Snapshot())
	names := must(filepath.Glob(filepath.Join(s.dir, "items-*")))
	slices.Sort(names)
	if len(names) != 2 {
		t.Fatalf("two generations have the files %v", names)
	}
	must(0, os.Truncate(names[0], 90))
	s.open()
	s.want("the latest", "a", last)
	if s.keeper.Damaged() == 0 || s.keeper.Pinned("a") || !strings.Contains(s.log.String(), "no longer exists") {
		t.Errorf("%d damaged, pinned %v, and the log says %s", s.keeper.Damaged(), s.keeper.Pinned("a"), s.log.String())
	}
	must(0, os.WriteFile(filepath.Join(s.dir, "activated.json"), []byte("{"), 0o600))
	s.open()
	s.want("the latest", "a", last)
	if s.keeper.Damaged() != 1 {
		t.Errorf("half a list of activated versions: %d damaged", s.keeper.Damaged())
	}
}

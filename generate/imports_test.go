package generate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/beam"
	"grebe/catalog"
	"grebe/catalog/history"
	"grebe/compute"
	"grebe/internal/locktest"
	"grebe/prompt"
)

func coded(id string, a, b int32) *grebev1.Item {
	return &grebev1.Item{Id: id, Codes: codesOf(a, b),
		Attributes: map[string]*grebev1.Values{"kind": {Values: []string{fmt.Sprint(a % 4)}}}}
}

// imports makes changes that belong to an import.
func (s *shelf) imports(id string, ops ...catalog.Op) {
	s.t.Helper()
	must(0, s.keeper.BeginImport(id))
	for _, r := range s.catalog.ApplyImport(id, ops) {
		if r.Err != nil {
			s.t.Fatal(r.Err)
		}
	}
}

// codes returns the codes with which a model generates an item.
func (s *shelf) codes(model, id string) string {
	snap := s.models[model].Snapshot()
	if snap.index == nil {
		return ""
	}
	n, ok := snap.number(id)
	if !ok {
		return ""
	}
	return fmt.Sprint(snap.table.Codes(nil, n))
}

// An import that entered at another node of a cluster is one version here too: it is known by its changes and its end.
func TestAnImportElsewhereIsOneVersion(t *testing.T) {
	s := newShelf(t)
	s.fill(10)
	s.open()
	before := contentsOf(s.models["a"].Snapshot())
	for i := range 3 {
		for _, r := range s.catalog.ApplyImport("x", []catalog.Op{{PutItem: coded(fmt.Sprint("new", i), 1, 1)}}) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		s.keeper.Renew()
	}
	s.want("while it is under way", "a", before)
	end := must(s.catalog.EndImport("x"))
	s.keeper.Renew()
	if v := s.keeper.Versions(); len(v) != 2 || v[0].Version != fmt.Sprint(end) {
		t.Errorf("versions %+v, want two, the last of which is %d, the import's end", v, end)
	}
	if got := s.codes("a", "new2"); got != "[1 1]" {
		t.Errorf("an imported item is generated with the codes %s", got)
	}
}

// The changes of an import become one version when it ends. Until then models generate the items of before. A
// rollback undoes all of it.
func TestAnImportIsOneVersion(t *testing.T) {
	s := newShelf(t)
	s.fill(10)
	s.open()
	before := contentsOf(s.models["a"].Snapshot())
	s.imports("x", catalog.Op{PutItem: coded("i1", 9, 9)}, catalog.Op{PutItem: coded("new", 1, 1)},
		catalog.Op{PutUser: &grebev1.User{Id: "u"}})
	s.keeper.Renew()
	s.imports("x", catalog.Op{DeleteItem: "i2"}, catalog.Op{PutItem: coded("i1", 8, 8)})
	s.keeper.Renew()
	s.want("while it is under way", "a", before)
	if n := len(s.keeper.Versions()); n != 1 {
		t.Errorf("%d versions while it is under way", n)
	}
	must(0, s.keeper.EndImport(t.Context(), "x"))
	for id, want := range map[string]string{"i1": "[8 8]", "new": "[1 1]", "i2": ""} {
		if got := s.codes("a", id); got != want {
			t.Errorf("item %s is generated with the codes %s, want %s", id, got, want)
		}
	}
	versions := s.keeper.Versions()
	if n := len(versions); n != 2 || versions[0].Version != fmt.Sprint(s.catalog.Stats().Version) {
		t.Errorf("versions %+v, want two, the last of which is the import's end", versions)
	}
	// To end one that is not under way does nothing.
	at := s.catalog.Stats().Version
	must(0, s.keeper.EndImport(t.Context(), "x"))
	if s.catalog.Stats().Version != at {
		t.Error("an import ended twice")
	}
	must(0, s.keeper.Rollback(""))
	s.want("rolled back", "a", before)
	s.open()
	s.want("after a restart", "a", before)
	// An import that changes no item is no version.
	must(0, s.keeper.BeginImport("empty"))
	must(0, s.keeper.EndImport(t.Context(), "empty"))
	if n := len(s.keeper.Versions()); n != 2 {
		t.Errorf("%d versions after an empty import", n)
	}
}

// If an item changes inside and outside of imports, the latest change counts.
func TestChangesBesideAnImport(t *testing.T) {
	s := newShelf(t)
	s.fill(10)
	s.open()
	was := s.codes("a", "i3")
	s.imports("x", catalog.Op{PutItem: coded("i1", 9, 9)}, catalog.Op{PutItem: coded("i2", 9, 9)})
	s.put("i1", 5, 5) // later than the import's
	s.put("i3", 6, 6)
	s.imports("y", catalog.Op{PutItem: coded("i2", 7, 7)}) // likewise
	s.imports("x", catalog.Op{PutItem: coded("i3", 8, 8)}) // later than the other's, which nobody has seen
	s.keeper.Renew()
	if a, b := s.codes("a", "i1"), s.codes("a", "i3"); a != "[5 5]" || b != was {
		t.Errorf("beside imports, items are generated with %s and %s, want [5 5] and %s", a, b, was)
	}
	must(0, s.keeper.EndImport(t.Context(), "x"))
	if a, b := s.codes("a", "i1"), s.codes("a", "i3"); a != "[5 5]" || b != "[8 8]" {
		t.Errorf("after the import: %s and %s, want [5 5] and [8 8]", a, b)
	}
	if got := s.codes("a", "i2"); got == "[9 9]" || got == "[7 7]" {
		t.Errorf("an item that another import changes is generated with %s before that ends", got)
	}
	must(0, s.keeper.EndImport(t.Context(), "y"))
	if got := s.codes("a", "i2"); got != "[7 7]" {
		t.Errorf("after both imports: %s, want [7 7]", got)
	}
	want := must(NewSnapshot("", s.catalog.Items(), s.prompt, &packer{2}, nil))
	s.want("in the end", "b", contentsOf(want))
}

// Versions of imports that end together, and of other changes, are in the order in which they ended.
func TestImportsThatEndTogether(t *testing.T) {
	s := newShelf(t)
	s.fill(10)
	s.open()
	s.imports("x", catalog.Op{PutItem: coded("i1", 9, 9)})
	s.imports("y", catalog.Op{PutItem: coded("i2", 9, 9)})
	second, first := must(s.catalog.EndImport("y")), uint64(0)
	s.put("i3", 1, 1)
	single := s.catalog.Stats().Version
	first = must(s.catalog.EndImport("x"))
	s.keeper.Renew()
	var got []string
	for _, v := range s.keeper.Versions() {
		got = append(got, v.Version)
	}
	if want := []string{fmt.Sprint(first), fmt.Sprint(single), fmt.Sprint(second), "10"}; !slices.Equal(got, want) {
		t.Errorf("versions %v, want %v", got, want)
	}
}

// An import without changes for ten minutes ends by itself. One that continues does not.
func TestAnImportThatIsNotEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(t)
		s.fill(10)
		s.open()
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.keeper.Run(ctx); close(done) }()
		s.imports("left", catalog.Op{PutItem: coded("i1", 9, 9)})
		s.imports("slow", catalog.Op{PutItem: coded("i2", 9, 9)})
		time.Sleep(8 * time.Minute)
		must(0, s.keeper.BeginImport("slow"))
		time.Sleep(90 * time.Second)
		if got := s.codes("a", "i1"); got == "[9 9]" {
			t.Error("an import ended by itself after 9.5 minutes")
		}
		time.Sleep(2 * time.Minute)
		if got := s.codes("a", "i1"); got != "[9 9]" {
			t.Errorf("after 11.5 minutes an import has not ended: %s", got)
		}
		if got := s.codes("a", "i2"); got == "[9 9]" {
			t.Error("an import that was gone on with ended by itself")
		}
		if !strings.Contains(s.log.String(), "not ended") {
			t.Errorf("the log says %s", s.log.String())
		}
		time.Sleep(10 * time.Minute)
		if got := s.codes("a", "i2"); got != "[9 9]" {
			t.Errorf("20 minutes later the other one has not ended: %s", got)
		}
		// A change is seen after a moment in which others may come.
		s.put("i4", 3, 3)
		synctest.Wait()
		if got := s.codes("a", "i4"); got == "[3 3]" {
			t.Error("a change does not wait for others")
		}
		time.Sleep(settle + time.Millisecond)
		if got := s.codes("a", "i4"); got != "[3 3]" {
			t.Errorf("after %v a change is not seen: %s", settle, got)
		}
		stop()
		<-done
	})
}

func TestTooManyImports(t *testing.T) {
	s := newShelf(t)
	s.open()
	for i := range maxImports {
		must(0, s.keeper.BeginImport(fmt.Sprint(i)))
	}
	if err := s.keeper.BeginImport("one more"); !errors.Is(err, ErrImports) {
		t.Errorf("import %d: %v", maxImports+1, err)
	}
	must(0, s.keeper.BeginImport("3")) // goes on
	must(0, s.keeper.EndImport(t.Context(), "3"))
	must(0, s.keeper.BeginImport("one more"))
}

// An import whose end cannot be made durable returns an error and continues.
func TestAnImportThatCannotEnd(t *testing.T) {
	s := newShelf(t)
	s.catalog = must(catalog.Open(t.TempDir(), catalog.Options{}))
	s.open()
	s.imports("x", catalog.Op{PutItem: coded("i1", 9, 9)})
	must(0, s.catalog.Close())
	if err := s.keeper.EndImport(t.Context(), "x"); !errors.Is(err, catalog.ErrClosed) {
		t.Errorf("a closed catalog: %v", err)
	}
	if got := s.codes("a", "i1"); got != "" {
		t.Errorf("an import that has not ended is generated: %s", got)
	}
}

// Record makes one version of a catalog in a process without models. The activated version stays.
func TestRecord(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "versions")
	c := catalog.New(catalog.Options{})
	must(c.PutItem(&grebev1.Item{Id: "bare"}))
	record := func() {
		t.Helper()
		must(0, Record(c, KeeperOptions{Dir: dir, Keep: 2, Logger: slog.New(slog.DiscardHandler)}))
	}
	record()
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("a catalog without codes has versions: %v", err)
	}
	must(c.PutItem(coded("i1", 1, 1)))
	record()
	record()
	prompts := must(prompt.New(prompt.Config{Codes: prompt.Codes{FirstToken: []int32{0, 20}, Size: []int32{20, 20}}}, nil,
		100))
	open := func(c *catalog.Catalog) (*Keeper, *Generator) {
		g := &Generator{Prompt: prompts}
		return must(NewKeeper(c, KeeperOptions{Dir: dir, Keep: 2}, Target{"a", g, &packer{4}})), g
	}
	k, g := open(c)
	if n := len(k.Versions()); n != 1 || g.Snapshot().Len() != 1 {
		t.Errorf("%d versions of %d items, want one of one", n, g.Snapshot().Len())
	}
	must(0, k.Activate("a", "2", ""))
	must(0, k.Close())
	for i := range 4 {
		must(c.PutItem(coded(fmt.Sprint("more", i), 2, int32(i))))
		record()
	}
	k, g = open(c)
	defer k.Close()
	var got []string
	for _, v := range k.Versions() {
		got = append(got, v.Version)
	}
	if !slices.Contains(got, "2") || !slices.Contains(got, "6") || len(got) > 3 || g.Snapshot().Version != "2" ||
		g.Snapshot().Len() != 1 {
		t.Errorf("versions %v, in use is %s with %d items", got, g.Snapshot().Version, g.Snapshot().Len())
	}
}

// If the file of activated versions is damaged, the copy is used, and Record counts the damage as the server does.
func TestRecordWithDamagedPins(t *testing.T) {
	s, _ := pinnedShelf(t)
	must(0, s.keeper.Close())
	must(0, os.WriteFile(s.keeper.pinFile(), []byte("{"), 0o600))
	var log strings.Builder
	must(0, Record(s.catalog, KeeperOptions{Dir: s.dir, Logger: slog.New(slog.NewTextHandler(&log, nil))}))
	if !strings.Contains(log.String(), "activated.json") {
		t.Errorf("the log says %q", log.String())
	}
	must(0, os.WriteFile(s.keeper.pinFile(), []byte("{"), 0o600))
	must(0, os.WriteFile(s.keeper.pinCopy(), []byte("{"), 0o600))
	if err := Record(s.catalog, KeeperOptions{Dir: s.dir, Logger: slog.New(slog.DiscardHandler)}); err == nil {
		t.Error("both copies are damaged, and a version was recorded")
	}
	must(0, os.Remove(s.keeper.pinFile()))
	must(0, os.Remove(s.keeper.pinCopy()))
}

// An added checkpoint generates the same version as the model of its name. A removed one no longer follows.
func TestAddAndRemoveModels(t *testing.T) {
	s := newShelf(t)
	s.fill(20)
	s.open()
	first := contentsOf(s.models["a"].Snapshot())
	s.put("i1", 9, 9)
	s.keeper.Renew()
	last := contentsOf(s.models["a"].Snapshot())
	must(0, s.keeper.Rollback("a"))
	s.models["a2"], s.models["c"] = &Generator{Prompt: s.prompt}, &Generator{Prompt: s.prompt}
	must(0, s.keeper.Add(Target{"a", s.models["a2"], &packer{4}}))
	must(0, s.keeper.Add(Target{"c", s.models["c"], &packer{4}}))
	s.want("added to a model that was rolled back", "a2", first)
	s.want("another model", "c", last)
	if err := s.keeper.Add(Target{"d", &Generator{Prompt: s.prompt}, brokenPacker{}}); err == nil ||
		!strings.Contains(err.Error(), "model d") {
		t.Errorf("a model whose projection cannot be packed: %v", err)
	}
	if n := len(s.keeper.Models()); n != 4 {
		t.Errorf("%d models follow, want 4", n)
	}
	if v := s.keeper.Versions(); !slices.Equal(v[0].Models, []string{"b", "c"}) ||
		!slices.Equal(v[1].Models, []string{"a"}) {
		t.Errorf("versions in use: %+v", v)
	}
	s.keeper.Remove(s.models["c"])
	must(0, s.keeper.Activate("", Auto, ""))
	s.put("i2", 8, 8)
	s.keeper.Renew()
	s.want("removed", "c", last)
	now := contentsOf(must(NewSnapshot("", s.catalog.Items(), s.prompt, &packer{2}, nil)))
	for _, name := range []string{"a", "a2", "b"} {
		s.want("following", name, now)
	}
	for _, m := range s.keeper.Models() {
		if m.Items != 20 || m.Prompt != s.prompt {
			t.Errorf("model %s can generate %d items, want 20", m.Name, m.Items)
		}
	}
}

// A model with an activated version sees the items as they were then, with texts, except items that changed later.
func TestViewOfAnActivatedVersion(t *testing.T) {
	s := newShelf(t)
	text := func(id, text string, codes ...int32) {
		t.Helper()
		must(s.catalog.PutItem(&grebev1.Item{Id: id, Text: &text, Codes: codes,
			Attributes: map[string]*grebev1.Values{"text": {Values: []string{text, "another"}}}}))
	}
	for i := range 200 { // more than a word has bits
		text(fmt.Sprint("more", i), fmt.Sprint("text ", i), int32(i%20), int32(i/20))
	}
	text("i1", "old", 1, 1)
	text("i2", "kept", 2, 2)
	text("bare", "no codes")
	s.open()
	text("i1", "new", 1, 1)
	text("i4", "later", 4, 4)
	must(s.catalog.DeleteItem("i2"))
	s.keeper.Renew()
	if s.keeper.View() != nil || s.models["a"].View() != nil {
		t.Error("models that follow the catalog have a view")
	}
	sees := func(what string, v *View, want map[string]string) {
		t.Helper()
		for id, text := range want {
			it, ok := v.Item(s.catalog, id)
			if ok != (text != "") || ok && it.Text != text {
				t.Errorf("%s: item %s is %+v, %v; want %q", what, id, it, ok, text)
			}
			first := ""
			v.FirstValues(s.catalog, id, func(_, value string) { first = strings.Clone(value) })
			if first != text {
				t.Errorf("%s: item %s has the attribute %q, want %q", what, id, first, text)
			}
		}
	}
	now := map[string]string{"i1": "new", "i2": "", "i4": "later", "bare": "no codes", "none": ""}
	sees("the catalog", nil, now)
	must(0, s.keeper.Rollback("a"))
	if s.keeper.View() != nil {
		t.Error("one model follows the catalog, and there is a view of all")
	}
	then := map[string]string{"i1": "old", "i2": "kept", "i4": "", "bare": "no codes", "none": ""}
	for i := range 200 {
		then[fmt.Sprint("more", i)] = fmt.Sprint("text ", i)
		if i%3 == 0 {
			must(s.catalog.DeleteItem(fmt.Sprint("more", i)))
		}
	}
	sees("rolled back", s.models["a"].View(), then)
	must(0, s.keeper.Rollback("b"))
	v := s.keeper.View()
	if v == nil || v.Version() != s.models["a"].Snapshot().Version {
		t.Fatalf("the view of all models is %+v", v)
	}
	sees("rolled back", v, then)
	text("i1", "newer", 1, 1)
	then["i1"] = "newer"
	sees("changed since", v, then)
	text("i2", "again", 2, 2)
	then["i2"] = "again"
	sees("put again", v, then)
	s.open()
	sees("after a restart", s.keeper.View(), then)
	// To activate the same version again undoes the later changes too.
	must(0, s.keeper.Activate("", s.keeper.View().Version(), ""))
	sees("activated again", s.keeper.View(), map[string]string{"i1": "old", "i2": "kept", "i4": "", "bare": "no codes"})
	must(0, s.keeper.Activate("", Auto, ""))
	if s.keeper.View() != nil {
		t.Error("models that follow the catalog again have a view")
	}
}

// Models with different activated versions share no view.
func TestModelsOfDifferentVersionsShareNoView(t *testing.T) {
	s := newShelf(t)
	s.put("i1", 1, 1)
	s.open()
	s.put("i2", 2, 2)
	s.keeper.Renew()
	s.put("i3", 3, 3)
	s.keeper.Renew()
	must(0, s.keeper.Activate("a", "1", ""))
	must(0, s.keeper.Activate("b", "2", ""))
	if s.keeper.View() != nil {
		t.Error("the models share a view")
	}
	must(0, s.keeper.Activate("b", "1", ""))
	if s.keeper.View() == nil {
		t.Error("the models share no view")
	}
}

// A version that cannot be activated is refused, and nothing changes.
func TestVersionsThatCannotBeActivated(t *testing.T) {
	s := newShelf(t)
	s.fill(20)
	s.open()
	s.put("i1", 9, 9)
	s.keeper.Renew()
	last := contentsOf(s.models["a"].Snapshot())
	versions := s.keeper.Versions()
	for _, w := range []struct {
		version, digest string
		want            error
	}{
		{"first", "", ErrNoVersion}, {"-1", "", ErrNoVersion}, {"", "", ErrNoVersion}, {"7", "", ErrNoVersion},
		{versions[1].Version, versions[0].Digest, ErrDigest},
	} {
		if err := s.keeper.Activate("", w.version, w.digest); !errors.Is(err, w.want) {
			t.Errorf("version %q with digest %q: %v, want %v", w.version, w.digest, err, w.want)
		}
		s.want("refused", "a", last)
	}
	if s.keeper.Pinned("a") {
		t.Error("a model stays with a version that was refused")
	}
	must(0, s.keeper.Activate("a", versions[1].Version, versions[1].Digest))
	if !s.keeper.Pinned("a") || s.keeper.Pinned("b") || s.models["a"].Snapshot().Version != versions[1].Version {
		t.Error("a version with its digest was not activated")
	}
}

// Versions in use are kept, however many follow.
func TestVersionsInUseAreKept(t *testing.T) {
	s := newShelf(t)
	s.put("i1", 1, 1)
	s.open()
	must(0, s.keeper.Activate("a", "1", ""))
	for i := range 30 {
		s.put("i1", int32(i%20), 1)
		s.keeper.Renew()
	}
	versions := s.keeper.Versions()
	if n := len(versions); n > 17 || versions[n-1].Version != "1" || !slices.Equal(versions[n-1].Models, []string{"a"}) {
		t.Errorf("%d versions are kept, the oldest is %+v", n, versions[n-1])
	}
	if !slices.Equal(versions[0].Models, []string{"b"}) || versions[0].Items != 1 {
		t.Errorf("the latest version is %+v", versions[0])
	}
	for number, want := range map[uint64]bool{1: true, 2: false, 31: true} {
		if got := s.keeper.inUse(number); got != want {
			t.Errorf("version %d is in use: %v", number, got)
		}
	}
}

// Items whose codes the model does not have are counted, reported with examples and never generated.
func TestUnusableCodesAreTold(t *testing.T) {
	s := newShelf(t)
	s.put("i1", 1, 1)
	must(s.catalog.PutItem(&grebev1.Item{Id: "bare"}))
	s.open()
	if snap := s.models["a"].Snapshot(); snap.Unusable != 0 || len(snap.Examples) != 0 || snap.Skipped != 1 ||
		s.log.Len() != 0 {
		t.Errorf("%d unusable, %d skipped, %q; the log says %s", snap.Unusable, snap.Skipped, snap.Examples, s.log.String())
	}
	for i := range 5 {
		must(s.catalog.PutItem(&grebev1.Item{Id: fmt.Sprint("bad", i), Codes: codesOf(1, 2, 3)}))
	}
	must(s.catalog.PutItem(&grebev1.Item{Id: "large", Codes: codesOf(1, 20)}))
	s.keeper.Renew()
	snap := s.models["a"].Snapshot()
	if snap.Len() != 1 || snap.Unusable != 6 || snap.Skipped != 7 || len(snap.Examples) != 3 ||
		!strings.Contains(snap.Examples[0], `"bad0"`) {
		t.Errorf("%d items, %d unusable, %d skipped, %q", snap.Len(), snap.Unusable, snap.Skipped, snap.Examples)
	}
	if n := strings.Count(s.log.String(), "never generated"); n != 2 {
		t.Errorf("two models, told %d times: %s", n, s.log.String())
	}
	s.log.Reset()
	s.put("i2", 2, 2)
	s.keeper.Renew()
	if strings.Contains(s.log.String(), "never generated") {
		t.Errorf("no more than before, and told again: %s", s.log.String())
	}
}

func TestWarningOfOneItem(t *testing.T) {
	m := Impact{Model: "m", Unusable: 1, Examples: []string{`"b": 1 code, but the model has 3 levels`}}
	want := `model "m" does not have the codes of 1 item and never generates it: "b": 1 code, but the model has 3 levels`
	if got := m.Warning(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A Forecast counts the items that each model can generate after some changes, and the codes that it does not have.
func TestForecast(t *testing.T) {
	rules := func(sizes ...int32) *prompt.Builder {
		c := prompt.Codes{}
		for _, n := range sizes {
			c.FirstToken, c.Size = append(c.FirstToken, int32(len(c.Size))*30), append(c.Size, n)
		}
		return must(prompt.New(prompt.Config{Codes: c}, nil, 100))
	}
	items := map[string]*prompt.Item{
		"small": {ID: "small", Codes: codesOf(1, 1)}, "large": {ID: "large", Codes: codesOf(15, 1)}, "bare": {ID: "bare"},
	}
	find := func(id string) (*prompt.Item, bool) { it, ok := items[id]; return it, ok }
	f := NewForecast(find, Codes{"ten", rules(10, 10), 1}, Codes{"twenty", rules(20, 20), 2},
		Codes{"three", rules(10, 10, 10), 0})
	check := func(what string, want ...[3]int) { // before, after, unusable
		t.Helper()
		for i, m := range f.Impacts() {
			if got := [3]int{m.Before, m.After, m.Unusable}; got != want[i] {
				t.Errorf("%s: model %s has before, after, unusable %v, want %v", what, m.Model, got, want[i])
			}
			if len(m.Examples) != min(m.Unusable, 3) || (m.Warning() == "") != (m.Unusable == 0) {
				t.Errorf("%s: model %s has the examples %q and warns %q", what, m.Model, m.Examples, m.Warning())
			}
		}
	}
	check("nothing", [3]int{1, 1, 0}, [3]int{2, 2, 0}, [3]int{0, 0, 0})
	f.Put("new", codesOf(2, 2))
	check("a new item", [3]int{1, 2, 0}, [3]int{2, 3, 0}, [3]int{0, 0, 1})
	f.Put("new", codesOf(12, 2))
	check("again, with other codes", [3]int{1, 1, 1}, [3]int{2, 3, 0}, [3]int{0, 0, 2})
	f.Put("large", codesOf(3, 3))
	check("with codes that more models have", [3]int{1, 2, 1}, [3]int{2, 3, 0}, [3]int{0, 0, 3})
	f.Put("small", nil)
	check("without codes", [3]int{1, 1, 1}, [3]int{2, 2, 0}, [3]int{0, 0, 3})
	f.Put("bare", codesOf(1, 1, 1))
	check("with more codes", [3]int{1, 1, 2}, [3]int{2, 2, 1}, [3]int{0, 1, 3})
	f.Delete("new")
	f.Delete("bare")
	f.Delete("nobody")
	f.Delete("small")
	check("deleted", [3]int{1, 1, 2}, [3]int{2, 1, 1}, [3]int{0, 0, 3})
	f.Put("fourth", codesOf(1, 1))
	check("a fourth", [3]int{1, 2, 2}, [3]int{2, 2, 1}, [3]int{0, 0, 4})
	if w := f.Impacts()[2].Warning(); !strings.Contains(w, `"three"`) || !strings.Contains(w, "4 items") ||
		!strings.Contains(w, `"new"`) {
		t.Errorf("it warns %q", w)
	}
	for _, w := range []struct {
		before, after int
		want          bool
	}{{10, 5, false}, {10, 4, true}, {0, 0, false}, {1, 0, true}} {
		if got := (&Impact{Before: w.before, After: w.after}).Halves(); got != w.want {
			t.Errorf("from %d to %d: halves %v", w.before, w.after, got)
		}
	}
	many := make([]Codes, 70)
	for i := range many {
		many[i] = Codes{"m", rules(10, 10), 0}
	}
	f = NewForecast(find, many...)
	if f.Put("new", codesOf(2, 2)); len(f.Impacts()) != 64 || f.Impacts()[63].After != 1 {
		t.Errorf("a forecast of %d models", len(f.Impacts()))
	}
}

// A filter by several attributes selects items that have one of the values of each.
func TestFiltersBySeveralAttributes(t *testing.T) {
	s := newShelf(t)
	for i := range int32(40) {
		kind, size := fmt.Sprint(i%4), fmt.Sprint(i%3)
		must(s.catalog.PutItem(&grebev1.Item{Id: fmt.Sprint("i", i), Codes: codesOf(i%20, i/20),
			Attributes: map[string]*grebev1.Values{"kind": {Values: []string{kind}}, "size": {Values: []string{size}}}}))
	}
	s.open()
	snap := s.models["a"].Snapshot()
	for range 2 { // from the index and from the sets
		set := snap.filter(anyOf(map[string][]string{"kind": {"1", "2"}, "size": {"0", "1"}}))
		for i := range 40 {
			n, ok := snap.number(fmt.Sprint("i", i))
			want := (i%4 == 1 || i%4 == 2) && i%3 < 2
			if !ok || set.Has(n) != want {
				t.Errorf("item %d passes: %v, want %v", i, set.Has(n), want)
			}
		}
	}
	if has, all := snap.Attributes("color"); has || !slices.Equal(all, []string{"kind", "size"}) {
		t.Errorf("an attribute that no item has: %v, %v", has, all)
	}
	if has, _ := snap.Attributes("kind"); !has {
		t.Error("an attribute that items have is not there")
	}
	if has, _ := (*Snapshot)(nil).Attributes("kind"); !has {
		t.Error("no snapshot lacks an attribute")
	}
}

// The kept filters of a snapshot are bounded, and the next snapshot makes them again.
func TestRememberedFilters(t *testing.T) {
	s := newShelf(t)
	s.fill(40)
	s.open()
	snap := s.models["a"].Snapshot()
	values := func(from, n int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprint(from+i))
		}
		return out
	}
	if snap.filter(anyOf(map[string][]string{"kind": values(0, 9)})); len(snap.sets) != 0 {
		t.Errorf("%d sets are kept of nine values at once", len(snap.sets))
	}
	if snap.filter(anyOf(map[string][]string{"kind": values(0, 8)})); len(snap.sets) != 8 {
		t.Errorf("%d sets are kept of eight values at once", len(snap.sets))
	}
	builds := func(n int) bool {
		return snap.mustBuild(&Request{Filter: anyOf(map[string][]string{"kind": values(0, n)})})
	}
	if builds(8) || !builds(9) {
		t.Error("what is kept is not known")
	}
	for i := range 300 {
		snap.filter(anyOf(map[string][]string{"kind": values(8*i, 8)}))
	}
	if n := len(snap.sets); n != maxSets {
		t.Errorf("%d sets are kept, want %d", n, maxSets)
	}
	s.put("i1", 9, 9)
	s.keeper.Renew()
	next := s.models["a"].Snapshot()
	if n := len(next.sets); next == snap || n != maxWarmed {
		t.Errorf("the next snapshot begins with %d sets, want %d", n, maxWarmed)
	}
	for i := range 4 {
		if want := contentsOf(must(NewSnapshot("", s.catalog.Items(), s.prompt, &packer{2}, nil))); !slices.Equal(
			contentsOf(next).kinds[fmt.Sprint(i)], want.kinds[fmt.Sprint(i)]) {
			t.Errorf("kind %d: %v, want %v", i, contentsOf(next).kinds[fmt.Sprint(i)], want.kinds[fmt.Sprint(i)])
		}
	}
	before := len(next.sets)
	named := attribute{name: strings.Repeat("x", 1000), value: strings.Repeat("y", 24)}
	if next.having(named.name, []string{named.value, named.value + "y"}); next.sets[named] == nil ||
		len(next.sets) != before+1 {
		t.Errorf("%d sets are kept, of a name and value of 1,024 bytes: %v", len(next.sets), next.sets[named] != nil)
	}
}

// trees is a packer whose device may be able to search.
type trees struct {
	packer
	tree  compute.Tree
	err   error
	asked []compute.TreeLevel
}

func (p *trees) Trees() compute.Trees { return p }

func (p *trees) Tree(levels []compute.TreeLevel, _ []uint32) (compute.Tree, error) {
	p.asked = levels
	return p.tree, p.err
}

// If the device has no memory for the valid paths, requests run in rounds. After another failure the snapshot before
// stays in use.
func TestValidPathsOnTheDevice(t *testing.T) {
	s := newShelf(t)
	s.put("i1", 1, 2)
	s.put("i2", 3, 4)
	p := &trees{packer: packer{2}, err: fmt.Errorf("no room: %w", compute.ErrNoSearch)}
	snap := must(NewSnapshot("1", s.catalog.Items(), s.prompt, p, nil))
	if snap.tree != nil || len(p.asked) != 2 {
		t.Errorf("a device without room: %v of %d levels", snap.tree, len(p.asked))
	}
	if l := p.asked[1]; l.Size != 20 || !slices.Equal(l.Codes, []uint32{2, 4}) || l.Tokens[3] != 23 ||
		p.asked[0].Tokens[3] != 3 {
		t.Errorf("levels %+v", p.asked)
	}
	broken := errors.New("the device is gone")
	p = &trees{packer: packer{2}, err: broken}
	if _, err := NewSnapshot("1", s.catalog.Items(), s.prompt, p, nil); !errors.Is(err, broken) {
		t.Errorf("a device that fails: %v", err)
	}
	// Levels of the same size are not packed again.
	if next, err := NewSnapshot("2", s.catalog.Items(), s.prompt, brokenPacker{}, snap); err != nil || next.Len() != 2 {
		t.Errorf("the same levels: %v", err)
	}
	s.keeper = must(NewKeeper(s.catalog, KeeperOptions{}))
}

// A stored index is used only for the model and the items that it was made for.
func TestStoredIndicesOfOtherModels(t *testing.T) {
	s := newShelf(t)
	s.put("i1", 1, 1)
	s.put("i2", 2, 2)
	s.open()
	v := s.keeper.history.Head()
	name := filepath.Join(t.TempDir(), "index")
	x := newIndexer(s.prompt)
	must(0, x.write(name, must(x.build(v.Table(), v.Live())), v))
	for what, codes := range map[string]prompt.Codes{
		"another depth":     {FirstToken: []int32{0, 20, 40}, Size: []int32{20, 20, 20}},
		"a larger level":    {FirstToken: []int32{0, 30}, Size: []int32{21, 20}},
		"a smaller level":   {FirstToken: []int32{0, 20}, Size: []int32{20, 19}},
		"levels of 2 and 3": {FirstToken: []int32{0, 20}, Size: []int32{2, 3}},
	} {
		other := newIndexer(must(prompt.New(prompt.Config{Codes: codes}, nil, 100)))
		if _, err := other.read(name, v); !errors.Is(err, errOther) {
			t.Errorf("%s: %v, want %v", what, err, errOther)
		}
	}
	s.put("i3", 3, 3)
	s.keeper.Renew()
	if _, err := x.read(name, s.keeper.history.Head()); err == nil {
		t.Error("the index of fewer items is used")
	}
	if _, err := x.read(name, v); err != nil {
		t.Errorf("the index of these items: %v", err)
	}
	data := must(os.ReadFile(name))
	for what, bad := range map[string][]byte{
		"other items": slices.Concat([]byte(indexMagic), []byte(strings.Repeat("0", 32)), data[indexHeader:]),
		"no index":    slices.Concat([]byte("grebeXX1"), data[8:]),
		"a header":    data[:indexHeader],
		"nothing":     {},
	} {
		must(0, os.WriteFile(name, bad, 0o600))
		if _, err := x.read(name, v); err == nil || missing(err) {
			t.Errorf("a file of %s: %v", what, err)
		}
	}
}

// Codes that a model does not have are recognised, also if they were seen before.
func TestCodesThatAModelHas(t *testing.T) {
	s := newShelf(t)
	s.open()
	x := newIndexer(s.prompt)
	for range 2 { // asked for the first time, and known
		for _, w := range []struct {
			codes []int32
			want  bool
		}{
			{codesOf(0, 0), true}, {codesOf(19, 19), true}, {codesOf(20, 0), false}, {codesOf(0, 20), false},
			{codesOf(-1, 0), false},
			{codesOf(0, -1), false}, {codesOf(0), false}, {codesOf(0, 0, 0), false}, {nil, false}, {codesOf(5, 7), true},
			{codesOf(7, 5), true},
		} {
			if got := x.has(w.codes); got != w.want {
				t.Errorf("codes %v: %v", w.codes, got)
			}
		}
	}
}

// Calls that read or change a Keeper's state wait for its lock.
func TestKeeperCallsWaitForTheirLocks(t *testing.T) {
	s := newShelf(t)
	s.fill(10)
	s.open()
	k, snap := s.keeper, s.models["a"].Snapshot()
	pins := k.Pins()
	locktest.Waits(t, "BeginImport", k.mu.Lock, k.mu.Unlock, func() { _ = k.BeginImport("x") })
	locktest.Waits(t, "EndImport", k.mu.Lock, k.mu.Unlock, func() { _ = k.EndImport(context.Background(), "y") })
	locktest.Waits(t, "importEnded", k.mu.Lock, k.mu.Unlock, func() { k.importEnded("y", 1) })
	locktest.Waits(t, "expire", k.mu.Lock, k.mu.Unlock, func() { k.expire(context.Background()) })
	locktest.Waits(t, "following", k.mu.Lock, k.mu.Unlock, func() { k.following() })
	locktest.Waits(t, "hear", k.mu.Lock, k.mu.Unlock,
		func() { k.hear(catalog.Change{ID: "i", NewItem: &prompt.Item{ID: "i"}}) })
	locktest.Waits(t, "take", k.mu.Lock, k.mu.Unlock, func() { k.take() })
	locktest.Waits(t, "pin", k.mu.Lock, k.mu.Unlock, func() { k.Pinned("a") })
	locktest.Waits(t, "unpin", k.mu.Lock, k.mu.Unlock, func() { k.unpin("none") })
	locktest.Waits(t, "pinned", k.mu.Lock, k.mu.Unlock, func() { k.Pins() })
	locktest.Waits(t, "writePins", k.mu.Lock, k.mu.Unlock, func() { _ = k.writePins(pins) })
	locktest.Waits(t, "Renew", k.build.Lock, k.build.Unlock, k.Renew)
	locktest.Waits(t, "Add", k.build.Lock, k.build.Unlock,
		func() { _ = k.Add(Target{"c", &Generator{Prompt: s.prompt}, &packer{4}}) })
	locktest.Waits(t, "Remove", k.build.Lock, k.build.Unlock, func() { k.Remove(nil) })
	locktest.Waits(t, "Activate", k.build.Lock, k.build.Unlock, func() { _ = k.Activate("", Auto, "") })
	locktest.Waits(t, "Rollback", k.build.Lock, k.build.Unlock, func() { _ = k.Rollback("") })
	locktest.Waits(t, "start", k.build.Lock, k.build.Unlock, func() { _ = k.start() })
	locktest.Waits(t, "having", snap.mu.Lock, snap.mu.Unlock, func() { snap.having("kind", []string{"1"}) })
	locktest.Waits(t, "keep", snap.mu.Lock, snap.mu.Unlock,
		func() { snap.keep(attribute{"kind", "x"}, beam.NewSet(snap.index)) })
	locktest.Waits(t, "warm", snap.mu.Lock, snap.mu.Unlock,
		func() { must(NewSnapshot("", s.catalog.Items(), s.prompt, &packer{2}, nil)).warm(snap) })
	locktest.Waits(t, "mustBuild", snap.mu.Lock, snap.mu.Unlock, func() { snap.mustBuild(new(Request)) })
}

// A Keeper that cannot read the activated versions, or make the first snapshots, does not start and leaves no files
// open.
func TestAKeeperThatCannotStart(t *testing.T) {
	s := newShelf(t)
	s.put("i1", 1, 1)
	s.open()
	must(0, s.keeper.Close())
	g := &Generator{Prompt: s.prompt}
	if _, err := NewKeeper(s.catalog, KeeperOptions{Dir: s.dir}, Target{"a", g, brokenPacker{}}); err == nil ||
		!strings.Contains(err.Error(), "model a") {
		t.Errorf("a model whose projection cannot be packed: %v", err)
	}
	must(0, os.Mkdir(s.keeper.pinFile(), 0o700))
	if _, err := NewKeeper(s.catalog, KeeperOptions{Dir: s.dir}, Target{"a", g, &packer{4}}); err == nil ||
		errors.Is(err, history.ErrDamaged) {
		t.Errorf("a folder instead of a file: %v", err)
	}
	must(0, os.Remove(s.keeper.pinFile()))
	file := filepath.Join(t.TempDir(), "file")
	must(0, os.WriteFile(file, nil, 0o600))
	if _, err := NewKeeper(s.catalog, KeeperOptions{Dir: filepath.Join(file, "below")},
		Target{"a", g, &packer{4}}); err == nil {
		t.Error("a folder that cannot be made: no error")
	}
	s.open()
}

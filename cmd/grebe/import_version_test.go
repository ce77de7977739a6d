package main

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"grebe/catalog"
	"grebe/catalog/history"
	"grebe/compute"
	"grebe/generate"
	"grebe/internal/datadir"
	"grebe/prompt"
	"grebe/serve"
	"grebe/server"
	"grebe/shop/demo"
)

type emptyPacker struct{}

func (emptyPacker) Head([]int32) (compute.Linear, error) { return nil, nil }

// versioned is a server whose one model has two levels of twenty codes.
func versioned(t *testing.T) (url string, c *catalog.Catalog, k *generate.Keeper) {
	t.Helper()
	b, err := prompt.New(prompt.Config{Codes: prompt.Codes{FirstToken: []int32{0, 20}, Size: []int32{20, 20}}}, nil, 100)
	if err != nil {
		t.Fatal(err)
	}
	c = catalog.New(catalog.Options{})
	g := &generate.Generator{Prompt: b}
	k, err = generate.NewKeeper(c, generate.KeeperOptions{},
		generate.Target{Name: "m", Generator: g, Model: emptyPacker{}})
	if err != nil {
		t.Fatal(err)
	}
	service, err := serve.New(serve.Config{Models: []serve.Model{
		{Name: "m", Runner: idleRunner{}, Prompt: b, Vocab: 100, Generate: g}}, Catalog: c, Versions: k})
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.New(service, server.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s.SetReady(true)
	ts := httptest.NewServer(s.Handler())
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); k.Run(ctx) }()
	t.Cleanup(func() { ts.Close(); stop(); <-done; k.Close() })
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	return ts.URL, c, k
}

func itemLines(n int, text string, codes func(i int) string) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf(`{"id":"i%d","text":"%s %d","codes":[%s]}`, i, text, i, codes(i)))
	}
	return out
}

func two(i int) string { return fmt.Sprintf("%d,%d", i%20, i/20%20) }

func TestAnImportThroughAServerIsOneVersion(t *testing.T) {
	url, c, k := versioned(t)
	half := itemLines(1000, "first", two)
	imported(t, 0, `500 created[\s\S]*500 created`, writeLines(t, "items-a.ndjson", half[:500]...),
		writeLines(t, "items-b.ndjson", half[500:]...), "--server", url)
	imported(t, 0, `1000 replaced`, writeLines(t, "items.ndjson", itemLines(1000, "second", two)...), "--server", url)
	if v := k.Versions(); len(v) != 3 || v[0].Items != 1000 || v[1].Items != 1000 || v[2].Items != 0 {
		t.Fatalf("two imports made the versions %+v", v)
	}
	if err := k.Rollback(""); err != nil {
		t.Fatal(err)
	}
	if it, ok := k.View().Item(c, "i7"); !ok || it.Text != "first 7" {
		t.Errorf("rolled back, an item is %+v", it)
	}
	// What is imported now does not show until the catalog is followed again, and the command says so.
	out := imported(t, 0, `1 created, 0 replaced, 0 deleted, 1000 unchanged`,
		writeLines(t, "items.ndjson", itemLines(1001, "second", two)...), "--server", url)
	if !strings.Contains(out, "stays at version") || !strings.Contains(out, "/v1/catalog:activate") {
		t.Errorf("the import does not say that a version is activated:\n%s", out)
	}
	if err := k.Activate("", generate.Auto, ""); err != nil {
		t.Fatal(err)
	}
	if it, ok := k.View().Item(c, "i1000"); !ok || it.Text != "second 1000" || k.Versions()[0].Items != 1001 {
		t.Errorf("following again, an item is %+v, the versions are %+v", it, k.Versions())
	}
}

// An import that would leave a model with fewer than half of its items changes nothing without --force.
func TestAnImportThatHalvesAModelAsksForForce(t *testing.T) {
	url, c, _ := versioned(t)
	imported(t, 0, `300 created`, writeLines(t, "items.ndjson", itemLines(300, "good", two)...), "--server", url)
	three := writeLines(t, "items.ndjson", itemLines(299, "bad", func(i int) string { return two(i) + ",1" })...)
	version := c.Stats().Version
	out := imported(t, 1, `left with 1 of the 300 items.*--force`, three, "--server", url)
	if !strings.Contains(out, `does not have the codes of 299 items`) ||
		!strings.Contains(out, `"i0": 3 codes, but the model has 2 levels`) {
		t.Errorf("the unusable codes are not reported:\n%s", out)
	}
	if it, _ := c.Item("i0"); it.Text != "good 0" || c.Stats().Version != version {
		t.Errorf("the refused import has changed the catalog: %+v", it)
	}
	gone := make([]string, 151)
	for i := range gone {
		gone[i] = fmt.Sprintf(`{"delete":"i%d"}`, i)
	}
	imported(t, 1, `left with 149 of the 300 items`, writeLines(t, "items.ndjson", gone...), "--server", url)
	imported(t, 0, `can generate 300 items, and after this import 150[\s\S]*150 deleted`,
		writeLines(t, "items.ndjson", gone[:150]...), "--server", url)
	imported(t, 0, `Warning[\s\S]*150 created, 149 replaced`, three, "--server", url, "--force")
}

// Imports into a folder are a version each, and with -c they are checked too.
func TestImportsIntoAFolderAreVersions(t *testing.T) {
	data := filepath.Join(t.TempDir(), "demo")
	if err := os.CopyFS(data, os.DirFS(demoData)); err != nil {
		t.Fatal(err)
	}
	config, dir := filepath.Join(data, demo.ConfigFile), filepath.Join(t.TempDir(), "data")
	t.Setenv("GREBE_DATA_DIR", dir)
	code := func(i int) string { return fmt.Sprintf("%d,%d,%d", i%4, i/4%4, i/16%4) }
	imported(t, 0, `60 created`, writeLines(t, "items.ndjson", itemLines(60, "first", code)...), "-c", config)
	imported(t, 0, `60 replaced`, writeLines(t, "items.ndjson", itemLines(60, "second", code)...), "-c", config)
	imported(t, 1, `left with 0 of the 60 items.*--force`, writeLines(t, "items.ndjson", itemLines(60, "bad", two)...),
		"-c", config)
	c, err := catalog.Open(datadir.Catalog(dir), catalog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	h, err := history.Open(c.All(), c.Stats().Version, history.Options{Dir: datadir.Versions(dir)})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	all := h.Versions()
	if len(all) != 2 {
		t.Fatalf("two imports made %d versions", len(all))
	}
	if err := h.Load(all[0]); err != nil {
		t.Fatal(err)
	}
	slot, ok := all[0].Table().Find("i7", func(uint32) bool { return true })
	if it, whole := all[0].Table().Item(slot); !ok || !whole || it.Text != "first 7" {
		t.Errorf("the first version has %+v", it)
	}
}

// An import goes on only in the same file and the same catalog, whatever their names, sizes and times say.
func TestImportIsNotResumedInAnotherFileOrCatalog(t *testing.T) {
	stop := `{"bad`
	path := writeLines(t, "items.ndjson", `{"id":"a1"}`, `{"id":"a2"}`, stop)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	imported(t, 1, `items.ndjson:3: not JSON`, path, "--data-dir", dir)
	rewrite := func(lines ...string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, info.ModTime(), info.ModTime()); err != nil {
			t.Fatal(err)
		}
	}
	rewrite(`{"id":"b1"}`, `{"id":"b2"}`, `{"bad`) // as long and as old as before
	if out := imported(t, 1, `items.ndjson:3`, path, "--data-dir", dir); strings.Contains(out, "Continuing") {
		t.Errorf("another file is gone on with:\n%s", out)
	}
	rewrite(`{"id":"b1"}`, `{"id":"b2"}`, `{"id":"b3"}`) // the bad line is put right
	imported(t, 0, `Continuing at line 3[\s\S]*3 lines: 3 created`, path, "--data-dir", dir)
	if s := stats(t, dir); s.Items != 5 {
		t.Errorf("%d items, want 5", s.Items)
	}

	url, c, _ := versioned(t)
	rewrite(`{"id":"c1"}`, stop)
	imported(t, 1, `items.ndjson:2`, path, "--server", url)
	imported(t, 1, `Continuing at line 2`, path, "--server", url)
	// Another catalog behind the same address: nothing was imported into it.
	other, err := catalog.Open(filepath.Join(t.TempDir(), "catalog"), catalog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if a, b := c.Stats().ID, other.Stats().ID; a == "" || a == b {
		t.Errorf("two catalogs have the ids %q and %q", a, b)
	}
}

// doctor reports items with codes that a model does not have.
func TestDoctorReportsUnusableCodes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	t.Setenv("GREBE_DATA_DIR", dir)
	t.Setenv("GREBE_LISTEN", "127.0.0.1:0")
	t.Setenv("GREBE_ADMIN_LISTEN", "127.0.0.1:0")
	t.Setenv("GREBE_GRPC_LISTEN", "127.0.0.1:0")
	imported(t, 0, `2 created`, writeLines(t, "items.ndjson", `{"id":"good","codes":[1,1,1]}`,
		`{"id":"bad","codes":[1,1,1,1]}`), "--data-dir", dir)
	out, errs, _ := grebe(t, "doctor", "-c", filepath.Join(demoData, demo.ConfigFile))
	if !strings.Contains(out, `does not have the codes of 1 item and never generates it`) ||
		!strings.Contains(out, `"bad": 4 codes`) {
		t.Errorf("doctor says %s%s", out, errs)
	}
}

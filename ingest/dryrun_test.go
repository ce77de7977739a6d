package ingest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"grebe/catalog"
	"grebe/engine"
	"grebe/internal/cli"
	"grebe/prompt"
	"grebe/serve"
	"grebe/server"
)

// A dry run reports what an import would change and what is wrong, and changes nothing.
func TestDryRun(t *testing.T) {
	dir := t.TempDir()
	run(t, &Import{Files: []string{file(t, "items.csv", []byte("id,text\n1,a\n2,b\n3,c\n4,d\n"))}, DataDir: dir}, nil)
	before := contents(t, dir)
	var b strings.Builder
	b.WriteString("id,text,codes\n1,a,\n2,other,\n9,new,\n9,twice,\n")
	for i := range 30 {
		fmt.Fprintf(&b, "%d,x,y\n", 100+i)
	}
	path := file(t, "items.csv", []byte(b.String()))
	out := run(t, &Import{Files: []string{path}, DataDir: dir, DryRun: true}, nil)
	for _, want := range []string{
		"34 lines: 1 new, 1 changed, 1 the same, 0 deleted, 31 bad", "2 items are not in the files, of 4 in the catalog",
		"nothing was changed",
		`items.csv:5: id "9" is in line 4 of`, `items.csv:6: column codes: element 0: want an integer`,
		"error: 31 bad records", "More bad",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing:\n%s", want, out)
		}
	}
	if n := strings.Count(out, "items.csv:"); n != 20+1 { // and the summary
		t.Errorf("%d lines name the file, want 21:\n%s", n, out)
	}
	if out := run(t, &Import{Files: []string{file(t, "items.csv", []byte("id,codes\n1,x\n"))}, DataDir: dir, DryRun: true},
		nil); !strings.Contains(out, "1 line: 0 new") || !strings.Contains(out, "error: 1 bad record: correct") {
		t.Errorf("of one record:\n%s", out)
	}
	if got := contents(t, dir); got != before {
		t.Errorf("the dry run changed the catalog to %s", got)
	}
	users := file(t, "users.ndjson", []byte(`{"id":"u1"}`+"\n"+`{"delete":"u2"}`+"\n"))
	events := file(t, "events.ndjson", []byte(`{"user":"u1","item":"1","time":5}`+"\n"))
	out = run(t, &Import{Files: []string{users, events}, DataDir: dir, DryRun: true}, nil)
	if !strings.Contains(out, "2 lines: 1 new, 0 changed, 1 the same") || !strings.Contains(out, "1 line: 1 new") ||
		strings.Contains(out, "error") {
		t.Error(out)
	}
}

// A dry run into a folder that does not exist does not make it.
func TestDryRunMakesNoFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "imp")
	items := file(t, "items.csv", []byte("id,text\n1,a\n"))
	out := run(t, &Import{Files: []string{items}, DataDir: dir, DryRun: true}, nil)
	if !strings.Contains(out, "1 line: 1 new") {
		t.Errorf("want one new item:\n%s", out)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is there: %v", err)
	}
}

// A dry run counts what the import then does, also where an id comes again.
func TestDryRunCountsAsTheImport(t *testing.T) {
	const items = `{"id":"1","text":"a"}
{"id":"1","text":"b"}
{"id":"1","text":"b"}
{"id":"9","text":"c"}
{"delete":"9"}
{"delete":"9"}
{"id":"9","text":"c"}
{"delete":"2"}
{"id":"3","text":"old"}
`
	const users = `{"id":"u1","history":["1"]}
{"id":"u1","history":["1","2"]}
{"id":"u2"}
{"delete":"u2"}
`
	const events = `{"user":"u3","item":"1","time":5}
{"user":"u3","item":"1","time":5}
{"user":"u3","item":"1","time":6,"id":"e"}
{"user":"u3","item":"2","time":7,"id":"e"}
{"user":"u1","item":"2","time":7,"id":"e"}
{"user":"u1","item":"7","time":1,"id":"before"}
`
	dir := t.TempDir()
	run(t, &Import{Files: []string{file(t, "items.ndjson", []byte(
		`{"id":"2","text":"x"}`+"\n"+`{"id":"3","text":"old"}`+"\n"+`{"id":"4"}`+"\n")),
		file(t, "events.ndjson", []byte(`{"user":"u1","item":"7","time":1,"id":"before"}`+"\n"))}, DataDir: dir}, nil)
	var files []string
	for name, text := range map[string]string{"items.ndjson": items, "users.ndjson": users, "events.ndjson": events} {
		files = append(files, file(t, name, []byte(text)))
	}
	slices.SortFunc(files, func(a, b string) int { return strings.Compare(filepath.Base(a), filepath.Base(b)) })
	foretold := run(t, &Import{Files: files, DataDir: dir, DryRun: true, LastWins: true}, nil)
	if !strings.Contains(foretold, "1 item is not in the files, of 3 in the catalog") {
		t.Errorf("the item 4 is not in the files:\n%s", foretold)
	}
	done := run(t, &Import{Files: files, DataDir: dir, LastWins: true}, nil)
	for _, c := range []struct{ out, want string }{
		{foretold, "9 lines: 3 new, 1 changed, 3 the same, 2 deleted"},
		{done, "9 lines: 3 created, 1 replaced, 2 deleted, 3 unchanged"},
		{foretold, "4 lines: 1 new, 2 changed, 0 the same, 1 deleted"},
		{done, "4 lines: 1 created, 2 replaced, 1 deleted, 0 unchanged"},
		{foretold, "6 lines: 4 new, 0 changed, 2 the same"},
		{done, "6 lines: 4 created, 0 replaced, 0 deleted, 2 unchanged"},
	} {
		if !strings.Contains(c.out, c.want) {
			t.Errorf("%q is missing:\n%s\n%s", c.want, foretold, done)
		}
	}
}

// An import and a dry run warn of events whose items are unknown and of items without text, with how many there are,
// in a folder and through a server.
func TestWarnings(t *testing.T) {
	items := file(t, "items.csv", []byte("id,text\ni1,a\ni2,\ni3,\n"))
	users := file(t, "users.ndjson", []byte(`{"id":"u1"}`+"\n"))
	var b strings.Builder
	for i := range 250 { // more than one request
		fmt.Fprintf(&b, `{"user":"u1","item":"zzz%d","time":%d}`+"\n", i%2, i+1)
	}
	events := file(t, "events.ndjson", []byte(b.String()+`{"user":"u1","item":"i1","time":1}`+"\n"))
	one := file(t, "events.ndjson", []byte(`{"user":"u2","item":"zzz","time":1}`+"\n"))
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	for name, i := range map[string]Import{"folder": {DataDir: t.TempDir()}, "server": {Server: catalogServer(t),
		Access: &cli.AccessFlags{}}} {
		for _, dry := range []bool{true, false} {
			i.DryRun, i.Files = dry, []string{items, users, events}
			out := run(t, &i, nil)
			for _, want := range []string{
				"Warning: " + items + ": 2 items without text",
				"Warning: " + events + `: 250 events have items that the catalog does not have, such as "zzz0", "zzz1"; they`,
			} {
				if strings.Count(out, want) != 1 {
					t.Errorf("%s, dry run %v: %q is not there once:\n%s", name, dry, want, out)
				}
			}
			i.Files = []string{one}
			out = run(t, &i, nil)
			if !strings.Contains(out, `1 event has an item that the catalog does not have, such as "zzz";`) ||
				strings.Contains(out, "text") {
				t.Errorf("%s, dry run %v, of one event:\n%s", name, dry, out)
			}
		}
	}
}

// catalogServer is the address of a server that has a catalog only.
func catalogServer(t *testing.T) string {
	t.Helper()
	b, err := prompt.New(prompt.Config{}, nil, 10)
	if err != nil {
		t.Fatal(err)
	}
	service, err := serve.New(serve.Config{Models: []serve.Model{{Name: "m", Runner: idle{}, Prompt: b, Vocab: 10}},
		Catalog: catalog.New(catalog.Options{})})
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.New(service, server.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s.SetReady(true)
	ts := httptest.NewServer(s.Handler())
	t.Cleanup(ts.Close)
	return ts.URL
}

type idle struct{}

func (idle) Do(context.Context, *engine.Job) (*engine.Result, error) {
	return nil, errors.New("nothing runs here")
}

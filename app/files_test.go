package app

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/catalog/redisusers"
	"grebe/embed/redisserver"
	"grebe/internal/config"
	"grebe/internal/datadir"
)

// A file that is loaded for the first time replaces what was put before, and the log says so. Later it is silent.
func TestFirstLoadSaysWhatItReplaces(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "users.ndjson")
	var log strings.Builder
	once := func(text string) {
		t.Helper()
		log.Reset()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		l := &loadedFiles{path: filepath.Join(dir, "loaded.json"), log: slog.New(slog.NewTextHandler(&log, nil))}
		there := func(id string) (has, deleted bool, err error) { return id == "known", false, nil }
		load := func(_ string, wants catalog.Filter) (n int, err error) {
			for _, id := range []string{"known", "new"} {
				if _, err := wants(id, []byte(id+text)); err != nil {
					return 0, err
				}
			}
			return 2, nil
		}
		if err := l.once(name, there, load); err != nil {
			t.Fatal(err)
		}
	}
	once("first")
	if !strings.Contains(log.String(), "replaces items or users") || !strings.Contains(log.String(), "lines=1") {
		t.Errorf("the first load logs %q", log.String())
	}
	once("second")
	if strings.Contains(log.String(), "replaces") {
		t.Errorf("a changed file logs %q", log.String())
	}
}

func TestFilesAreLoadedOnce(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "items.ndjson")
	write := func(text string, at time.Time) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, at, at); err != nil {
			t.Fatal(err)
		}
	}
	loads := 0
	once := func() {
		t.Helper()
		l := &loadedFiles{path: filepath.Join(dir, "loaded.json"), log: slog.New(slog.DiscardHandler)} // as after a restart
		if err := l.once(name, nil, func(string, catalog.Filter) (int, error) { loads++; return 0, nil }); err != nil {
			t.Fatal(err)
		}
	}
	at := time.Unix(1_700_000_000, 0)
	write("a", at)
	once()
	once()
	if loads != 1 {
		t.Errorf("loaded %d times, want once", loads)
	}
	write("a", at.Add(time.Hour)) // touched
	once()
	if loads != 1 {
		t.Errorf("a file that was only touched was loaded %d times in all, want once", loads)
	}
	write("b", at.Add(time.Hour)) // as long and as old
	once()
	if loads != 2 {
		t.Errorf("a file that changed was loaded %d times in all, want 2", loads)
	}
	if err := (&loadedFiles{path: filepath.Join(dir, "x")}).once("", nil, nil); err != nil {
		t.Errorf("no file: %v", err)
	}
	if err := (&loadedFiles{path: filepath.Join(dir, "x")}).once("absent", nil, nil); err == nil {
		t.Error("an absent file gives no error")
	}
}

// filed is a data folder with a file of items and one of users that its configuration names.
type filed struct {
	t   *testing.T
	cfg config.Config
	log strings.Builder
}

func newFiled(t *testing.T) *filed {
	f := &filed{t: t}
	dir := t.TempDir()
	f.cfg.DataDir = filepath.Join(dir, "data")
	f.cfg.Catalog.Items, f.cfg.Catalog.Users = filepath.Join(dir, "items.ndjson"), filepath.Join(dir, "users.ndjson")
	return f
}

func (f *filed) write(name string, lines ...string) {
	f.t.Helper()
	if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// start opens the catalog as a server does, calls do, and closes it.
func (f *filed) start(do func(c *catalog.Catalog)) {
	f.t.Helper()
	c, err := catalog.Open(datadir.Catalog(f.cfg.DataDir), catalog.Options{})
	if err != nil {
		f.t.Fatal(err)
	}
	defer c.Close()
	f.log.Reset()
	if err := loadFiles(&f.cfg, c, nil, slog.New(slog.NewTextHandler(&f.log, nil))); err != nil {
		f.t.Fatal(err)
	}
	do(c)
}

// has returns the catalog's content as text.
func has(c *catalog.Catalog) string {
	var out []string
	for i := range 5 {
		if it, ok := c.Item(fmt.Sprint("i", i)); ok {
			out = append(out, it.ID+"="+it.Text)
		}
		if u, ok := c.User(fmt.Sprint("u", i)); ok {
			out = append(out, u.Id+"="+u.GetText())
		}
	}
	return strings.Join(out, " ")
}

func (f *filed) wants(what, want string) {
	f.t.Helper()
	f.start(func(c *catalog.Catalog) {
		if got := has(c); got != want {
			f.t.Errorf("%s: the catalog has %s, want %s", what, got, want)
		}
	})
}

// Only changes in a configured file are loaded. Deleted users stay deleted and put items keep their content, whatever
// happens to the file's time or to the list of files.
func TestConfiguredFilesDoNotUndoChanges(t *testing.T) {
	f := newFiled(t)
	f.write(f.cfg.Catalog.Items, `{"id":"i1","text":"a"}`, `{"id":"i2","text":"a"}`)
	f.write(f.cfg.Catalog.Users, `{"id":"u1","text":"a"}`, `{"id":"u2","text":"a"}`, `{"id":"u3","text":"a"}`)
	text := "put"
	f.start(func(c *catalog.Catalog) {
		for _, err := range []error{
			second(c.DeleteUser("u1")), second(c.PutUser(&grebev1.User{Id: "u2", Text: &text})),
			second(c.PutItem(&grebev1.Item{Id: "i1", Text: &text})),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
	})
	kept := "i1=put i2=a u2=put u3=a"
	f.wants("as it was", kept)
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(f.cfg.Catalog.Users, later, later); err != nil {
		t.Fatal(err)
	}
	f.wants("touched", kept)
	f.write(f.cfg.Catalog.Items, `{"id":"i1","text":"a"}`, `{"id":"i2","text":"b"}`, `{"id":"i3","text":"c"}`)
	f.write(f.cfg.Catalog.Users, `{"id":"u1","text":"a"}`, `{"id":"u2","text":"a"}`, `{"id":"u3","text":"b"}`)
	f.wants("some lines edited", "i1=put i2=b u2=put i3=c u3=b")
	f.write(f.cfg.Catalog.Users, `{"id":"u1","text":"edited"}`, `{"id":"u2","text":"a"}`, `{"id":"u3","text":"b"}`)
	f.wants("the line of a deleted user edited", "i1=put i2=b u2=put i3=c u3=b")
	if !strings.Contains(f.log.String(), "items or users that were deleted") {
		t.Errorf("the deleted user is not reported: %s", f.log.String())
	}
	list := filepath.Join(f.cfg.DataDir, "catalog.loaded.json")
	lines, err := filepath.Glob(filepath.Join(f.cfg.DataDir, "catalog.loaded-*.lines"))
	if err != nil || len(lines) != 2 {
		t.Fatalf("%v, %v", lines, err)
	}
	f.write(f.cfg.Catalog.Items, `{"id":"i1","text":"a"}`, `{"id":"i2","text":"b"}`, `{"id":"i3","text":"d"}`,
		`{"id":"i4","text":"d"}`)
	for _, damage := range []struct {
		what string
		do   func() error
	}{
		{"an empty list", func() error { return os.Truncate(list, 0) }},
		{"half a list", func() error { return os.Truncate(list, 20) }},
	} {
		if err := damage.do(); err != nil {
			t.Fatal(err)
		}
		f.wants(damage.what, "i1=put i2=b u2=put i3=d u3=b i4=d")
		if damage.what == "an empty list" && !strings.Contains(f.log.String(), "damaged") {
			t.Errorf("%s is not reported: %s", damage.what, f.log.String())
		}
	}
	for _, name := range lines {
		if err := os.Truncate(name, 50); err != nil {
			t.Fatal(err)
		}
	}
	f.write(f.cfg.Catalog.Items, `{"id":"i1","text":"z"}`)
	f.wants("damaged lines", "i1=put i2=b u2=put i3=d u3=b i4=d")
	f.start(func(c *catalog.Catalog) { // after another put the user is no longer deleted
		if _, err := c.PutUser(&grebev1.User{Id: "u1", Text: &text}); err != nil {
			t.Fatal(err)
		}
	})
	f.wants("put again", "i1=put u1=put i2=b u2=put i3=d u3=b i4=d")
	f.write(f.cfg.Catalog.Users, `{"id":"u1","text":"file"}`)
	f.wants("edited then", "i1=put u1=file i2=b u2=put i3=d u3=b i4=d")
}

// A member that joins a cluster does not undo changes that were made since another one loaded the same file.
func TestConfiguredFilesOfLaterMembers(t *testing.T) {
	f := newFiled(t)
	f.write(f.cfg.Catalog.Items, `{"id": "a", "text": "file"}`, `{"id": "b", "text": "file"}`)
	f.cfg.Cluster.Name, f.cfg.Catalog.Users = "shop", ""
	c, newer := catalog.New(catalog.Options{}), "newer"
	if _, err := c.PutItem(&grebev1.Item{Id: "a", Text: &newer}); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(f.cfg.DataDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := loadFiles(&f.cfg, c, nil, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	a, _ := c.Item("a")
	b, ok := c.Item("b")
	if a.Text != "newer" || !ok || b.Text != "file" {
		t.Errorf("a is %v, b is %v", a, b)
	}
}

func second[T any](_ T, err error) error { return err }

// A list of the earlier format is read: a file with the recorded size and time is not loaded again.
func TestLoadedListOfTheFormatBefore(t *testing.T) {
	f := newFiled(t)
	f.cfg.Catalog.Users = ""
	f.write(f.cfg.Catalog.Items, `{"id":"i1","text":"a"}`)
	f.start(func(c *catalog.Catalog) {
		if _, err := c.DeleteItem("i1"); err != nil {
			t.Fatal(err)
		}
	})
	info, err := os.Stat(f.cfg.Catalog.Items)
	if err != nil {
		t.Fatal(err)
	}
	f.write(filepath.Join(f.cfg.DataDir, "catalog.loaded.json"),
		fmt.Sprintf(`{%q: {"size": %d, "mod_time": %q}}`, f.cfg.Catalog.Items, info.Size(),
			info.ModTime().UTC().Format(time.RFC3339Nano)))
	f.wants("as it was", "")
	f.write(f.cfg.Catalog.Items, `{"id":"i1","text":"a"}`, `{"id":"i2","text":"b"}`)
	f.wants("a line more", "i2=b")
}

// A user in a store who was deleted and put again gets the changes of a file.
func TestConfiguredFilesOfUsersInRedis(t *testing.T) {
	s, err := redisserver.Start()
	if errors.Is(err, redisserver.ErrAbsent) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	store := redisusers.Open(redisusers.Config{Addresses: []string{s.Addr}, Prefix: "t:"})
	defer store.Close()
	f := newFiled(t)
	f.cfg.Catalog.Items = ""
	c, err := catalog.Open(datadir.Catalog(f.cfg.DataDir), catalog.Options{TrackDeletions: true, TrackUnknown: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	users, text := catalog.NewUsers(store, c), "put"
	change := func(op catalog.Op) {
		t.Helper()
		if res := users.ApplyWithin(t.Context(), "", []catalog.Op{op})[0]; res.Err != nil {
			t.Fatal(res.Err)
		}
	}
	wants := func(line, want string) {
		t.Helper()
		f.write(f.cfg.Catalog.Users, line)
		if err := loadFiles(&f.cfg, c, users, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		if u, _, err := users.UserWithin(t.Context(), "u1"); err != nil || u.GetText() != want {
			t.Errorf("after %s: %v, %v; want %q", line, u, err, want)
		}
	}
	wants(`{"id":"u1","text":"a"}`, "a")
	// so that it remembers the deletion, as a replicated one always does
	if _, err := c.PutUser(&grebev1.User{Id: "u1"}); err != nil {
		t.Fatal(err)
	}
	change(catalog.Op{DeleteUser: "u1"})
	wants(`{"id":"u1","text":"b"}`, "")
	change(catalog.Op{PutUser: &grebev1.User{Id: "u1", Text: &text}})
	wants(`{"id":"u1","text":"b"}`, "put")
	wants(`{"id":"u1","text":"c"}`, "c")
}

package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/catalog/history"
	"grebe/embed"
	"grebe/internal/datadir"
	"grebe/internal/durable"
)

// site is a data_dir that is open, as a server has it.
type site struct {
	dir     string
	catalog *catalog.Catalog
	history *history.History
	tables  *embed.Tables
}

var rowTable = []embed.Spec{{Name: "rows", Store: "pebble", Dim: 2}}

func openSite(t *testing.T, dir string) *site {
	t.Helper()
	s := &site{dir: dir}
	var err error
	if s.catalog, err = catalog.Open(datadir.Catalog(dir), catalog.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.catalog.Close() })
	s.history, err = history.Open(s.catalog.All(), s.catalog.Stats().Version,
		history.Options{Dir: datadir.Versions(dir), Compact: 4, Keep: 100})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.history.Close() })
	if s.tables, err = embed.OpenTables(datadir.Tables(dir), rowTable); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.tables.Close() })
	return s
}

// close closes the site, so that another may open its folder.
func (s *site) close(t *testing.T) {
	t.Helper()
	if err := errors.Join(s.catalog.Close(), s.history.Close(), s.tables.Close()); err != nil {
		t.Fatal(err)
	}
}

// put changes n random items, each a version, and a user and a row with each.
func (s *site) put(t *testing.T, r *rand.Rand, n int) {
	t.Helper()
	for range n {
		id, words := fmt.Sprint("i", r.IntN(20)), fmt.Sprint("text ", r.Uint32())
		item := &grebev1.Item{Id: id, Text: &words, Codes: []int32{r.Int32N(8), r.Int32N(8)}}
		user := &grebev1.User{Id: fmt.Sprint("u", r.IntN(5)), History: []string{id}}
		for _, res := range s.catalog.Apply([]catalog.Op{{PutItem: item}, {PutUser: user}}) {
			if res.Err != nil {
				t.Fatal(res.Err)
			}
		}
		now, version, _ := s.catalog.Lookup(id)
		d := history.Delta{Version: s.catalog.Stats().Version, Changes: catalog.NewChanges()}
		d.Changes.Add(catalog.Change{ID: id, NewItem: now, Version: version})
		if _, err := s.history.Apply(d); err != nil {
			t.Fatal(err)
		}
		if err := s.tables.Table("rows").Put(t.Context(), []uint64{r.Uint64N(9)},
			embed.Bytes([]float32{r.Float32(), 1})); err != nil {
			t.Fatal(err)
		}
	}
}

func (s *site) source() *Contents {
	return &Contents{Program: "test", Catalog: s.catalog, Versions: s.history.Files, Tables: s.tables, DataDir: s.dir}
}

func (s *site) stream(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := s.source().Write(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// content is everything that a site has, but the catalog's id.
type content struct {
	stats    catalog.Stats
	users    []string
	versions []string
	rows     string
}

func (s *site) content(t *testing.T) (c content) {
	t.Helper()
	c.stats = s.catalog.Stats()
	c.stats.ID = ""
	for i := range 5 {
		u, ok := s.catalog.User(fmt.Sprint("u", i))
		c.users = append(c.users, fmt.Sprint(ok, u.GetHistory()))
	}
	for _, v := range s.history.Versions() {
		if err := s.history.Load(v); err != nil {
			t.Fatal(err)
		}
		c.versions = append(c.versions, fmt.Sprint(v.Number, v.Digest, v.Items, v.Bare, v.Created.UnixNano(), len(v.Live())))
	}
	rows := make([]byte, 9*8)
	got := s.tables.Table("rows").Gather(t.Context(), []uint64{0, 1, 2, 3, 4, 5, 6, 7, 8}, rows)
	c.rows = fmt.Sprintf("%x %+v", rows, got)
	return c
}

// newSite makes a site with so many versions.
func newSite(t *testing.T, versions int) *site {
	t.Helper()
	s := openSite(t, t.TempDir())
	s.put(t, rand.New(rand.NewPCG(1, 1)), versions)
	return s
}

func mustReceive(t *testing.T, stream []byte) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "backup")
	if _, err := Receive(bytes.NewReader(stream), dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A restored data_dir has the items, users, versions and rows of the moment of the backup.
func TestRestoredLikeTheOriginal(t *testing.T) {
	s := newSite(t, 20)
	if err := os.WriteFile(filepath.Join(s.dir, "catalog.loaded.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	stream, want := s.stream(t), s.content(t)
	dir := mustReceive(t, stream)
	s.put(t, rand.New(rand.NewPCG(2, 2)), 3) // later than the backup
	if len(want.versions) < 10 || want.stats.Users < 4 {
		t.Fatalf("the site has %d versions and %d users: too little to test", len(want.versions), want.stats.Users)
	}
	data := filepath.Join(t.TempDir(), "data")
	m, err := Restore(dir, data, false)
	if err != nil {
		t.Fatal(err)
	}
	if m.Items != want.stats.Items || m.Users != want.stats.Users || m.Version != want.stats.Version {
		t.Errorf("manifest %+v, want %+v", m, want.stats)
	}
	restored := openSite(t, data)
	if got := restored.content(t); !reflect.DeepEqual(got, want) {
		t.Errorf("restored\n%+v\nwant\n%+v", got, want)
	}
	if n := restored.history.Damaged(); n > 0 {
		t.Errorf("%d files of versions are damaged", n)
	}
	if got, err := os.ReadFile(filepath.Join(data, "catalog.loaded.json")); err != nil || string(got) != "{}" {
		t.Errorf("catalog.loaded.json: %q, %v", got, err)
	}
	if a, b := restored.catalog.Stats().ID, s.catalog.Stats().ID; a == b || a == "" {
		t.Errorf("the restored catalog has the id %q of the original", a)
	}
	restored.put(t, rand.New(rand.NewPCG(3, 3)), 3) // it takes writes
}

// A backup while everything changes is of one moment: the versions lead to the catalog.
func TestBackupWhileItemsChange(t *testing.T) {
	s := newSite(t, 6)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for r := rand.New(rand.NewPCG(4, 4)); ctx.Err() == nil; {
			s.put(t, r, 1)
		}
	}()
	var streams [][]byte
	for range 3 {
		streams = append(streams, s.stream(t))
	}
	stop()
	<-done
	for _, stream := range streams {
		data := filepath.Join(t.TempDir(), "data")
		if _, err := Restore(mustReceive(t, stream), data, false); err != nil {
			t.Fatal(err)
		}
		restored := openSite(t, data)
		if n := restored.history.Damaged(); n > 0 {
			t.Errorf("%d files of versions are damaged", n)
		}
		if v := restored.history.Head(); v.Items+v.Bare != restored.catalog.Stats().Items {
			t.Errorf("the last version has %d items, and the catalog %d", v.Items+v.Bare, restored.catalog.Stats().Items)
		}
		restored.close(t)
	}
}

// A stream that breaks anywhere leaves no folder with the backup's name, and no folder that can be restored. The next
// attempt succeeds.
func TestBrokenStream(t *testing.T) {
	s := newSite(t, 6)
	stream := s.stream(t)
	dir := filepath.Join(t.TempDir(), "backup")
	for i := range 12 {
		n := i * len(stream) / 12
		if i == 11 {
			n = len(stream) - 1
		}
		if _, err := Receive(bytes.NewReader(stream[:n]), dir); err == nil {
			t.Fatalf("%d of %d bytes are a backup", n, len(stream))
		}
		for _, name := range []string{dir, dir + PartSuffix} {
			if _, err := Restore(name, filepath.Join(t.TempDir(), "data"), false); !errors.Is(err, ErrIncomplete) {
				t.Fatalf("after %d bytes %s is restored: %v", n, name, err)
			}
		}
	}
	if _, err := Receive(bytes.NewReader(stream), dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir + PartSuffix); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left: %v", dir+PartSuffix, err)
	}
	if _, err := Receive(bytes.NewReader(stream), dir); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Errorf("a backup is written over another: %v", err)
	}
}

// A changed byte in any file, a missing file and a changed manifest are found, and nothing is touched.
func TestDamagedBackup(t *testing.T) {
	dir := mustReceive(t, newSite(t, 6).stream(t))
	data := filepath.Join(t.TempDir(), "data")
	files := 0
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		files++
		whole, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		damages := [][]byte{nil}
		for _, at := range []int{0, len(whole) / 2, len(whole) - 1} {
			if at >= 0 && at < len(whole) {
				bad := bytes.Clone(whole)
				bad[at] ^= 4
				damages = append(damages, bad, whole[:at])
			}
		}
		for i, bad := range damages {
			if bad == nil {
				err = os.Remove(name)
			} else {
				err = os.WriteFile(name, bad, 0o600)
			}
			if err != nil {
				return err
			}
			if _, err := Restore(dir, data, true); !errors.Is(err, ErrIncomplete) &&
				!strings.Contains(fmt.Sprint(err), "format") {
				t.Errorf("damage %d of %s is not found: %v", i, name, err)
			}
		}
		return os.WriteFile(name, whole, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 5 {
		t.Errorf("the backup has %d files: too few to test", files)
	}
	if _, err := os.Stat(data); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a damaged backup changed the data_dir: %v", err)
	}
	if _, err := Restore(dir, data, false); err != nil {
		t.Errorf("the whole backup: %v", err)
	}
}

// Data is replaced only with force, and never under a process that has it open.
func TestRestoreOverData(t *testing.T) {
	s := newSite(t, 6)
	dir, want := mustReceive(t, s.stream(t)), s.content(t)
	s.put(t, rand.New(rand.NewPCG(5, 5)), 3)
	for _, name := range []string{"kv/m/chunk", "etcd/wal", "catalog.loaded.json", "imports/a.json", "mine.txt"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(s.dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Restore(dir, s.dir, false); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Errorf("data is replaced without force: %v", err)
	}
	if _, err := Restore(dir, s.dir, true); err == nil || !strings.Contains(err.Error(), "stop the server") {
		t.Errorf("data is replaced under an open catalog: %v", err)
	}
	if err := datadir.Check(s.dir); err != nil {
		t.Errorf("after restores that were refused: %v", err)
	}
	s.close(t)
	if _, err := Restore(dir, s.dir, true); err != nil {
		t.Fatal(err)
	}
	if got := openSite(t, s.dir).content(t); !reflect.DeepEqual(got, want) {
		t.Errorf("restored\n%+v\nwant\n%+v", got, want)
	}
	for _, name := range []string{"kv", "etcd", "imports", "catalog.loaded.json", partDir} {
		if _, err := os.Stat(filepath.Join(s.dir, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(s.dir, "mine.txt")); err != nil {
		t.Errorf("a file that is not a server's is gone: %v", err)
	}
}

// stopAt fails the changes of files from one on, as if the process had been killed there.
type stopAt struct{ left int }

var errStopped = errors.New("stopped")

func (s *stopAt) Do(_ durable.Op, run func() error) error {
	if s.left--; s.left < 0 {
		return errStopped
	}
	return run()
}

// stride is the distance between the changes at which tests stop: all are tried with GREBE_CRASHES.
func stride(t *testing.T) int {
	t.Parallel() // they wait for the disk
	if os.Getenv("GREBE_CRASHES") != "" {
		return 1
	}
	return 9
}

// A restore that stops at any change of a file is either complete or refused by datadir.Check, unless it has not begun,
// and can be repeated.
func TestRestoreStoppedAnywhere(t *testing.T) {
	each := stride(t)
	s := newSite(t, 2)
	dir, want := mustReceive(t, s.stream(t)), s.content(t)
	complete := false
	for n := 0; !complete; n += each {
		data := filepath.Join(t.TempDir(), "data")
		if err := os.Mkdir(data, 0o700); err != nil {
			t.Fatal(err)
		}
		unwatch, err := durable.Watch(data, &stopAt{n})
		if err != nil {
			t.Fatal(err)
		}
		_, err = Restore(dir, data, false)
		unwatch()
		if complete = err == nil; !complete && datadir.Check(data) == nil {
			if has, err := occupied(data); err != nil || has != "" {
				// Removing the marker is the last change: its sync may fail.
				if got := openSite(t, data).content(t); !reflect.DeepEqual(got, want) {
					t.Fatalf("stopped at change %d: %s is served (%v)", n, has, err)
				}
				continue
			}
		}
		if !complete {
			if _, err := Restore(dir, data, false); err != nil {
				t.Fatalf("again after change %d: %v", n, err)
			}
		}
		if n%36 == 0 || complete {
			s := openSite(t, data)
			if got := s.content(t); !reflect.DeepEqual(got, want) {
				t.Fatalf("stopped at change %d: restored\n%+v\nwant\n%+v", n, got, want)
			}
			s.close(t)
		}
	}
}

// A backup that stops at any change of a file is not taken for a whole one.
func TestReceiveStoppedAnywhere(t *testing.T) {
	each := stride(t)
	stream := newSite(t, 1).stream(t)
	for n := 0; ; n += each {
		parent := t.TempDir()
		dir := filepath.Join(parent, "backup")
		unwatch, err := durable.Watch(parent, &stopAt{n})
		if err != nil {
			t.Fatal(err)
		}
		_, err = Receive(bytes.NewReader(stream), dir)
		unwatch()
		if _, there := os.Stat(dir); there == nil {
			if _, err := Verify(dir); err != nil {
				t.Fatalf("stopped at change %d: a folder that looks whole: %v", n, err)
			}
		} else if _, err := Receive(bytes.NewReader(stream), dir); err != nil {
			t.Fatalf("again after change %d: %v", n, err)
		}
		if err == nil {
			return
		}
	}
}

func FuzzReceive(f *testing.F) {
	f.Add([]byte(magic))
	f.Add([]byte(magic + "\x0dcatalog.pairs\x01x\x00\x0dmanifest.json\x02{}\x00\x00"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		dir := filepath.Join(t.TempDir(), "backup")
		if _, err := Receive(bytes.NewReader(stream), dir); err == nil {
			if _, err := Verify(dir); err != nil && !strings.Contains(err.Error(), catalogFile) {
				t.Fatal(err)
			}
		}
	})
}

package embed_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"grebe/embed"
	"grebe/embed/embedtest"
	"grebe/embed/redisserver"
	"grebe/pool"
)

const rowBytes = 64

func TestStores(t *testing.T) {
	t.Run("memory", func(t *testing.T) {
		embedtest.Run(t, func(t *testing.T) embed.Store { return embed.NewMemory(embedtest.Keys, rowBytes) })
	})
	t.Run("pebble", func(t *testing.T) { embedtest.Run(t, emptyFolder) })
	t.Run("redis", func(t *testing.T) {
		s := redis(t)
		embedtest.Run(t, func(t *testing.T) embed.Store { return emptyRedis(t, s) })
	})
	t.Run("cluster", func(t *testing.T) {
		s := redis(t, "--cluster-enabled", "yes")
		if err := s.Command("CLUSTER", "ADDSLOTSRANGE", "0", "16383"); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(time.Minute); s.Command("GET", "any") != nil; {
			if time.Now().After(end) {
				t.Fatal("the cluster of one node does not come up")
			}
		}
		embedtest.Run(t, func(t *testing.T) embed.Store { return emptyRedis(t, s) })
	})
}

func redis(t *testing.T, args ...string) *redisserver.Server {
	t.Helper()
	s, err := redisserver.Start(args...)
	if errors.Is(err, redisserver.ErrAbsent) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

func emptyRedis(t *testing.T, s *redisserver.Server) embed.Store {
	t.Helper()
	if err := s.Command("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	r, err := embed.NewRedis(embed.RedisConfig{Addresses: []string{s.Addr}, Prefix: "t:", RowBytes: rowBytes})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// tableOf closes its folder with the table.
type tableOf struct {
	*embed.Pebble
	folder *embed.Folder
}

func (t tableOf) Close() error { return t.folder.Close() }

func emptyFolder(t *testing.T) embed.Store {
	f, err := embed.OpenFolder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.Table("items", rowBytes)
	if err != nil {
		t.Fatal(err)
	}
	return tableOf{p, f}
}

// Tables of one folder do not see each other's rows, keep them when it is opened again, and have one size of rows.
func TestFolderKeepsTables(t *testing.T) {
	dir, row, found := t.TempDir(), make([]byte, rowBytes), make([]bool, 1)
	for round := range uint64(2) {
		f, err := embed.OpenFolder(dir)
		if err != nil {
			t.Fatal(err)
		}
		for n, name := range []string{"a", "ab"} {
			p, err := f.Table(name, rowBytes)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Gather(t.Context(), []uint64{7}, row, found); err != nil || found[0] != (round == 1) {
				t.Fatalf("table %s, round %d: found %v, error %v", name, round, found[0], err)
			}
			if want := embedtest.Row(7, uint64(n), rowBytes); found[0] && string(row) != string(want) {
				t.Errorf("table %s: row 7 is %x", name, row)
			}
			if err := p.Put(t.Context(), []uint64{7}, embedtest.Row(7, uint64(n), rowBytes)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := f.Table("a", 2*rowBytes); !errors.Is(err, embed.ErrRow) {
			t.Errorf("table a with rows of another size: %v, want ErrRow", err)
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFileKeepsRows(t *testing.T) {
	name := filepath.Join(t.TempDir(), "rows")
	if err := os.WriteFile(name, make([]byte, 10*rowBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	for round := range uint64(2) {
		m, err := embed.OpenFile(name, rowBytes)
		if err != nil {
			t.Fatal(err)
		}
		row, found := make([]byte, rowBytes), make([]bool, 1)
		if err := m.Gather(t.Context(), []uint64{7}, row, found); err != nil || !found[0] {
			t.Fatalf("row 7: found %v, error %v", found[0], err)
		}
		if round == 1 && string(row) != string(embedtest.Row(7, 3, rowBytes)) {
			t.Errorf("row 7 is %x after the file was opened again", row)
		}
		if err := m.Put(t.Context(), []uint64{7}, embedtest.Row(7, 3, rowBytes)); err != nil {
			t.Fatal(err)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := embed.OpenFile(name, rowBytes-16); err == nil {
		t.Error("a file that is no whole number of rows was opened")
	}
}

// An outage costs defaults, which are counted, and nothing has to be restarted afterwards.
func TestRedisOutage(t *testing.T) {
	s := redis(t)
	store := emptyRedis(t, s)
	defer store.Close()
	cache := newCache(t, 64, "lru")
	def := embedtest.Row(99, 99, rowBytes)
	table, err := embed.NewTable(store, cache, embed.TableConfig{Default: def, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	one, two := []uint64{1}, []uint64{2}
	out := make([]byte, rowBytes)
	put := func() error {
		for _, k := range []uint64{1, 2} {
			if err := table.Put(t.Context(), []uint64{k}, embedtest.Row(k, 1, rowBytes)); err != nil {
				return err
			}
		}
		return nil
	}
	if err := put(); err != nil {
		t.Fatal(err)
	}
	if g := table.Gather(t.Context(), one, out); g.Fetched != 1 || g.Err != nil ||
		string(out) != string(embedtest.Row(1, 1, rowBytes)) {
		t.Fatalf("gathered %+v, row %x", g, out)
	}
	if g := table.Gather(t.Context(), []uint64{5}, out); g.Default != 1 || g.Err != nil || string(out) != string(def) {
		t.Fatalf("a row that is nowhere: %+v, row %x", g, out)
	}
	s.Halt()
	for range 3 {
		if g := table.Gather(t.Context(), two, out); g.Default != 1 || g.Err == nil || string(out) != string(def) {
			t.Fatalf("in an outage: %+v, row %x; want the default row and an error", g, out)
		}
		if g := table.Gather(t.Context(), one, out); g.Hits != 1 || string(out) != string(embedtest.Row(1, 1, rowBytes)) {
			t.Fatalf("a cached row in an outage: %+v, row %x", g, out)
		}
	}
	if st := table.Stats(); st.Outage != 3 || st.Missing != 1 || st.Failures != 3 {
		t.Errorf("counted %+v, want 3 lookups of an outage in 3 round trips, 1 missing row", st)
	}
	if err := s.Resume(); err != nil {
		t.Fatal(err)
	}
	// The client has several connections, and each one learns by itself that it was cut.
	for end := time.Now().Add(time.Minute); ; {
		err := put()
		if err == nil {
			g := table.Gather(t.Context(), two, out)
			if err = g.Err; err == nil {
				if g.Fetched != 1 || string(out) != string(embedtest.Row(2, 1, rowBytes)) {
					t.Errorf("after the outage: %+v, row %x", g, out)
				}
				break
			}
		}
		if time.Now().After(end) {
			t.Fatalf("no recovery: %v", err)
		}
	}
}

// What anybody writes to Redis is seen by a table that has cached the old row.
func TestRedisUpdatesAreSeen(t *testing.T) {
	s := redis(t)
	store := emptyRedis(t, s)
	defer store.Close()
	table, err := embed.NewTable(store, newCache(t, 64, "lru"), embed.TableConfig{Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	other, err := embed.NewRedis(embed.RedisConfig{Addresses: []string{s.Addr}, Prefix: "t:", RowBytes: rowBytes})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	keys, out := []uint64{7}, make([]byte, rowBytes)
	for version := range uint64(20) {
		want := embedtest.Row(7, version, rowBytes)
		if err := other.Put(t.Context(), keys, want); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		for table.Gather(t.Context(), keys, out); string(out) != string(want); table.Gather(t.Context(), keys, out) {
			if time.Since(begin) > time.Minute {
				t.Fatalf("version %d is not seen: %x", version, out)
			}
		}
		if g := table.Gather(t.Context(), keys, out); g.Err != nil {
			t.Fatal(g.Err)
		}
	}
	if st := table.Stats(); st.Cache.Hits == 0 {
		t.Errorf("nothing was cached: %+v", st)
	}
}

func newCache(t *testing.T, rows int, policy string) *embed.Cache {
	t.Helper()
	p, err := pool.New(int64(rows+64)*rowBytes, 4096)
	if err != nil {
		t.Fatal(err)
	}
	c, err := embed.NewCache(p, embed.Config{Rows: rows, RowBytes: rowBytes, Policy: policy})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

package embedded

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"grebe/cluster/coord/coordtest"
	"grebe/cluster/coord/etcd"
)

// TestGrowth writes GREBE_COORD_WRITES values of 1 KB under one key. The folder must stay small: its log is cut with
// every snapshot. The database shrinks by compaction only, every five minutes.
func TestGrowth(t *testing.T) {
	text := os.Getenv("GREBE_COORD_WRITES")
	if text == "" {
		t.Skip("set GREBE_COORD_WRITES to a number of writes")
	}
	writes, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	dir := coordtest.Dir(t)
	s := start(t, Options{Dir: dir})
	c := client(t, etcd.Options{Endpoints: []string{s.Addr()}, Root: "/x/"})
	t.Logf("an empty folder has %d MB, %d MB of log", size(t, dir)>>20, size(t, filepath.Join(dir, "member", "wal"))>>20)
	began, version := time.Now(), int64(0)
	for range writes {
		if version, err = c.Swap(t.Context(), "a", make([]byte, 1024), version, nil); err != nil {
			t.Fatal(err)
		}
	}
	took := time.Since(began)
	time.Sleep(time.Until(began.Add(35 * time.Second))) // etcd looks for old files every 30 s
	log := size(t, filepath.Join(dir, "member", "wal"))
	t.Logf("after %d writes of %v each it has %d MB, %d MB of log", writes, took/time.Duration(writes), size(t, dir)>>20,
		log>>20)
	if log > (logFiles+3)*logFile {
		t.Errorf("the log has %d MB", log>>20)
	}
}

func size(t testing.TB, dir string) (total int64) {
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if info, err := d.Info(); err == nil && !d.IsDir() {
			total += info.Size()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return total
}

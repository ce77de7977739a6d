package app

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"grebe/internal/config"
	"grebe/internal/durable"
	"grebe/internal/durable/durabletest"
	"grebe/kv/disk"
)

// A deleted user is in no file of the data folder: neither in files of models that are no longer served, nor of one
// whose KV no longer has room on disk. Files in use stay.
func TestDeletedUsersAreInNoFile(t *testing.T) {
	left := func(w *reloadWorld) (names []string) {
		for _, pattern := range []string{"kv/*", "prototypes/*"} {
			found, _ := filepath.Glob(filepath.Join(w.cfg.DataDir, pattern))
			for _, f := range found {
				names = append(names, filepath.Base(f))
			}
		}
		return names
	}
	for room, want := range map[string][]string{"8MiB": {"m", "open"}, "0": {"open"}} {
		w := newReloadWorld(t, config.Setting{Path: "models[0].disk", Value: room})
		for _, name := range []string{"kv/m/LOCK", "kv/old/00000001.seg", "prototypes/old.proto"} {
			full := filepath.Join(w.cfg.DataDir, name)
			if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(full, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		other, err := disk.Open(filepath.Join(w.cfg.DataDir, "kv/open"), disk.Options{Budget: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		w.serve(t)
		req, err := http.NewRequest(http.MethodDelete, w.url+"/v1/users/u1", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil || resp.StatusCode != http.StatusNoContent {
			t.Fatalf("delete: %v %v", resp, err)
		}
		resp.Body.Close()
		if got := left(w); !slices.Equal(got, want) {
			t.Errorf("with %s on disk %v are left, want %v", room, got, want)
		}
		if err := other.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A file to which a model is writing its prototypes, because another user is deleted, stays. One that a crash left is
// removed.
func TestFilesThatAreWrittenStay(t *testing.T) {
	cfg := &config.Config{DataDir: t.TempDir()}
	folder := filepath.Join(cfg.DataDir, "prototypes")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	now, before := filepath.Join(folder, "m.proto.1.part"), filepath.Join(folder, "m.proto.2.part")
	for _, name := range []string{now, before} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chtimes(before, time.Time{}, time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	if err := removeUnused(cfg); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(now); err != nil {
		t.Errorf("the file that is written: %v", err)
	}
	if _, err := os.Stat(before); err == nil {
		t.Error("the file of a crash is still there")
	}
}

// Files that a crash left half-written, by this or an earlier version, are gone after a start: they may contain data of
// users deleted since.
func TestHalfWrittenFilesGoAtTheStart(t *testing.T) {
	w := newReloadWorld(t)
	left := []string{
		"prototypes/m.proto.0000beef.part", "prototypes/.proto-123", "importance/.new-123",
		"importance/m.importance.0000beef.part",
		"imports/5eed.json.0000beef.part", "deleted-users.0000beef.part",
	}
	kept := []string{"prototypes/other.proto", "importance/other.importance"}
	for _, name := range append(left, kept...) {
		full := filepath.Join(w.cfg.DataDir, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.serve(t)
	for _, name := range left {
		if _, err := os.Stat(filepath.Join(w.cfg.DataDir, name)); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
	for _, name := range kept {
		if _, err := os.Stat(filepath.Join(w.cfg.DataDir, name)); err != nil {
			t.Error(err)
		}
	}
}

// The server logs damage of KV on disk: it removes a segment with a broken first block, and the operator should know.
func TestDamagedKVIsLogged(t *testing.T) {
	w := newReloadWorld(t)
	file := filepath.Join(w.cfg.DataDir, "kv", "m", "00000001.seg")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("no segment"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.serve(t)
	if text := w.log.String(); !strings.Contains(text, "a file is no segment") {
		t.Errorf("the log says nothing of it: %s", text)
	}
}

// Folders of models that are not served stay removed after a power cut.
func TestUnusedFoldersStayRemovedAfterAPowerCut(t *testing.T) {
	cfg := &config.Config{DataDir: t.TempDir()}
	d := durabletest.NewDisk()
	stop, err := d.Mount(cfg.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for _, name := range []string{"kv/old/00000001.seg", "prototypes/old.proto"} {
		full := filepath.Join(cfg.DataDir, name)
		if err := durable.MkdirAll(filepath.Dir(full)); err != nil {
			t.Fatal(err)
		}
		if err := durable.WriteFile(full, func(w io.Writer) error {
			_, err := io.WriteString(w, "a user's")
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(d.Cut(nil).Files()); n != 2 {
		t.Fatalf("%d files are durable, want 2", n)
	}
	if err := removeUnused(cfg); err != nil {
		t.Fatal(err)
	}
	if left := d.Cut(nil).Files(); len(left) > 0 {
		t.Errorf("a power cut brought back %v", left)
	}
}

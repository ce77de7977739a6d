package main

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"grebe/internal/config"
	"grebe/kv/disk"
)

// A deleted user is in no file of the data folder: neither of models that are not served any more, nor of one whose KV has no
// room on disk any more. What is in use stays.
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

// A file that a model is just writing its prototypes to, because another user is deleted, is left to it; one that a crash left goes.
func TestFilesThatAreWrittenStay(t *testing.T) {
	cfg := &config.Config{DataDir: t.TempDir()}
	folder := filepath.Join(cfg.DataDir, "prototypes")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	now, before := filepath.Join(folder, ".proto-1"), filepath.Join(folder, ".proto-2")
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

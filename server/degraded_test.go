package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"grebe/embed"
	"grebe/kv/disk"
	"grebe/plan"
)

// A server whose table's store is unreachable is ready, and reports the problem.
func TestReadinessTellsWhatIsDegraded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rows")
	if err := os.WriteFile(file, make([]byte, 8<<12), 0o600); err != nil {
		t.Fatal(err)
	}
	tables, err := embed.OpenTables(t.TempDir(), []embed.Spec{{Name: "f", Store: "file", File: file, Dim: 1 << 10}})
	if err != nil {
		t.Fatal(err)
	}
	defer tables.Close()
	w := newWorld(t, func(c *setup) { c.Tables = tables })
	if body := w.ask("GET", "/v2/health/ready", "").Body.String(); body != "{\"ready\":true}\n" {
		t.Errorf("sound: %s", body)
	}
	if err := os.Truncate(file, 0); err != nil {
		t.Fatal(err)
	}
	tables.Table("f").Gather(t.Context(), []uint64{3}, make([]byte, 1<<12))
	rec := w.ask("GET", "/v2/health/ready", "")
	if body := rec.Body.String(); rec.Code != 200 || !strings.Contains(body, `{"ready":true,"degraded":["table f:`) {
		t.Errorf("cut off: %d %s", rec.Code, body)
	}
	if body := w.ask("GET", "/metrics", "").Body.String(); !strings.Contains(body, "grebe_degraded 1") {
		t.Error("no metric tells")
	}
}

// Readiness reports a model whose KV cannot be written to disk.
func TestReadinessTellsOfDisks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kv")
	store, err := disk.Open(dir, disk.Options{Budget: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	w := newWorld(t, func(c *setup) { c.Models[0].Disk = store })
	if body := w.ask("GET", "/v2/health/ready", "").Body.String(); body != "{\"ready\":true}\n" {
		t.Errorf("sound: %s", body)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := store.Put(plan.Key{1}, nil, [][]byte{{1}}); err == nil {
		t.Fatal("a record was written to a folder that is gone")
	}
	rec := w.ask("GET", "/v2/health/ready", "")
	if body := rec.Body.String(); rec.Code != 200 || !strings.Contains(body, `"degraded":["model `) ||
		!strings.Contains(body, "KV on disk: create segment 1") {
		t.Errorf("the folder is gone: %d %s", rec.Code, body)
	}
}

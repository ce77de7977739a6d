package main

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"

	"grebe/internal/config"
	"grebe/server/reuse"
)

// What grebe index --importance learned is what a server that is started afterwards goes by, unless the file is damaged.
func TestIndexImportance(t *testing.T) {
	file := crashSite(t, 30)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	// Nothing is kept on disk for it.
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), ", disk: 1GiB", "", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, errs, code := grebe(t, "index", "-c", file, "--importance", "--importance-prompts", "3", "--importance-candidates", "5")
	if code != exitDone || !strings.Contains(out, "learned from 3 prompts") || !strings.Contains(errs, "importance: prompt 1 of 3") {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	cfg, err := config.Load(config.Source{File: file})
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	log := slog.New(slog.NewTextHandler(&said, nil))
	s, err := load(context.Background(), &cfg.Config, log)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	m := &s.models[0]
	if m.Blend.Importance == nil || !strings.Contains(said.String(), "importance of items' tokens") {
		t.Errorf("a server does not go by what was learned, and says: %s", &said)
	}
	e := &evalRunCmd{Config: file}
	tmp := t.TempDir()
	measured, err := e.configure(&world{env: os.Environ()}, tmp, nil, cfg.Catalog.Items)
	if err != nil {
		t.Fatal(err)
	}
	if openImportance(m.Cache, reuse.ImportanceFile(measured.DataDir, m.Name), m.Name, log) == nil || measured.DataDir == cfg.DataDir {
		t.Errorf("an evaluation does not go by what was learned, in %s", measured.DataDir)
	}
	where := reuse.ImportanceFile(cfg.DataDir, m.Name)
	if err := os.WriteFile(where, []byte("grebeim1 and no more"), 0o600); err != nil {
		t.Fatal(err)
	}
	if openImportance(m.Cache, where, m.Name, log) != nil || !strings.Contains(said.String(), "importance is not used; run grebe index --importance") {
		t.Errorf("a server goes by a damaged file, and says: %s", &said)
	}
	if out, errs, code := grebe(t, "index", "-c", file, "--importance", "--prototypes"); code != exitUsage || !strings.Contains(errs, "one at a time") {
		t.Errorf("both at once: exit code %d: %s%s", code, out, errs)
	}
}

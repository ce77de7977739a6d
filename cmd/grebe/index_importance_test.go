package main

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"strings"
	"testing"

	"grebe/app"
	"grebe/eval/measure"
	"grebe/internal/cli"
	"grebe/internal/config"
	"grebe/reuse"
)

// What grebe index --importance learned is what a server that is started afterwards goes by, unless the file is
// damaged.
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
	out, errs, code := grebe(t, "index", "-c", file, "--importance", "--importance-prompts", "3",
		"--importance-candidates", "5")
	if code != cli.Done || !strings.Contains(out, "learned from 3 prompts") ||
		!strings.Contains(errs, "importance: prompt 1 of 3") {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	cfg, err := config.Load(config.Source{File: file})
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	log := slog.New(slog.NewTextHandler(&said, nil))
	s, err := app.Load(context.Background(), &cfg.Config, options(log))
	if err != nil {
		t.Fatal(err)
	}
	m := &s.Models()[0]
	if m.Blend.Importance == nil || !strings.Contains(said.String(), "importance of items' tokens loaded") {
		t.Errorf("a server does not go by what was learned, and says: %s", &said)
	}
	e := &measure.Models{Config: file}
	tmp := t.TempDir()
	measured, err := e.Configure(&cli.World{Env: os.Environ()}, tmp, nil, cfg.Catalog.Items)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Cache.ReadImportance(reuse.ImportanceFile(measured.DataDir, m.Name)); err != nil ||
		measured.DataDir == cfg.DataDir {
		t.Errorf("an evaluation does not go by what was learned, in %s: %v", measured.DataDir, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	where := reuse.ImportanceFile(cfg.DataDir, m.Name)
	if err := os.WriteFile(where, []byte("grebeim1 and no more"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err = app.Load(context.Background(), &cfg.Config, options(log)); err != nil {
		t.Fatal(err)
	}
	if s.Models()[0].Blend.Importance != nil || !strings.Contains(said.String(),
		"importance is not used; run grebe index --importance") {
		t.Errorf("a server goes by a damaged file, and says: %s", &said)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if out, errs, code := grebe(t, "index", "-c", file, "--importance", "--prototypes"); code != cli.Misuse ||
		!strings.Contains(errs, "not both") {
		t.Errorf("both at once: exit code %d: %s%s", code, out, errs)
	}
}

package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

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
		l := &loadedFiles{path: filepath.Join(dir, "loaded.json")} // as after a restart
		if err := l.once(name, func(string) (int, error) { loads++; return 0, nil }); err != nil {
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
	write("b", at.Add(time.Second))
	once()
	if loads != 2 {
		t.Errorf("a file that changed was loaded %d times in all, want 2", loads)
	}
	if err := (&loadedFiles{path: filepath.Join(dir, "x")}).once("", nil); err != nil {
		t.Errorf("no file: %v", err)
	}
	if err := (&loadedFiles{path: filepath.Join(dir, "x")}).once("absent", nil); err == nil {
		t.Error("an absent file gives no error")
	}
}

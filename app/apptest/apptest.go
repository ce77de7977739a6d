// Package apptest has helpers for tests of whole servers.
package apptest

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"testing"

	"grebe/compute/cuda"
)

// Answer is the part of a server's answer that tests compare.
type Answer struct {
	Prefix  string
	Results json.RawMessage
	Scores  json.RawMessage
	Version string `json:"catalog_version"`
	Usage   struct {
		Prompt   int            `json:"prompt_tokens"`
		Cached   int            `json:"cached_tokens"`
		Computed int            `json:"computed_tokens"`
		User     int            `json:"user_tokens"`
		Item     int            `json:"item_tokens"`
		Other    int            `json:"instruction_tokens"`
		BySource map[string]int `json:"by_source"`
	}
}

// AddsUp returns an error if an answer's token counts do not add up.
func (a *Answer) AddsUp() error {
	reused := 0
	for source, n := range a.Usage.BySource {
		if n < 0 {
			return fmt.Errorf("%d tokens from %s", n, source)
		}
		if source != "recomputed" {
			reused += n
		}
	}
	if x := a.Usage; x.Cached+x.Computed != x.Prompt || x.User+x.Item+x.Other != x.Prompt || reused != x.Cached {
		return errors.New("the tokens do not add up")
	}
	return nil
}

// DamageKV flips bits of a random KV file below a data folder, or cuts it. It returns what it did.
func DamageKV(r *rand.Rand, data string, cut bool) string {
	files, _ := filepath.Glob(filepath.Join(data, "kv", "*", "*"))
	if len(files) == 0 {
		return ""
	}
	f, err := os.OpenFile(files[r.IntN(len(files))], os.O_RDWR, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || st.Size() == 0 {
		return ""
	}
	if cut {
		_ = f.Truncate(r.Int64N(st.Size()))
		return "cut a file"
	}
	var b [1]byte
	for range 1 + r.IntN(40) {
		at := r.Int64N(st.Size())
		if _, err := f.ReadAt(b[:], at); err == nil {
			b[0] ^= 1 << r.IntN(8)
			_, _ = f.WriteAt(b[:], at)
		}
	}
	return "flipped bits"
}

// FreeAddress returns an address of this machine that is not in use.
func FreeAddress(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// NeedGPU skips a test if there is no GPU.
func NeedGPU(t *testing.T) {
	t.Helper()
	d, err := cuda.New(cuda.Options{})
	if err != nil {
		t.Skipf("no GPU: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// WithoutRetrieval returns a copy of a checkpoint that takes items' rows from a table.
func WithoutRetrieval(t *testing.T, from string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "config.json")
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	described := map[string]any{}
	if err := json.Unmarshal(raw, &described); err != nil {
		t.Fatal(err)
	}
	described["retrieval"] = false
	if raw, err = json.Marshal(described); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

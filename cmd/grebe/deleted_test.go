package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A user who is deleted by an import while no server runs is not cached any more when one runs again; others are.
func TestUsersDeletedByImportsAreForgotten(t *testing.T) {
	w := newReloadWorld(t)
	cached := func(t *testing.T, user int) int {
		t.Helper()
		body := fmt.Sprintf(`{"user":{"id":"u%d","tokens":[%s9]},"candidates":[{"id":"i1"},{"id":"i2"}],"prefix":"user"}`, user, strings.Repeat(fmt.Sprint(300+user, ","), 70))
		code, text, err := w.post("/v1/rank", body)
		var a struct {
			Usage struct {
				Cached int `json:"cached_tokens"`
			}
		}
		if err != nil || code != http.StatusOK || json.Unmarshal([]byte(text), &a) != nil {
			t.Fatalf("rank: %d %s %v", code, text, err)
		}
		return a.Usage.Cached
	}
	t.Run("before", func(t *testing.T) {
		w.serve(t)
		cached(t, 1)
		cached(t, 2)
	})
	file := filepath.Join(w.dir, "gone.ndjson")
	if err := os.WriteFile(file, []byte(`{"delete":"u1"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(deletedFile(w.cfg.DataDir), []byte(`"u`), 0o600); err != nil { // an import before was killed as it wrote this
		t.Fatal(err)
	}
	if out, errs, code := grebe(t, "import", file, "--kind", "users", "--data-dir", w.cfg.DataDir); code != exitDone {
		t.Fatalf("import: %s%s", out, errs)
	}
	t.Run("after", func(t *testing.T) {
		w.serve(t)
		if n := cached(t, 2); n == 0 {
			t.Error("nothing is cached of a user who is still there")
		}
		if n := cached(t, 1); n > 0 {
			t.Errorf("%d tokens of a deleted user are cached", n)
		}
		if _, err := os.Stat(deletedFile(w.cfg.DataDir)); err == nil {
			t.Error("the list of deleted users is still there")
		}
	})
}

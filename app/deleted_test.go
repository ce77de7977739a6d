package app

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"grebe/catalog"
	"grebe/ingest"
	"grebe/internal/cli"
	"grebe/internal/datadir"
)

// The KV of a user whom an import deletes while no server runs is gone when a server runs again. That of others stays.
func TestUsersDeletedByImportsAreForgotten(t *testing.T) {
	w := newReloadWorld(t)
	cached := w.cachedTokens
	t.Run("before", func(t *testing.T) {
		w.serve(t)
		cached(t, 1)
		cached(t, 2)
		cached(t, 50) // a user who is not in the catalog
	})
	file := filepath.Join(w.dir, "gone.ndjson")
	if err := os.WriteFile(file, []byte(`{"delete":"u1"}`+"\n"+`{"delete":"u50"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// an earlier import was killed while writing this
	if err := os.WriteFile(deletedFile(w.cfg.DataDir), []byte(`"u`), 0o600); err != nil {
		t.Fatal(err)
	}
	importUsers(t, &ingest.Import{Files: []string{file}, Kind: "users", DataDir: w.cfg.DataDir}, "")
	t.Run("after", func(t *testing.T) {
		w.serve(t)
		if n := cached(t, 2); n == 0 {
			t.Error("nothing is cached of a user who is still there")
		}
		if n := cached(t, 1); n > 0 {
			t.Errorf("%d tokens of a deleted user are cached", n)
		}
		if n := cached(t, 50); n > 0 {
			t.Errorf("%d tokens of a deleted user are cached whom the catalog never had", n)
		}
		if left := w.stack.catalog.PendingDeletions(); len(left) > 0 {
			t.Errorf("the deletion of %q is pending", left)
		}
		if _, err := os.Stat(deletedFile(w.cfg.DataDir)); err == nil {
			t.Error("the list of deleted users is still there")
		}
	})
}

// The ids of deletions are checked like all ids. A folder in which an earlier version wrote a longer one still opens.
func TestLongIDsOfDeletions(t *testing.T) {
	w := newReloadWorld(t)
	long := strings.Repeat("x", 70<<10)
	file := filepath.Join(w.dir, "more-users.ndjson")
	if err := os.WriteFile(file, []byte(`{"id":"u7"}`+"\n"+`{"delete":"`+long+`"}`+"\n"+`{"id":"u8"}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	importUsers(t, &ingest.Import{Files: []string{file}, DataDir: w.cfg.DataDir}, `users.ndjson:2: id: 71680 bytes`)
	if out := importUsers(t, &ingest.Import{Files: []string{file}, DataDir: w.cfg.DataDir, Skip: true},
		""); !regexp.MustCompile(`2 created, .* 1 bad`).MatchString(out) {
		t.Error(out)
	}
	if data, err := os.ReadFile(deletedFile(w.cfg.DataDir)); err == nil && len(data) > 1<<10 {
		t.Errorf("%d bytes were noted for an id that is refused", len(data))
	}
	if err := os.WriteFile(deletedFile(w.cfg.DataDir), []byte("\n\""+long+"\"\n\"u7\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Run("serve", func(t *testing.T) {
		w.serve(t)
		if _, err := os.Stat(deletedFile(w.cfg.DataDir)); err == nil {
			t.Error("the list of deleted users is still there")
		}
	})
}

// A server that is killed between committing a user's deletion and dropping the user's KV drops it at its next start.
func TestDeletionCutShortIsFinishedAtTheStart(t *testing.T) {
	w := newReloadWorld(t)
	cached := w.cachedTokens
	t.Run("before", func(t *testing.T) {
		w.serve(t)
		cached(t, 1)
		cached(t, 2)
	})
	c, err := catalog.Open(datadir.Catalog(w.cfg.DataDir), catalog.Options{TrackDeletions: true, SweepDelay: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.DeleteUser("u1") // durable, but not reported to a server
	if err := errors.Join(err, c.Close()); err != nil {
		t.Fatal(err)
	}
	t.Run("after", func(t *testing.T) {
		w.serve(t)
		if n := cached(t, 2); n == 0 {
			t.Error("nothing is cached of a user who is still there")
		}
		if n := cached(t, 1); n > 0 {
			t.Errorf("%d tokens of a deleted user are cached", n)
		}
		if left := w.stack.catalog.PendingDeletions(); len(left) > 0 {
			t.Errorf("the deletion of %q is pending", left)
		}
	})
}

// cachedTokens ranks for a user and returns how many of the tokens were cached.
func (w *reloadWorld) cachedTokens(t *testing.T, user int) int {
	t.Helper()
	body := fmt.Sprintf(`{"user":{"id":"u%d","tokens":[%s9]},"candidates":[{"id":"i1"},{"id":"i2"}],"prefix":"user"}`,
		user, strings.Repeat(fmt.Sprint(300+user, ","), 70))
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

// importUsers imports, and checks the error, if any is wanted.
func importUsers(t *testing.T, i *ingest.Import, wrong string) (out string) {
	t.Helper()
	var b bytes.Buffer
	err := i.Run(&cli.World{Ctx: t.Context(), Stdout: &b, Stderr: &b})
	if wrong == "" && err != nil || wrong != "" && (err == nil || !strings.Contains(err.Error(), wrong)) {
		t.Fatalf("import: %v, want %q\n%s", err, wrong, b.String())
	}
	return b.String()
}

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"grebe/internal/cli"
	"grebe/shop/demo"
)

// recommend runs the client command and reads its answer.
func recommend(t *testing.T, r *running, args ...string) recommendResponse {
	t.Helper()
	out, errs, exit := grebe(t, append([]string{"recommend", "--server", r.http}, args...)...)
	var got recommendResponse
	if err := json.Unmarshal([]byte(out), &got); err != nil || exit != cli.Done {
		t.Fatalf("grebe recommend %q exits with %d: %v\n%s%s", args, exit, err, out, errs)
	}
	return got
}

func TestRecommendFromAServer(t *testing.T) {
	r := start(t, "serve", "-c", filepath.Join(demoData, demo.ConfigFile), "--listen", "127.0.0.1:0",
		"--admin-listen=", "--grpc-listen=", "--slo-ms", "30000", "--data-dir", t.TempDir())
	all := recommend(t, r, "--user", "ana", "-n", "100")
	if len(all.Results) != len(demo.ToyItems()) || !all.Short {
		t.Errorf("a hundred of %d items: %d, short %v", len(demo.ToyItems()), len(all.Results), all.Short)
	}
	seen := recommend(t, r, "--user", "ana", "-n", "100", "--exclude-seen", "--exclude", "i3,i10")
	if ids := seen.ids(); len(ids) != len(all.Results)-6 || slices.Contains(ids, "i9") || slices.Contains(ids, "i3") {
		t.Errorf("without four seen ones and two others: %d items, %v", len(ids), ids)
	}
	some := recommend(t, r, "--history", "i9,i19", "--filter", "category=books,music", "--beam-width", "256", "--top-k",
		"64")
	if len(some.Results) != 10 || some.Short {
		t.Errorf("books and music: %+v", some)
	}
	file := filepath.Join(t.TempDir(), "request.json")
	if err := os.WriteFile(file, []byte(`{"user": {"id": "ana"}, "n": 100}`), 0o600); err != nil {
		t.Fatal(err)
	}
	ruled := recommend(t, r, "--user", "ana", "-n", "100", "--boost", "category=books:30", "--quota", "category=1",
		"--temperature", "0.5", "--seed", "3")
	if len(ruled.Results) == 0 || ruled.Results[0].Score < 0 || len(ruled.Results) >= len(all.Results) {
		t.Errorf("with rules: %+v", ruled)
	}
	for _, args := range [][]string{{"--quota", "category"}, {"--quota", "category=0"}, {"--boost", "category=books"},
		{"--boost", "category=books:x"},
		{"--boost", "=books:1"}} {
		if _, errs, exit := grebe(t, append([]string{"recommend", "--server", r.http, "--user", "ana"},
			args...)...); exit != cli.Misuse || !strings.Contains(errs, args[0]) {
			t.Errorf("%q: exit %d, %s", args, exit, errs)
		}
	}
	if again := recommend(t, r, "--request", file); !slices.Equal(again.ids(), all.ids()) {
		t.Errorf("the same request from a file: %v, want %v", again.ids(), all.ids())
	}
	if _, errs, exit := grebe(t, "recommend", "--server", r.http, "--user", "ana", "-n", "20000"); exit != cli.Misuse ||
		!strings.Contains(errs, "n: 20000") {
		t.Errorf("twenty thousand items: exits with %d and says %q", exit, errs)
	}
	followsTheCatalog(t, r)
	if exit := r.stop(t); exit != cli.Done {
		t.Errorf("after SIGTERM the server exits with %d, want 0", exit)
	}
}

// followsTheCatalog adds an item and waits until it is generated.
func followsTheCatalog(t *testing.T, r *running) {
	t.Helper()
	if code, body := r.get(t, "PUT", "/v1/items/new",
		`{"text": "Kite", "codes": [7, 3, 3], "attributes": {"category": ["kites"]}}`); code != 201 {
		t.Fatalf("a new item is %d: %s", code, body)
	}
	for deadline := time.Now().Add(30 * time.Second); ; {
		got := recommend(t, r, "--user", "ana", "--filter", "category=kites")
		if slices.Equal(got.ids(), []string{"new"}) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("an item that was added is not generated: %+v", got)
		}
	}
	if code, body := r.get(t, "GET", "/v1/catalog", ""); code != 200 || !strings.Contains(body, `"model":"demo"`) {
		t.Errorf("the catalog is %d: %s", code, body)
	}
}

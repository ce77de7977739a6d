package drive

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"grebe/internal/config"
)

// sent returns what requests 0 to n of some traffic say to a server, one after the other.
func sent(t *testing.T, seed uint64, mix Mix, n int) (out []string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || len(body) > 0 && !json.Valid(body) {
			t.Errorf("%s %s: %q, %v", r.Method, r.URL.Path, body, err)
		}
		out = append(out, r.Method+" "+r.URL.Path+" "+string(body))
	}))
	defer s.Close()
	tr := NewTraffic(seed, mix)
	tr.URL = s.URL
	for i := range n {
		if err := tr.Do(context.Background(), i); err != nil {
			t.Fatal(err)
		}
	}
	if got := tr.Answers()[http.StatusOK]; got != len(out) {
		t.Errorf("%d answers are counted of %d", got, len(out))
	}
	return out
}

// A seed makes the same requests, another one others, and a mix has what it says.
func TestTraffic(t *testing.T) {
	mix := usual.with(Mix{Blend: 10, Withdraw: 10})
	one := sent(t, 1, mix, 300)
	if !slices.Equal(one, sent(t, 1, mix, 300)) {
		t.Error("a seed makes other requests")
	}
	if slices.Equal(one, sent(t, 2, mix, 300)) {
		t.Error("another seed makes the same requests")
	}
	all := strings.Join(one, "\n")
	for _, want := range []string{
		"POST /v1/rank ", `"prefix":"item"`, `"prefix":"blend"`, `"model":"shop-pointwise"`, `"model":"shop-hstu"`,
		`"user":{"text":`,
		"POST /v1/recommend ", "PUT /v1/users/u", "DELETE /v1/users/u", "DELETE /v1/items/i", "PUT /v1/items/i",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no request has %s", want)
		}
	}
	for _, r := range sent(t, 1, Mix{Recommend: 1}, 20) {
		if !strings.HasPrefix(r, "POST /v1/recommend ") {
			t.Errorf("a mix of recommendations has %s", r)
		}
	}
}

// The configuration takes every setting of every kind, and users can be read.
func TestSettings(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "grebe.yaml")
	models := []byte("models: [{path: a}, {name: b, path: b}, {name: c, path: c}]\n")
	if err := os.WriteFile(file, models, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, k := range Kinds {
		var env []string
		for _, kv := range environment(k.Settings) {
			if strings.HasPrefix(kv, "GREBE_") {
				env = append(env, kv)
			}
		}
		l, err := config.Load(config.Source{File: file, Env: env})
		if err != nil || len(l.Unknown) > 0 {
			t.Errorf("%s: %v, unknown %v", k.Name, err, l)
		}
	}
	behind, to := filepath.Join(dir, "few"), filepath.Join(dir, "all")
	if err := os.WriteFile(behind, []byte(`{"id":"kaya"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := NewTraffic(1, nil).WriteUsers(behind, to); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(to)
	if lines := strings.Split(strings.TrimSpace(string(b)), "\n"); err != nil || len(lines) != users+1 {
		t.Errorf("%d users: %v", len(lines), err)
	}
}

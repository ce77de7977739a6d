package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"grebe/shop/demo"
)

// call sends a request; the answer is nil when the server died meanwhile.
func (s *crashServer) call(method, path, body string) []byte {
	req, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= 300 {
		return nil
	}
	return data
}

type crashCatalog struct {
	Version string
	Models  []struct {
		Version string
		Pinned  bool
	}
	Versions []struct{ Version string }
}

// churn changes items and activates versions until the server dies. It returns the codes that each item
// may have now, and the versions that the model may have been left with.
func (s *crashServer) churn(r *rand.Rand, codes map[string][]string, pin []string) []string {
	for {
		id := fmt.Sprint("w", r.IntN(40))
		want := fmt.Sprintf("[%d,%d,%d]", r.IntN(8), r.IntN(4), r.IntN(4))
		codes[id] = append(codes[id], want)
		if s.call("PUT", "/v1/items/"+id, fmt.Sprintf(`{"text":"x","codes":%s}`, want)) == nil {
			return pin
		}
		codes[id] = []string{want}
		if r.IntN(20) > 0 {
			continue
		}
		var now crashCatalog
		if data := s.call("GET", "/v1/catalog", ""); data == nil || json.Unmarshal(data, &now) != nil {
			return pin
		}
		version := now.Versions[r.IntN(len(now.Versions))].Version
		if r.IntN(3) == 0 {
			version = "auto"
		}
		pin = append(pin, version)
		if s.call("POST", "/v1/catalog:activate", fmt.Sprintf(`{"version":%q}`, version)) != nil {
			pin = []string{version}
		} else if s.call("GET", "/v2/health/live", "") == nil {
			return pin
		}
	}
}

var damagedFiles = regexp.MustCompile(`grebe_catalog_damaged_total (\d+)`)

// Killed at any moment while items change and versions are activated, a server starts again with the
// version that was activated last, and the latest version has exactly the items that were acknowledged.
func TestKilledWhileVersionsChange(t *testing.T) {
	dir, config := t.TempDir(), filepath.Join(demoData, demo.ConfigFile)
	r := rand.New(rand.NewPCG(8, 8))
	codes, pin := map[string][]string{}, []string{"auto"}
	for range kills(t) {
		s := startServer(t, config, "--data-dir", dir, "--slo-ms", "20000")
		timer := time.AfterFunc(time.Duration(r.IntN(900))*time.Millisecond, s.kill)
		pin = s.churn(r, codes, pin)
		timer.Stop()
		s.kill()
		s = startServer(t, config, "--data-dir", dir, "--slo-ms", "20000")
		pin = []string{s.checkPin(t, pin)}
		s.checkItems(t, codes, pin[0])
		if m := damagedFiles.FindSubmatch(s.call("GET", "/metrics", "")); m == nil || bytes.Compare(m[1], []byte("1")) > 0 {
			t.Errorf("damaged files: %s; the end of a log may be torn, nothing else", m)
		}
		s.kill()
	}
}

// checkPin checks that the model generates one of the versions that it may have been left with.
func (s *crashServer) checkPin(t *testing.T, pin []string) string {
	t.Helper()
	var now crashCatalog
	if err := json.Unmarshal(s.call("GET", "/v1/catalog", ""), &now); err != nil {
		t.Fatal(err)
	}
	got := "auto"
	if now.Models[0].Pinned {
		got = now.Models[0].Version
	}
	if !slices.Contains(pin, got) {
		t.Fatalf("version %s is in use, want one of %v", got, pin)
	}
	return got
}

// checkItems checks that the latest version has exactly the catalog's items, and goes back to the pin.
func (s *crashServer) checkItems(t *testing.T, codes map[string][]string, pin string) {
	t.Helper()
	if s.call("POST", "/v1/catalog:activate", `{"version":"auto"}`) == nil {
		t.Fatal("the latest version cannot be activated")
	}
	var got struct {
		Results []struct {
			ID    string
			Codes json.RawMessage
		}
	}
	data := s.call("POST", "/v1/recommend", `{"user":{"id":"ana"},"n":10000,"beam_width":1024}`)
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	seen := map[string]bool{}
	for _, x := range got.Results {
		seen[x.ID] = true
		if want := codes[x.ID]; strings.HasPrefix(x.ID, "w") && !slices.Contains(want, string(x.Codes)) {
			t.Errorf("%s has codes %s, want %v", x.ID, x.Codes, want)
		}
		if strings.HasPrefix(x.ID, "w") {
			codes[x.ID] = []string{string(x.Codes)}
		}
	}
	for id, want := range codes {
		if item := s.call("GET", "/v1/items/"+id, ""); seen[id] != (item != nil) {
			t.Errorf("%s with %v is generated: %v; in the catalog: %s", id, want, seen[id], item)
		}
		if !seen[id] {
			delete(codes, id) // it was not acknowledged
		}
	}
	if want := len(demo.ToyItems()) + len(codes); len(got.Results) != want {
		t.Errorf("%d items are generated, want %d", len(got.Results), want)
	}
	if s.call("POST", "/v1/catalog:activate", fmt.Sprintf(`{"version":%q}`, pin)) == nil {
		t.Errorf("version %s cannot be activated again", pin)
	}
}

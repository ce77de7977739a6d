package main

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"grebe/bench/replay"
	"grebe/internal/cli"
	"grebe/shop/demo"
)

// What a server decided while it served is decided again from its record, which has no ids.
func TestRecordOfDecisions(t *testing.T) {
	file := filepath.Join(t.TempDir(), "decisions.log")
	r := start(t, "serve", "-c", filepath.Join(demoData, demo.ConfigFile), "--listen", "127.0.0.1:0",
		"--data-dir", t.TempDir(),
		"--admin-listen=", "--grpc-listen=", "--slo-ms", "30000", "--set", "record="+file)
	rank := func() {
		code, body := r.get(t, "POST", "/v1/rank",
			`{"user": {"id": "ana"}, "candidates": [{"id": "i3"}, {"id": "i10"}, {"id": "i34"}]}`)
		if code != 200 {
			t.Errorf("rank is %d: %s", code, body)
		}
	}
	for range 12 { // one after the other, so that each is a batch of its own
		rank()
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 3 {
				rank()
			}
		})
	}
	wg.Wait()
	if code, body := r.get(t, "DELETE", "/v1/users/ana", ""); code >= 300 {
		t.Errorf("the deletion of a user is %d: %s", code, body)
	}
	if exit := r.stop(t); exit != cli.Done {
		t.Errorf("exits with %d", exit)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), "ana") {
		t.Error("the record has a user's id")
	}
	for _, line := range []string{"\nkv0 publish ", "\nkv0 . put ", "\nkv0 find ", "\nkv0 delete ", "\nkv0 hotness ",
		"\nkv0 use "} {
		if !strings.Contains(string(text), line) {
			t.Errorf("the record has no %q", line)
		}
	}
	got, err := replay.Run(strings.NewReader(string(text)))
	if err != nil || got.Different > 0 {
		t.Errorf("replayed: %+v, %v", got, err)
	}
	for _, decision := range []string{"reuse order", "dispatch run", "kv tiers", "kv frequency", "kv uses"} {
		if n := got.Decisions[decision]; n < 12 {
			t.Errorf("%d decisions %q are replayed", n, decision)
		}
	}
}

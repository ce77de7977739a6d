package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"grebe/app/apptest"
	"grebe/internal/config"
	"grebe/model/hstu"
	"grebe/model/hstu/hstutest"
	"grebe/pool"
)

// newEventsWorld writes the checkpoints ea and eb of a model of events, and makes the link name ea.
func newEventsWorld(t *testing.T) *reloadWorld {
	t.Helper()
	w := newReloadWorld(t)
	for i, name := range []string{"ea", "eb"} {
		spec := hstutest.Spec{Hidden: 256, Layers: 4, Heads: 4, HeadDim: 64, Items: 2000, MaxSeqLen: 200, Seed: uint64(i + 1),
			Change: func(c *hstu.Config) { c.Retrieval = false }}
		dir := filepath.Join(w.dir, name)
		if err := errors.Join(os.Mkdir(dir, 0o755), hstutest.Write(dir, spec)); err != nil {
			t.Fatal(err)
		}
	}
	w.point(t, "ea")
	return w
}

// askEvents returns the answer of a model to a ranking of user n.
func (w *reloadWorld) askEvents(t *testing.T, model string, n int) apptest.Answer {
	t.Helper()
	var events []string
	for i := range 70 + 3*n {
		events = append(events, fmt.Sprintf(`{"item":"i%d","action":1}`, (7*n+i*i)%reloadItems))
	}
	status, text, err := w.post("/v1/rank", fmt.Sprintf(
		`{"model":%q,"user":{"id":"e%d","events":[%s]},"candidates":[{"id":"i5"},{"id":"i%d"},{"id":"i41"}]}`,
		model, n, strings.Join(events, ","), n+8))
	if err != nil || status != http.StatusOK {
		t.Fatalf("%s: %d %s %v", model, status, text, err)
	}
	var a apptest.Answer
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		t.Fatal(err)
	}
	return a
}

const (
	oneEvents = `{name: plain, path: now, dtype: f32}`
	twoEvents = `{name: other, path: ea, dtype: f32}`
)

// Two names of one model of events have the weights and the memory of one, answer as one alone, and find each other's
// KV. A reload of one leaves the other as it is; when it returns to the folder, they share again.
func TestTwoNamesShareAModelOfEvents(t *testing.T) {
	var alone []string
	var size int64
	t.Run("alone", func(t *testing.T) {
		w := newEventsWorld(t)
		before, _ := mapped(t)
		twoNames(t, w, "alone", oneEvents)
		for n := range 5 {
			alone = append(alone, string(w.askEvents(t, "plain", n).Results))
		}
		now, _ := mapped(t)
		size = now - before
	})
	w := newEventsWorld(t)
	before, _ := mapped(t)
	twoNames(t, w, "both", oneEvents, twoEvents)
	check := func(name string) {
		t.Helper()
		for n := range 5 {
			if got := string(w.askEvents(t, name, n).Results); got != alone[n] {
				t.Errorf("%s answers %s, alone %s", name, got, alone[n])
			}
		}
	}
	check("plain")
	if a := w.askEvents(t, "other", 0); a.Usage.Cached < 64 {
		t.Errorf("a user whom the other name has asked for: usage %+v", a.Usage)
	}
	check("other")
	if now, _ := mapped(t); now-before > size+slack {
		t.Errorf("two names map %d bytes, one %d", now-before, size)
	}
	plain, other := w.stack.loaded.of("plain")[0], w.stack.loaded.of("other")[0]
	if plain.memory != other.memory || plain.queue != other.queue || w.checkpoints() != 1 || other.checkpoint != 0 {
		t.Fatal("the checkpoint was loaded twice")
	}
	if n := plain.checkpoint; n < 2*slack {
		t.Fatalf("a checkpoint of %d bytes is too small to be noticed", n)
	}
	reload := func(path string, checkpoints int) {
		t.Helper()
		status, text, err := w.post(path, `{"wait":true}`)
		if err != nil || status != http.StatusAccepted || !strings.Contains(text, `"done"`) {
			t.Fatalf("%s: %d %s %v", path, status, text, err)
		}
		if n := w.checkpoints(); n != checkpoints {
			t.Errorf("%d checkpoints after %s, want %d", n, path, checkpoints)
		}
	}
	w.point(t, "eb")
	reload(reloadPlain, 2)
	check("other")
	if string(w.askEvents(t, "plain", 0).Results) == alone[0] {
		t.Error("the reloaded model answers as before")
	}
	w.point(t, "ea")
	reload(reloadPlain, 1)
	check("plain")
	check("other")
}

// Two names whose KV lies with rows of their item table have one memory, of the size that both have together.
func TestTwoNamesShareMemoryWithRows(t *testing.T) {
	cfg := eventsWithTable(t, "fixed")
	cfg.Cache.HostMemory, cfg.Models[0].HostMemory = config.Size{Bytes: 1 << 20}, config.Size{}
	one := *cfg
	for names := 1; names <= 2; names++ {
		s, err := Load(t.Context(), &one, Options{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		s.server.SetReady(true)
		first := s.loaded.of("m")[0]
		p := first.memory.shared.pool
		if n := p.For(pool.KV).Stats().Total + p.For(pool.Embeddings).Stats().Total; n < 2<<20-64<<10 || n > 2<<20 {
			t.Errorf("%d names have %d bytes for rows and KV, want 2 MiB", names, n)
		}
		if names == 2 && s.loaded.of("again")[0].memory != first.memory {
			t.Error("the second name has memory of its own")
		}
		for _, m := range one.Models {
			r := visit(1, 1)
			r.Model = m.Name
			if _, err := ranked(t.Context(), s, r); err != nil {
				t.Error(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		again := cfg.Models[0]
		again.Name = "again"
		one.Models = append(slices.Clone(cfg.Models), again)
	}
}

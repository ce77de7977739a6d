package app

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"grebe/internal/config"
	"grebe/internal/offheap"
	"grebe/model/modeltest"
)

// writeDeep writes a checkpoint whose KV has another shape than that of the others.
func (w *reloadWorld) writeDeep(t *testing.T) {
	t.Helper()
	err := modeltest.Write(filepath.Join(w.dir, "deep"), modeltest.Spec{
		Architecture: modeltest.Qwen3, Hidden: 128, Layers: 3, Heads: 4, KVHeads: 2, HeadDim: 32, Inter: 512, Vocab: 4000,
		Seed: 5,
	})
	if err != nil {
		t.Fatal(err)
	}
}

// limits returns what models may own of the memory that they share.
func limits(t *testing.T, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "grebe_pool_limit_bytes" {
			continue
		}
		for _, m := range f.GetMetric() {
			out[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
		}
	}
	return out
}

// A size that cannot be had is refused with the key that gives it.
func TestTooMuchHostMemoryNamesItsKey(t *testing.T) {
	for _, key := range []string{"cache.host_memory", "models[0].host_memory"} {
		w := newReloadWorld(t, config.Setting{Path: "models[0].host_memory", Value: "0"},
			config.Setting{Path: key, Value: "100TiB"})
		s, err := Load(t.Context(), w.cfg, Options{Log: slog.New(slog.DiscardHandler)})
		if want := strings.Replace(key, "[0]", "[]", 1) + ": "; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error that names %s", err, key)
		}
		if err == nil {
			s.Close()
		}
	}
}

// Three models of two shapes share one amount of memory. The busy one gets more than its third, and a fourth one with
// memory of its own keeps that. Answers are the same before and after memory moved.
func TestModelsCompeteForHostMemory(t *testing.T) {
	w := newReloadWorld(t)
	w.writeDeep(t)
	model := func(name, path, more string) string {
		return fmt.Sprintf("  - {name: %s, path: %s, dtype: f32, prompt: {instruction: {tokens: [7]}}%s}\n", name, path, more)
	}
	file := filepath.Join(w.dir, "three.yaml")
	text := "listen: 127.0.0.1:0\nthreads: 1\ndevice: cpu\ndata_dir: data\nslo_ms: 60000\nmodels:\n" +
		model("x", "a", "") + model("y", "deep", "") + model("z", "b", "") + model("own", "b", ", host_memory: 1MiB") +
		"cache: {host_memory: 1536KiB}\ncatalog: {items: items.ndjson, users: users.ndjson}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(config.Source{File: file})
	if err != nil {
		t.Fatal(err)
	}
	w.cfg = &cfg.Config
	w.serve(t)
	const budget = 1536 << 10
	if got := limits(t, w.stack.registry); len(got) != 3 || got["x"]+got["y"]+got["z"] > budget {
		t.Fatalf("limits %v", got)
	}
	ask := func(model string, n int) string {
		t.Helper()
		_, body := reloadRequest(12 * n) // rankings with the user first
		status, answer, err := w.post("/v1/rank", `{"model":"`+model+`",`+body[1:])
		if err != nil || status != http.StatusOK {
			t.Fatalf("%s: %d %s %v", model, status, answer, err)
		}
		var out struct{ Results json.RawMessage }
		if err := json.Unmarshal([]byte(answer), &out); err != nil {
			t.Fatal(err)
		}
		return string(out.Results)
	}
	before := map[string]string{}
	for _, m := range []string{"x", "y", "z", "own"} {
		before[m] = ask(m, 0)
	}
	for n := range 120 {
		ask("y", n)
		w.stack.loaded.budget.Step()
		sum := 0.0
		for _, l := range limits(t, w.stack.registry) {
			sum += l
		}
		if sum > budget {
			t.Fatalf("limits of %.0f bytes together", sum)
		}
	}
	if got := limits(t, w.stack.registry); got["y"] < budget/2 {
		t.Errorf("the only busy model may have %.0f of %d bytes: %v", got["y"], budget, got)
	}
	if got := w.stack.loaded.of("own")[0].memory.pages.Stats().Total; got != 1<<20 {
		t.Errorf("the model with memory of its own has %d bytes", got)
	}
	for m, want := range before {
		if got := ask(m, 0); got != want {
			t.Errorf("%s answers %s, before memory moved %s", m, got, want)
		}
	}
}

// A checkpoint whose KV has another shape competes with the one that serves for the memory that there is: a reload
// takes none for KV.
func TestReloadToAnotherShapeSharesTheBudget(t *testing.T) {
	w := newReloadWorld(t, config.Setting{Path: "models[0].host_memory", Value: "0"},
		config.Setting{Path: "cache.host_memory", Value: "64MiB"})
	w.writeDeep(t)
	w.serve(t)
	before := offheap.Mapped()
	for n := range 8 {
		if _, err := w.answer(n); err != nil {
			t.Fatal(err)
		}
	}
	w.point(t, "deep")
	if status, now := w.reload(t, "reload"); status != http.StatusAccepted || now.Reload.State != "done" {
		t.Fatalf("%d %s", status, now.text)
	}
	for n := range 8 {
		if _, err := w.answer(n); err != nil {
			t.Error(err)
		}
	}
	if more := offheap.Mapped() - before; more > 32<<20 {
		t.Errorf("a reload took %d bytes", more)
	}
	if got := limits(t, w.stack.registry); len(got) != 1 || got["m"] > 64<<20 {
		t.Errorf("limits %v", got)
	}
}

// Memory that is too little for all models is not the same as none.
func TestALittleMemoryIsNotNone(t *testing.T) {
	cfg := &config.Config{Models: make([]config.Model, 3)}
	for bytes, want := range map[int64]int64{0: 0, 1: 1, 3: 1, 300: 100} {
		cfg.Cache.HostMemory = config.Size{Bytes: bytes}
		if got := hostBytes(cfg, &cfg.Models[0]); got != want {
			t.Errorf("of %d bytes for three models, one gets %d, want %d", bytes, got, want)
		}
	}
}

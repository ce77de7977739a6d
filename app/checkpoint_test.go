package app

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"grebe/app/apptest"
	"grebe/internal/config"
	"grebe/plan"
)

// twoNames writes a configuration with models of these lines and loads it.
func twoNames(t *testing.T, w *reloadWorld, data string, models ...string) {
	t.Helper()
	text := "listen: 127.0.0.1:0\nthreads: 1\ndevice: cpu\nslo_ms: 60000\ndata_dir: " + data +
		"\nmodels:\n  - " + strings.Join(models, "\n  - ") + "\ncache: {host_memory: 16MiB, disk: 8MiB}\n" +
		"catalog: {items: items.ndjson, users: users.ndjson}\nreload: {trial_ms: 0}\n"
	file := filepath.Join(w.dir, data+".yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(config.Source{File: file})
	if err != nil {
		t.Fatal(err)
	}
	w.cfg = &cfg.Config
	w.serve(t)
}

// ask returns the answer of a model to ranking n, with the user first.
func (w *reloadWorld) ask(t *testing.T, model string, n int) apptest.Answer {
	t.Helper()
	_, body := reloadRequest(12 * n)
	status, text, err := w.post("/v1/rank", `{"model":"`+model+`",`+body[1:])
	if err != nil || status != http.StatusOK {
		t.Fatalf("%s: %d %s %v", model, status, text, err)
	}
	var a apptest.Answer
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		t.Fatal(err)
	}
	return a
}

// checkpoints returns how many checkpoints are loaded.
func (w *reloadWorld) checkpoints() int {
	w.stack.loaded.shares.Lock()
	defer w.stack.loaded.shares.Unlock()
	return len(w.stack.loaded.checkpoints)
}

// slack is less than the weights of a checkpoint, which have 8 MiB. Scratch of engines differs by less.
const slack = 4 << 20

const (
	plainModel = `{name: plain, path: now, dtype: f32, prompt: {instruction: {tokens: [7]}}}`
	otherModel = `{name: other, path: a, dtype: f32, prompt: {instruction: {tokens: [9, 11]}}, ` +
		`scoring: {kind: pointwise, yes: 5, no: 6}}`
	reloadPlain = "/v1/models/plain:reload"
	reloadOther = "/v1/models/other:reload"
)

// Two configurations on one folder have the weights and the memory of one model, answer as two separate servers do, and
// find each other's KV. A reload of one leaves the other as it is; when both are reloaded, they share again.
func TestTwoConfigurationsShareACheckpoint(t *testing.T) {
	alone := map[string]map[int]string{}
	sizes := map[string]int64{}
	for name, line := range map[string]string{"plain": plainModel, "other": otherModel} {
		t.Run(name, func(t *testing.T) {
			w := newReloadWorld(t)
			before, _ := mapped(t)
			twoNames(t, w, "alone", line)
			alone[name] = map[int]string{}
			for n := range 5 {
				alone[name][n] = string(w.ask(t, name, n).Results)
			}
			now, _ := mapped(t)
			sizes[name] = now - before
		})
	}
	w := newReloadWorld(t)
	before, _ := mapped(t)
	twoNames(t, w, "both", plainModel, otherModel)
	check := func(name string) {
		t.Helper()
		for n := range 5 {
			if got := string(w.ask(t, name, n).Results); got != alone[name][n] {
				t.Errorf("%s answers %s, alone %s", name, got, alone[name][n])
			}
		}
	}
	check("plain")
	if a := w.ask(t, "other", 0); a.Usage.Cached < 64 {
		t.Errorf("a user whom the other name has asked for: usage %+v", a.Usage)
	}
	check("other")
	if now, _ := mapped(t); now-before > max(sizes["plain"], sizes["other"])+slack {
		t.Errorf("two configurations map %d bytes, one of them %v", now-before, sizes)
	}
	plain, other := w.stack.loaded.of("plain")[0], w.stack.loaded.of("other")[0]
	if plain.memory != other.memory || plain.queue != other.queue || w.checkpoints() != 1 {
		t.Fatal("the checkpoint was loaded twice")
	}
	// it begins with the part of one name, and gets what nobody else wants
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		if v := gauge(t, w.stack, "grebe_pool_bytes"); v >= 15<<20 && v <= 16<<20 {
			break
		} else if v > 16<<20 || time.Since(began) > 20*time.Second {
			t.Errorf("both have %.0f bytes for KV, want those of one model: 16 MiB", v)
			break
		}
	}

	w.point(t, "b")
	reload := func(path string) {
		t.Helper()
		status, text, err := w.post(path, `{"wait":true}`)
		if err != nil || status != http.StatusAccepted || !strings.Contains(text, `"done"`) {
			t.Fatalf("%s: %d %s %v", path, status, text, err)
		}
	}
	reload(reloadPlain)
	check("other")
	if now := string(w.ask(t, "plain", 0).Results); now == alone["plain"][0] {
		t.Error("the reloaded model answers as before")
	}
	if n := w.checkpoints(); n != 2 {
		t.Errorf("%d checkpoints after one of two names was reloaded", n)
	}
	w.point(t, "a")
	reload(reloadPlain)
	check("plain")
	check("other")
	if n := w.checkpoints(); n != 1 {
		t.Errorf("%d checkpoints after the reloaded name returned", n)
	}
}

// A name that goes leaves the checkpoint to the others, and the last one takes it along.
func TestTheLastNameClosesTheCheckpoint(t *testing.T) {
	w := newReloadWorld(t)
	twoNames(t, w, "both", plainModel, strings.Replace(otherModel, "path: a", "path: now", 1))
	var settled int64
	for i, folder := range []string{"b", "a", "b"} {
		w.ask(t, "plain", 0)
		w.ask(t, "other", 0)
		w.point(t, folder)
		for n, path := range []string{reloadPlain, reloadOther} {
			if status, text, err := w.post(path, `{"wait":true}`); err != nil || status != http.StatusAccepted {
				t.Fatalf("%d %s %v", status, text, err)
			}
			if loaded := w.checkpoints(); loaded != 2-n {
				t.Errorf("%d checkpoints after %d of two names were reloaded", loaded, n+1)
			}
		}
		if i == 0 {
			settled, _ = mapped(t)
		}
	}
	now, _ := mapped(t)
	// unused memory is given back later
	for end := time.Now().Add(time.Minute); now-settled > slack && time.Now().Before(end); {
		now, _ = mapped(t)
	}
	if now-settled > slack {
		t.Errorf("%d bytes more after two further reloads of both names", now-settled)
	}
	w.ask(t, "plain", 1)
	if a := w.ask(t, "other", 1); a.Usage.Cached < 64 {
		t.Errorf("after both were reloaded they share no KV: %+v", a.Usage)
	}
}

// gauge reads a metric that has no labels.
func gauge(t *testing.T, a *App, name string) float64 {
	t.Helper()
	families, err := a.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

// Two names share a folder and its disk, and one of them is reloaded. After a restart the name whose folder on disk it
// is finds the KV that it wrote since, and nothing of the other one is left there: nobody would ask for it, or delete
// it.
func TestKVOnDiskOutlivesAReloadOfAnotherName(t *testing.T) {
	const n = 3
	for first, models := range map[string][]string{"other": {otherModel, plainModel}, "plain": {plainModel, otherModel}} {
		t.Run(first, func(t *testing.T) {
			w := newReloadWorld(t)
			key := func(name string) plan.Key {
				return w.stack.loaded.of(name)[0].served.Cache.UserKey(fmt.Sprint("u", 12*n%reloadUsers), nil)
			}
			t.Run("before", func(t *testing.T) {
				twoNames(t, w, "both", models...)
				w.point(t, "b")
				if status, text, err := w.post(reloadPlain, `{"wait":true}`); err != nil || status != http.StatusAccepted {
					t.Fatalf("%d %s %v", status, text, err)
				}
				w.ask(t, "other", n)
				w.ask(t, "plain", n)
				a, b := w.stack.loaded.of("other")[0], w.stack.loaded.of("plain")[0]
				if a.memory != b.memory || key("other") == key("plain") {
					t.Fatal("two checkpoints that share a memory are needed")
				}
			})
			t.Run("after", func(t *testing.T) {
				twoNames(t, w, "both", models...)
				second := map[string]string{"other": "plain", "plain": "other"}[first]
				disk := w.stack.loaded.of(first)[0].memory.disk
				if _, ok := disk.Has(key(first)); !ok {
					t.Error("the user's KV is gone")
				}
				if _, ok := disk.Has(key(second)); ok {
					t.Errorf("KV of %s is left", second)
				}
				if a := w.ask(t, first, n); a.Usage.Cached < 64 {
					t.Errorf("after the restart: usage %+v", a.Usage)
				}
			})
		})
	}
}

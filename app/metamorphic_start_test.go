package app

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"grebe/compute"
	"grebe/compute/computetest"
	"grebe/internal/config"
	"grebe/internal/scripttest"
	"grebe/model/hstu"
	"grebe/model/hstu/hstutest"
	"grebe/model/modeltest"
)

const (
	catalogItems = 40 // recommended from; they never change
	lmTokenBytes = 2 * 2 * 32 * 4
	evTokenBytes = 2 * 2 * 64 * 4
)

// newMetamorphic writes checkpoints, a catalog and rows.
func newMetamorphic(t *testing.T) *metamorphic {
	x := &metamorphic{dir: t.TempDir(), plain: map[string]*App{}, known: map[string]string{}}
	for i, name := range []string{"a", "b"} {
		seed := uint64(i + 1)
		if err := modeltest.Write(filepath.Join(x.dir, "lm-"+name),
			modeltest.Spec{Architecture: modeltest.Qwen3, Hidden: 64, Layers: 2,
				Heads: 2, KVHeads: 1, HeadDim: 32, Inter: 96, Vocab: 1200, MaxPositions: 2000, Seed: seed}); err != nil {
			t.Fatal(err)
		}
		ev := filepath.Join(x.dir, "ev-"+name)
		if err := os.Mkdir(ev, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := hstutest.Write(ev, hstutest.Spec{Hidden: 64, Layers: 2, Heads: 2, HeadDim: 32, Items: catalogItems,
			MaxSeqLen: 160, Seed: seed, Change: func(c *hstu.Config) { c.Retrieval = false }}); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Create(filepath.Join(x.dir, "items.ndjson"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i := range catalogItems {
		tokens := drawTokens(fmt.Sprintf("%d@%d", 1+i%12, 1000+i))
		fmt.Fprintf(f, `{"id":"i%d","tokens":%s,"identifier":%d,"codes":[%d,%d]}`+"\n", i, jsonOf(tokens), 500+i, i%8, i/8)
	}
	cfg, err := x.config(filepath.Join(x.dir, "rows"), scripttest.Parse(t, "start"),
		map[string]string{"ev": filepath.Join(x.dir, "ev-a")})
	if err != nil {
		t.Fatal(err)
	}
	putRows(t, cfg, filepath.Join(x.dir, "ev-a"))
	t.Cleanup(func() {
		for _, s := range x.plain {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return x
}

// start opens the server with a command's options, on the data that the previous one left. Answers depend on the first
// three options; a start that changes them begins without data.
//
//	dtype=f32 kv=fp8 scoring=pointwise   formats of weights and KV; how rankings are scored
//	place=far                            KV is in device memory that the host cannot read;
//	                                     pinned: that device can use host memory
//	page=512                             bytes of a page
//	host=100 device=70                   tokens that fit into a model's memories
//	disk=2                               MiB on disk
//	policy=lru rows=sieve                eviction policies of KV and of embedding rows
//	boundary=climb cache=40              controller that divides memory between KV and rows; KiB of rows
//	threads=2 workers=2
func (l *lifetime) start(c *scripttest.Command) error {
	if err := l.stop(); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	data := filepath.Join(l.dir, "data")
	if class := classOf(c); class != l.class {
		if err := errors.Join(os.RemoveAll(data), os.CopyFS(data,
			os.DirFS(filepath.Join(l.metamorphic.dir, "rows")))); err != nil {
			return err
		}
		l.class, l.users, l.items = class, map[string]map[string]any{}, map[string]map[string]any{}
	}
	paths := map[string]string{}
	for _, model := range []string{"lm", "ev"} {
		l.now[model], l.before[model] = l.named[model], ""
		paths[model] = l.point(model)
	}
	cfg, err := l.config(data, c, paths)
	if err != nil {
		return err
	}
	place := c.Text("place", "near")
	s := newApp(Options{Log: quiet})
	s.page = c.Int("page", 0)
	l.server, err = s, s.openAll(l.Context(), cfg, func(cfg *config.Config, log *slog.Logger) ([]compute.Device, error) {
		devices, err := OpenDevices(cfg, log)
		if err == nil && place != "near" {
			devices[0] = computetest.Far(devices[0], place == "pinned")
		}
		return devices, err
	})
	if err != nil {
		l.server = nil
		return err
	}
	s.server.SetReady(true)
	return nil
}

// point makes the link to a model's checkpoint name the wanted one, and returns the link.
func (l *lifetime) point(model string) string {
	link, next := filepath.Join(l.dir, model), filepath.Join(l.dir, "next")
	if err := errors.Join(os.Symlink(filepath.Join(l.metamorphic.dir, model+"-"+l.named[model]), next),
		os.Rename(next, link)); err != nil {
		l.Fatal(err)
	}
	return link
}

// classOf returns the options that answers depend on.
func classOf(c *scripttest.Command) string {
	return fmt.Sprintf("dtype=%s kv=%s scoring=%s", c.Text("dtype", "bf16"), c.Text("kv", "auto"),
		c.Text("scoring", "identifier"))
}

// without returns the server without caches for a class of answers.
func (x *metamorphic) without(t *testing.T, class string) (*App, error) {
	if s := x.plain[class]; s != nil {
		return s, nil
	}
	paths := map[string]string{}
	for _, name := range []string{"lm-a", "lm-b", "ev-a", "ev-b"} {
		paths[name] = filepath.Join(x.dir, name)
	}
	data := t.TempDir()
	if err := os.CopyFS(data, os.DirFS(filepath.Join(x.dir, "rows"))); err != nil {
		return nil, err
	}
	cfg, err := x.config(data, scripttest.Parse(t, "start "+class+" host=0 cache=0"), paths)
	if err != nil {
		return nil, err
	}
	s, err := Load(t.Context(), cfg, Options{Log: quiet})
	if err != nil {
		return nil, err
	}
	s.server.SetReady(true)
	x.plain[class] = s
	return s, nil
}

// config returns the configuration of a server for these models.
func (x *metamorphic) config(data string, c *scripttest.Command, paths map[string]string) (*config.Config, error) {
	var flags []config.Setting
	set := func(path string, value any) {
		flags = append(flags, config.Setting{Path: path, Value: fmt.Sprint(value)})
	}
	set("data_dir", data)
	set("device", "cpu")
	set("slo_ms", 60000)
	set("engine.max_tokens", 1200) // the longest user scored with four texts fits
	set("reload.trial_ms", 0)
	set("cache.host_memory", 0)
	set("cache.policy", c.Text("policy", "default"))
	set("cache.boundary", c.Text("boundary", "fixed"))
	set("threads", c.Int("threads", 1))
	set("workers", c.Int("workers", 1))
	set("catalog.items", filepath.Join(x.dir, "items.ndjson"))
	i := 0
	for _, name := range []string{"lm", "lm-a", "lm-b", "ev", "ev-a", "ev-b"} {
		path, ok := paths[name]
		if !ok {
			continue
		}
		model := func(key string, value any) { set(fmt.Sprintf("models[%d].%s", i, key), value) }
		model("name", name)
		model("path", path)
		model("dtype", c.Text("dtype", "bf16"))
		model("kv_dtype", c.Text("kv", "auto"))
		token := evTokenBytes
		if name[:2] == "lm" {
			token = lmTokenBytes
			model("prompt.preamble", "{tokens: [1, 2, 3]}")
			model("prompt.lead_in", "{tokens: [4, 5]}")
			model("prompt.instruction", "{tokens: [7]}")
			model("prompt.generate_instruction", "{tokens: [8]}")
			model("codes", "{first_token: [900, 950], size: [8, 8]}")
			if c.Text("scoring", "") == "pointwise" {
				model("scoring", "{kind: pointwise, yes: 11, no: 12}")
			}
		} else {
			model("item_table", "items")
			model("kv_dtype", "auto")
		}
		model("host_memory", c.Int("host", 200)*token)
		model("device_memory", c.Int("device", 100)*token)
		model("disk", c.Int("disk", 0)<<20)
		i++
	}
	set("tables[0].name", "items")
	set("tables[0].dim", 64)
	set("tables[0].timeout_ms", 60000)
	set("tables[0].policy", c.Text("rows", "default"))
	set("tables[0].cache", c.Int("cache", 40)<<10)
	cfg, err := config.Load(config.Source{Flags: flags})
	if err != nil {
		return nil, err
	}
	return &cfg.Config, nil
}

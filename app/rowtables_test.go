package app

import (
	"fmt"
	"hash/maphash"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"grebe/compute/cuda/driver"
	"grebe/embed"
	"grebe/engine"
	"grebe/internal/config"
	"grebe/model"
	"grebe/model/hstu"
	"grebe/model/hstu/hstutest"
	"grebe/model/safetensors"
	"grebe/plan"
)

// manyTables writes a checkpoint with a table of creators and one of categories, and returns a configuration of it.
func manyTables(t *testing.T, more ...config.Setting) (*config.Config, string) {
	t.Helper()
	dir := t.TempDir()
	err := hstutest.Write(dir, hstutest.Spec{Hidden: 32, Layers: 2, Heads: 2, HeadDim: 16, Items: 50, MaxSeqLen: 200,
		Seed: 5, Change: func(c *hstu.Config) {
			c.Retrieval = false
			c.Content = []hstu.ContentFeature{{Name: "category", Table: "categories", Rows: 7, Dim: 32},
				{Name: "creator", Table: "creators", Rows: 40, Dim: 32}}
		}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := config.Load(config.Source{Flags: append([]config.Setting{
		{Path: "data_dir", Value: t.TempDir()}, {Path: "threads", Value: "1"}, {Path: "slo_ms", Value: "60000"},
		{Path: "models[0].path", Value: dir}, {Path: "models[0].name", Value: "m"},
		{Path: "models[0].device_memory", Value: "16MiB"},
		{Path: "tables[0].name", Value: "items"}, {Path: "tables[0].dim", Value: "32"},
		{Path: "tables[0].timeout_ms", Value: "60000"},
		{Path: "tables[1].name", Value: "makers"}, {Path: "tables[1].dim", Value: "32"},
		{Path: "tables[1].timeout_ms", Value: "60000"},
	}, more...)})
	if err != nil {
		t.Fatal(err)
	}
	return &l.Config, dir
}

// A divider sees the rows of the items themselves, also where tokens are hashes of events.
func TestRowsThatAJobNeeds(t *testing.T) {
	cfg, dir := manyTables(t, config.Setting{Path: "device", Value: "cpu"})
	a, err := Load(t.Context(), cfg, Options{Log: slog.New(slog.DiscardHandler), Open: openApart})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	m, err := hstu.Open(dir, a.device, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var content []int32
	c, want := rowCounter{model: m, seed: maphash.MakeSeed()}, []uint64(nil)
	for i := range int32(12) {
		content = m.AppendEvent(content, m.Event(i%5, 1), func(*hstu.ContentFeature) int32 { return i })
		want = append(want, maphash.Comparable(c.seed, i%5))
	}
	j := &engine.Job{Plan: &plan.Plan{Segments: []plan.Segment{
		{Tokens: m.Identify(nil, content).Tokens(), Content: content}, {Tokens: []int32{1 << 30}},
	}}}
	if got := c.needs(nil, j); !slices.Equal(got, want) {
		t.Errorf("%d keys %x, want %x", len(got), got, want)
	}
}

// fill copies a table of a checkpoint into one of a server.
func fill(t *testing.T, a *App, table, dir, name string) {
	t.Helper()
	set, err := safetensors.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	flat, err := set.Tensor("_embedding_collection.embeddings." + name + ".weight")
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]uint64, flat.Rows)
	for i := range keys {
		keys[i] = uint64(i)
	}
	if err := a.tables.Table(table).Put(t.Context(), keys, embed.Bytes(safetensors.Floats(flat))); err != nil {
		t.Fatal(err)
	}
}

// ofTable returns a metric of a table; −1: there is none.
func ofTable(t *testing.T, a *App, name, table string) float64 {
	t.Helper()
	families, err := a.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == name && len(m.Label) == 1 && m.Label[0].GetValue() == table {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return -1
}

// TestManyTablesOnTheDevice: whether rows of two of a model's tables come from the checkpoint, from stores, or from
// caches of their own in the device's memory, answers have the same bits, also when rows of the second table change.
func TestManyTablesOnTheDevice(t *testing.T) {
	on := map[string]Opener{"apart": openApart}
	if n, err := driver.Count(); err == nil && n > 0 {
		on["gpu"] = nil
	}
	for name, open := range on {
		t.Run(name, func(t *testing.T) {
			device := "cpu"
			if open == nil {
				device = "cuda"
			}
			load := func(more ...config.Setting) *App {
				t.Helper()
				cfg, dir := manyTables(t, append(more, config.Setting{Path: "device", Value: device})...)
				a, err := Load(t.Context(), cfg, Options{Log: slog.New(slog.DiscardHandler), Open: open})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := a.Close(); err != nil {
						t.Error(err)
					}
				})
				fill(t, a, "items", dir, "item_id")
				fill(t, a, "makers", dir, "creators")
				return a
			}
			mapped := []config.Setting{{Path: "models[0].item_table", Value: "items"},
				{Path: "models[0].tables[0].name", Value: "creators"}, {Path: "models[0].tables[0].table", Value: "makers"}}
			own, stores := load(), load(mapped...)
			cached := load(append(mapped, config.Setting{Path: "models[0].device_rows", Value: "25%"},
				config.Setting{Path: "models[0].tables[0].device_rows", Value: "2MiB"})...)
			both := func(what string, user, n int, apps ...*App) {
				t.Helper()
				r := visit(user, n)
				for i, e := range r.User.Events {
					e.Features = map[string]float64{"creator": float64((i * user) % 61), "category": float64(i % 3)}
				}
				want := ""
				for i, a := range apps {
					got, err := ranked(t.Context(), a, r)
					if err != nil {
						t.Fatal(err)
					}
					if i > 0 && got != want {
						t.Errorf("%s, way %d: %q, want %q", what, i, got, want)
					}
					want = got
				}
			}
			for i := range 12 {
				both(fmt.Sprintf("user %d, visit %d", i%4, i/4), 1+i%4, i/4, own, stores, cached)
			}
			for _, a := range []*App{stores, cached} {
				row := make([]float32, 32)
				row[3] = 1
				if err := a.tables.Table("makers").Put(t.Context(), []uint64{5}, embed.Bytes(row)); err != nil {
					t.Fatal(err)
				}
			}
			both("a changed row", 9, 0, stores, cached)
			for table, most := range map[string]float64{"items": 4 << 20, "makers": 2 << 20} {
				if got := ofTable(t, cached, "grebe_embed_device_bytes", table); got < most/2 || got > most {
					t.Errorf("%s: %v bytes on the device, want up to %v", table, got, most)
				}
				if hits := ofTable(t, cached, "grebe_embed_device_hits_total", table); hits < 1 {
					t.Errorf("%s: %v hits", table, hits)
				}
			}
			if got := ofTable(t, stores, "grebe_embed_device_bytes", "makers"); got != -1 {
				t.Errorf("without device_rows %v bytes are reported", got)
			}
		})
	}
}

// TestManyTablesRefused: tables that the model does not have, of another width, twice, or that take all memory.
func TestManyTablesRefused(t *testing.T) {
	table := func(name, of string) []config.Setting {
		return []config.Setting{{Path: "device", Value: "cpu"}, {Path: "models[0].tables[0].name", Value: name},
			{Path: "models[0].tables[0].table", Value: of}}
	}
	for want, more := range map[string][]config.Setting{
		"the model has no table brands": table("brands", "makers"),
		"want 32": append(table("creators", "makers"),
			config.Setting{Path: "tables[1].dim", Value: "8"}),
		"has rows of another one already": append(table("item_id", "makers"),
			config.Setting{Path: "models[0].item_table", Value: "items"}),
		"all of the 16.8 MB": append(table("creators", "makers"),
			config.Setting{Path: "models[0].tables[0].device_rows", Value: "16MiB"}),
	} {
		cfg, _ := manyTables(t, more...)
		a, err := Load(t.Context(), cfg, Options{Log: slog.New(slog.DiscardHandler), Open: openApart})
		if err == nil {
			err = a.Close()
			t.Errorf("no error, want %q", want)
		}
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

package app

import (
	"os"
	"path/filepath"
	"testing"

	"grebe/internal/config"
	"grebe/kv"
	"grebe/kv/disk"
	"grebe/model/safetensors"
	"grebe/plan"
)

// Records of a release whose devices computed wrong KV are not found, and are erased.
func TestKVFromBeforeAFixIsNotReused(t *testing.T) {
	path := filepath.Join("..", "testdata", "fixtures", "hstu", "absolute")
	mc := &config.Model{Name: "m", Path: path, DType: "bf16", KVDType: "bf16"}
	described, err := os.ReadFile(filepath.Join(path, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	weights, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer weights.Close()
	wrong := kv.KeyOf(weights.Digest(), nil, "2 bf16 bf16\n"+string(described)) // the key of releases before the fix
	right, err := checkpointVersion(t.Context(), &config.Config{}, mc, nil)
	if err != nil {
		t.Fatal(err)
	}
	dir, key := t.TempDir(), plan.Key{1}
	write := func(version plan.Key) {
		t.Helper()
		d, err := disk.Open(dir, disk.Options{Budget: 16 << 20, Version: version})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Put(key, nil, [][]byte{make([]byte, 4096)}); err != nil {
			t.Fatal(err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	found := func() (ok bool, stale uint64) {
		t.Helper()
		d, err := disk.Open(dir, disk.Options{Budget: 16 << 20, Version: right})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		_, ok = d.Has(key)
		return ok, d.Stats().StaleRecords
	}
	write(wrong)
	if ok, stale := found(); ok || stale != 1 {
		t.Errorf("a record from before the fix: found %v, %d erased; want it erased", ok, stale)
	}
	write(right)
	if ok, _ := found(); !ok {
		t.Error("a record of this version is not found")
	}
}

// KV on disk that was computed from another item table has another version.
func TestCheckpointVersionOfTables(t *testing.T) {
	path := filepath.Join("..", "testdata", "fixtures", "hstu", "absolute")
	seen := map[plan.Key]string{}
	for name, table := range map[string]config.Table{
		"none":          {},
		"pebble":        {Name: "a", Store: "pebble", Dim: 32},
		"another name":  {Name: "b", Store: "pebble", Dim: 32},
		"file":          {Name: "a", Store: "file", File: "rows.f32", Dim: 32},
		"another file":  {Name: "a", Store: "file", File: "rows2.f32", Dim: 32},
		"redis":         {Name: "a", Store: "redis", Addresses: []string{"h:1"}, Dim: 32},
		"another redis": {Name: "a", Store: "redis", Addresses: []string{"h:2"}, Dim: 32},
		"prefix":        {Name: "a", Store: "redis", Addresses: []string{"h:1"}, Prefix: "p", Dim: 32},
		"default row":   {Name: "a", Store: "pebble", Dim: 32, Default: []float32{1}},
		"dim":           {Name: "a", Store: "pebble", Dim: 33},
	} {
		cfg := &config.Config{Tables: []config.Table{table}}
		version, err := checkpointVersion(t.Context(), cfg, &config.Model{Path: path, ItemTable: table.Name}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[version]; ok {
			t.Errorf("%s and %s have the same version", name, other)
		}
		seen[version] = name
	}
	same, err := checkpointVersion(t.Context(), &config.Config{
		Tables: []config.Table{{Name: "a", Cache: config.Size{Bytes: 1}}}}, &config.Model{Path: path}, nil)
	if err != nil || seen[same] != "none" {
		t.Errorf("a table that the model does not use changes its version: %v", err)
	}
}

// In a cluster, records of devices of another class are erased. A single process keeps all.
func TestRecordsOfOtherDevicesAreErased(t *testing.T) {
	model, other := plan.Key{1}, plan.Key{2}
	for _, q := range []struct {
		was, is string
		kept    bool
	}{{"", "", true}, {"avx2", "avx2", true}, {"avx2", "amx", false}, {"", "amx", false}} {
		dir := t.TempDir()
		open := func(class string, first plan.Key) *classed {
			c := &classed{class: class}
			d, err := disk.Open(dir, disk.Options{Budget: 16 << 20, Version: c.versionOf(first)})
			if err != nil {
				t.Fatal(err)
			}
			c.Store = d
			return c
		}
		c := open(q.was, model)
		if err := c.Put(plan.Key{7}, nil, [][]byte{make([]byte, 4096)}); err != nil {
			t.Fatal(err)
		}
		if err := c.PutAs(other, plan.Key{8}, nil, [][]byte{make([]byte, 4096)}); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		c = open(q.is, model)
		if _, ok := c.Has(plan.Key{7}); ok != q.kept {
			t.Errorf("from %q to %q: kept %v", q.was, q.is, ok)
		}
		if _, ok := c.Has(plan.Key{8}); ok {
			t.Errorf("from %q to %q: a record of another model is kept", q.was, q.is)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

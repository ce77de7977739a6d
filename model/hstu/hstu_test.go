package hstu

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"grebe/compute"
	"grebe/compute/ref"
	"grebe/embed"
	"grebe/model"
	"grebe/model/safetensors"
	"grebe/plan"
)

// changed returns the config.json of a fixture with some keys changed; a nil value removes the key.
func changed(t *testing.T, name string, change map[string]any) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(fixtureDir(name), model.ConfigFile))
	if err != nil {
		t.Fatal(err)
	}
	var c map[string]any
	if err := json.Unmarshal(raw, &c); err != nil {
		t.Fatal(err)
	}
	maps.Copy(c, change)
	maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
	raw, err = json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestConfigRefuses(t *testing.T) {
	task := func(name string, kind int) map[string]any {
		return map[string]any{"task_name": name, "task_type": kind}
	}
	for want, change := range map[string]map[string]any{
		`architectures is [Qwen2ForCausalLM]`:      {"architectures": []string{"Qwen2ForCausalLM"}},
		"hstu_num_heads is 0":                      {"hstu_num_heads": 0},
		"hstu_attn_num_layers is 5000":             {"hstu_attn_num_layers": 5000},
		"num_items is -1":                          {"num_items": -1},
		"num_items is 0":                           {"num_items": nil},
		"want an even number, and no less":         {"hstu_attn_qk_dim": 20},
		"want a preprocessor and an item MLP":      {"item_mlp_hidden_dim": nil},
		`position_encoding is "relative"`:          {"position_encoding": "relative"},
		`time_encoding is "absolute"`:              {"time_encoding": "absolute"},
		`postprocessor is "softmax"`:               {"postprocessor": "softmax"},
		"the model answers nothing":                {"multitask_configs": nil},
		"want a new name, and type 0 or 1":         {"multitask_configs": []any{task("a", 0), task("a", 0)}},
		"is not sorted by task_type":               {"multitask_configs": []any{task("a", 1), task("b", 0)}},
		`ranking_weights: "nothing"`:               {"ranking_weights": map[string]any{"nothing": 1}},
		"contextual_seq_len is 2, want 0 or the 3": {"contextual_seq_len": 2},
		"contextual_features[0]":                   {"contextual_features": []any{map[string]any{"name": "x"}}},
		"action_weights has 13 types":              {"action_weights": slices.Repeat([]int{1}, 13)},
		"are more events than 31 bits tell apart":  {"num_items": 1 << 29},
		"are more than 31 bits tell apart":         {"num_position_buckets": 1 << 24, "num_time_buckets": 1 << 15},
		"tokens, more than 31 bits tell apart": {"action_weights": []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048},
			"num_items": 523000, "max_seq_len": 2000,
			"contextual_seq_len": 0, "contextual_features": []any{
				map[string]any{"name": "x", "table": "x", "num_embeddings": 100000, "max_length": 100}}},
		"hstu_transducer_embedding_dim is 4611686018": {"hstu_transducer_embedding_dim": 4611686018427387904},
		"cannot unmarshal":                            {"hstu_num_heads": "many"},
	} {
		_, err := ParseConfig(changed(t, "meta", change))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

// A row is the sum of as many parts as every device takes, and of one if a preprocessor makes it.
func TestConfigRefusesMoreSummandsThanADeviceTakes(t *testing.T) {
	change := map[string]any{"hstu_preprocessor_hidden_dim": nil, "item_mlp_hidden_dim": nil,
		"position_encoding": Absolute, "hstu_embedding_table_dim": 32, "time_encoding": QuerySqrt, "retrieval": false}
	var list []any // beside item, action, contextual row, position and time
	for i := range 4 {
		name := fmt.Sprint("f", i)
		list = append(list, map[string]any{"name": name, "table": name, "num_embeddings": 5, "embedding_dim": 32,
			"target": i == 2})
		change["content_features"] = list
		c, err := ParseConfig(changed(t, "meta", change))
		switch {
		case i < 2 && (err != nil || c.summands() != 6+i):
			t.Errorf("%d features: %v", i+1, err)
		case i >= 2 && (err == nil || !strings.Contains(err.Error(), fmt.Sprintf("up to %d rows of tables, at most 8", 7+i))):
			t.Errorf("%d features: got %v, want an error", i+1, err)
		}
	}
	change["hstu_preprocessor_hidden_dim"] = 8
	if _, err := ParseConfig(changed(t, "meta", change)); err != nil {
		t.Errorf("with a preprocessor: %v", err)
	}
}

func TestRecomputes(t *testing.T) {
	for _, c := range []struct {
		change map[string]any
		want   string
	}{
		{nil, ""},
		{map[string]any{"position_encoding": "none"}, ""},
		{map[string]any{"position_encoding": "from_end"}, "positions count from the end"},
		{map[string]any{"time_encoding": "query_log"}, "times are relative to the query"},
		{map[string]any{"attn_scale_length": 0}, "divided by the length of the request"},
		{
			map[string]any{"contextual_features": []any{map[string]any{
				"name": "x", "table": "x", "num_embeddings": 3, "max_length": 1}}}, "contextual rows"},
	} {
		cfg, err := ParseConfig(changed(t, "absolute", c.change))
		if err != nil {
			t.Fatal(err)
		}
		if got := cfg.Recomputes(); !strings.Contains(got, c.want) || got != "" && c.want == "" {
			t.Errorf("%v: %q, want %q", c.change, got, c.want)
		}
	}
}

// A checkpoint that lacks a tensor, or has one of another shape, is an error that names it.
func TestOpenNamesTheTensor(t *testing.T) {
	for want, change := range map[string]map[string]any{
		`"_embedding_collection.embeddings.other.weight" is missing`:            {"item_table": "other"},
		"_stu_layers.2._uvqk_weight\" is missing":                               {"hstu_attn_num_layers": 3},
		"_uvqk_weight\" has shape [32 96], want [32 128]":                       {"hstu_attn_qk_dim": 16},
		"_position_embeddings_weight\" has shape [40 32], want [41 32]":         {"num_position_buckets": 41},
		"_prediction_module.0.weight\" has shape [20 32], want [21 32]":         {"multitask_hidden_dim": 21},
		`item_id.weight" has shape [50 20], want [51 20]`:                       {"num_items": 51},
		"_action_encoder._action_embedding_table\" has shape [3 5], want [2 5]": {"action_weights": []int{1, 2}},
		"_batched_contextual_linear_weights\" has shape [3 20 32], want [2 20 32]": {
			"contextual_seq_len": 0, "contextual_features": []any{
				map[string]any{"name": "x", "table": "user_id", "num_embeddings": 9, "max_length": 2}}},
		"_output_norm_weight\" has shape [32], want [2]":                 {"hstu_group_norm": true},
		"_timestamp_embeddings_weight\" has shape [32 32], want [33 32]": {"num_time_buckets": 32},
	} {
		dir := t.TempDir()
		copyFile(t, filepath.Join(fixtureDir("meta"), "model.safetensors"), filepath.Join(dir, "model.safetensors"))
		if err := os.WriteFile(filepath.Join(dir, model.ConfigFile), changed(t, "meta", change), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := Open(dir, ref.New(), model.Options{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

// A weight that is no finite number is an error that names its tensor: behind a sigmoid it could be a score like any
// other.
func TestOpenRefusesInfinities(t *testing.T) {
	for _, name := range []string{"_multitask_module._prediction_module.1.bias",
		"_hstu_transducer._stu_module._stu_layers.0._uvqk_beta"} {
		for _, bad := range []float64{math.Inf(1), math.Inf(-1), math.NaN()} {
			dir := t.TempDir()
			copyFile(t, filepath.Join(fixtureDir("absolute"), model.ConfigFile), filepath.Join(dir, model.ConfigFile))
			spoil(t, filepath.Join(fixtureDir("absolute"), safetensors.SingleFile), filepath.Join(dir, safetensors.SingleFile),
				name, float32(bad))
			_, err := Open(dir, ref.New(), model.Options{})
			if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "value 0 is") {
				t.Errorf("%s is %v: %v", name, bad, err)
			}
		}
	}
}

// spoil copies a file of tensors with the first value of one of them, an F32, changed.
func spoil(t *testing.T, from, to, name string, value float32) {
	t.Helper()
	set, err := safetensors.OpenFile(from)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	var list []safetensors.Named
	for _, n := range set.Names() {
		info, _ := set.Lookup(n)
		v, err := set.Flat(n)
		if err != nil {
			t.Fatal(err)
		}
		data := slices.Clone(v.Data)
		if n == name {
			copy(data, safetensors.Encode(nil, compute.F32, value))
		}
		list = append(list, safetensors.Named{Name: n, DType: v.DType, Shape: info.Shape, Data: safetensors.Bytes(data)})
	}
	if err := safetensors.Write(to, list); err != nil {
		t.Fatal(err)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	raw, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, raw, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestItemsFile(t *testing.T) {
	for content, want := range map[string]string{
		`["a"]`: "1 ids for 50 items",
		`{`:     "unexpected end",
		`[` + strings.Repeat(`"a",`, 49) + `"a"]`: `"a" is listed twice`,
	} {
		dir := t.TempDir()
		for _, name := range []string{"model.safetensors", model.ConfigFile} {
			copyFile(t, filepath.Join(fixtureDir("absolute"), name), filepath.Join(dir, name))
		}
		if err := os.WriteFile(filepath.Join(dir, ItemsFile), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, ref.New(), model.Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

// Every token means one row, and every row has its token.
func TestVocabulary(t *testing.T) {
	m := open(t, fixtureDir("meta"), ref.New(), "f32")
	seen := map[int32]bool{}
	note := func(token int32) {
		if token < 0 || int(token) >= m.Vocab() || seen[token] {
			t.Fatalf("token %d of %d came before", token, m.Vocab())
		}
		seen[token] = true
	}
	for item := range int32(50) {
		for action := range int32(8) {
			note(m.Event(item, action))
			if got := m.Item(m.Event(item, action)); got != item {
				t.Fatalf("an event of item %d is one of item %d", item, got)
			}
		}
		note(m.Candidate(item))
	}
	if m.Event(3, 1+8+64) != m.Event(3, 1) {
		t.Error("bits that are no action type change a token")
	}
	for tag := range int32(7) {
		tokens, err := m.Context(map[string][]int32{"tags": {tag, tag}}, 3)
		if err != nil {
			t.Fatal(err)
		}
		note(tokens[1])
		note(tokens[2])
		if m.Item(tokens[1]) != -1 {
			t.Error("a contextual row has an item")
		}
	}
	few, err := m.Context(map[string][]int32{"tags": {1, 2}}, 2)
	none, err2 := m.Context(nil, 9)
	if err != nil || err2 != nil || !slices.Equal(few, none) {
		t.Errorf("features of a request that is too short: %v (%v), want %v (%v)", few, err, none, err2)
	}
	if _, err := m.Context(map[string][]int32{"tags": {7}}, 3); err == nil {
		t.Error("a row beyond a feature's table is no error")
	}
}

// The best of random scores with many ties are those of sorting all.
func TestTop(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		var all []Found
		for i := range r.IntN(60) {
			all = append(all, Found{int32(i), float32(r.IntN(12))})
		}
		best := top{n: r.IntN(20)}
		for _, f := range all {
			if best.takes(f.Score) {
				best.add(f)
			}
		}
		slices.SortStableFunc(all, func(a, b Found) int { return int(b.Score - a.Score) })
		if got, want := best.sorted(), all[:min(best.n, len(all))]; !slices.Equal(got, want) {
			t.Fatalf("the best %d are %v, want %v", best.n, got, want)
		}
	}
}

// tableSource gives the checkpoint's own rows, or an error.
type tableSource struct {
	m    *Model
	fail error
	asks int
}

func (s *tableSource) Dim() int { return s.m.cfg.TableDim }

func (s *tableSource) Gather(items []int32, out []float32) error {
	s.asks += len(items)
	return errors.Join(s.fail, s.m.content.item.gather(items, out))
}

// Rows from elsewhere are used like those of the checkpoint, each item asked for once; a failure is the batch's.
func TestRowsFromElsewhere(t *testing.T) {
	for device, dev := range devices(t) {
		m := open(t, fixtureDir("absolute"), dev, "f32")
		source := &tableSource{m: m}
		other := openWith(t, unretrieving(t), dev, map[string]RowSource{"item_id": source})
		c := readCases(t, "absolute")[6]
		p, _, answers := c.layout(t, m)
		want, got := hidden(t, m, dev, p, answers), hidden(t, other, dev, p, answers)
		for i := range want {
			if !slices.Equal(want[i], got[i]) {
				t.Errorf("%s: candidate %d differs", device, i)
			}
		}
		unique := map[int32]bool{}
		for _, item := range slices.Concat(c.Items, c.Candidates) {
			unique[item] = true
		}
		if source.asks != len(unique) {
			t.Errorf("%s: %d rows were asked for, of %d items", device, source.asks, len(unique))
		}
		source.fail = errors.New("the store is gone")
		b := &compute.Batch{Tokens: []int32{1}, Positions: []int32{0}}
		r, err := dev.Open(m.Shape(), 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := other.Forward(r, b, nil); !errors.Is(err, source.fail) {
			t.Errorf("%s: got %v, want the source's error", device, err)
		}
		r.Close()
	}
}

// A table of an embedding store gives the same states as the checkpoint's; what it lacks is its default row.
func TestFromTable(t *testing.T) {
	dev := ref.New()
	dir := unretrieving(t)
	m := open(t, dir, dev, "f32")
	c := readCases(t, "absolute")[4]
	p, _, answers := c.layout(t, m)
	want := hidden(t, m, dev, p, answers)
	store, table := stored(t, m.content.item)
	other := openWith(t, dir, dev, map[string]RowSource{"item_id": FromTable(table)})
	for i, state := range hidden(t, other, dev, p, answers) {
		if !slices.Equal(state, want[i]) {
			t.Errorf("candidate %d differs", i)
		}
	}
	a, err1 := m.Score(want, c.Candidates, nil, 0)
	b, err2 := other.Score(want, c.Candidates, nil, 0)
	if err1 != nil || err2 != nil || !slices.Equal(a[0].Tasks, b[0].Tasks) {
		t.Errorf("predictions are %v (%v) and %v (%v)", a[0], err1, b[0], err2)
	}
	if err := store.Delete(t.Context(), []uint64{uint64(c.Candidates[0])}); err != nil {
		t.Fatal(err)
	}
	if got := hidden(t, other, dev, p, answers); slices.Equal(got[0], want[0]) {
		t.Error("a row that is gone changes nothing")
	}
	if n := other.Incomplete(); n != 0 {
		t.Errorf("%d times incomplete, but the store never failed", n)
	}
	wide, err := embed.NewTable(embed.NewMemory(4, 4*m.cfg.Hidden+4), nil, embed.TableConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for want, sources := range map[string]map[string]RowSource{
		"table item_id has rows of 33 numbers, want 32":   {"item_id": FromTable(wide)},
		"the model has no table creators: it has item_id": {"creators": FromTable(table)},
	} {
		if _, err := OpenWith(dir, dev, model.Options{}, sources); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

// unretrieving returns a copy of the fixture absolute that retrieves nothing.
func unretrieving(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	copyFile(t, filepath.Join(fixtureDir("absolute"), "model.safetensors"), filepath.Join(dir, "model.safetensors"))
	if err := os.WriteFile(filepath.Join(dir, model.ConfigFile),
		changed(t, "absolute", map[string]any{"retrieval": false}), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// stored puts a table of a checkpoint into a store.
func stored(t *testing.T, from *table) (*embed.Memory, *embed.Table) {
	t.Helper()
	store := embed.NewMemory(from.rows, 4*from.dim)
	for row := range from.rows {
		if err := store.Put(t.Context(), []uint64{uint64(row)}, embed.Bytes(rowsOf(from.tensor, row, 1))); err != nil {
			t.Fatal(err)
		}
	}
	to, err := embed.NewTable(store, nil, embed.TableConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return store, to
}

func openWith(t *testing.T, dir string, dev compute.Device, sources map[string]RowSource) *Model {
	t.Helper()
	m, err := OpenWith(dir, dev, model.Options{DType: "f32"}, sources)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// uncached is a device whose runners take the rows of a cache from its source.
type uncached struct{ compute.Device }

func (d uncached) Open(s compute.Shape, rows int) (compute.Runner, error) {
	r, err := d.Device.Open(s, rows)
	if err != nil {
		return nil, err
	}
	return &uncachedRunner{STU: r.(compute.STU), width: s.Hidden}, nil
}

type uncachedRunner struct {
	compute.STU
	width int
	parts int // that were cached
}

func (r *uncachedRunner) Sum(parts []compute.SumPart) {
	for i := range parts {
		p := &parts[i]
		if p.Cached == nil {
			continue
		}
		r.parts++
		rows := slices.Clone(p.Rows)
		rows = slices.DeleteFunc(rows, func(row int32) bool { return row < 0 })
		vectors, known := make([]float32, len(rows)*r.width), make([]bool, len(rows))
		if err := fetchFloats(p.Source, rows, vectors, known); err != nil || slices.Contains(known, false) {
			panic(fmt.Sprintf("rows %v: %v, %v", rows, known, err))
		}
		at := slices.Clone(p.Rows)
		next := int32(0)
		for k, row := range at {
			if row >= 0 {
				at[k] = next
				next++
			}
		}
		p.Vectors, p.Rows, p.Cached = vectors, at, nil
	}
	r.STU.Sum(parts)
	if r.parts == 0 {
		panic("no part is cached")
	}
}

// fetchFloats has a source write rows as float32.
func fetchFloats(from compute.RowSource, rows []int32, to []float32, known []bool) error {
	if from.Format() == compute.F32 {
		return from.Fetch(rows, embed.Bytes(to), known)
	}
	raw := make([]byte, 2*len(to))
	err := from.Fetch(rows, raw, known)
	for i := range to {
		to[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(raw[2*i:])) << 16)
	}
	return err
}

// rowCache is any cache of rows. It notes which are fetched ahead.
type rowCache struct {
	compute.RowCache
	ahead []int32
}

func (c *rowCache) Prefetch(rows []int32, _ compute.RowSource) { c.ahead = append(c.ahead, rows...) }

// Rows of a table that a cache in the device's memory keeps give the same states as those that come from the host.
func TestSetCache(t *testing.T) {
	dir, dev := unretrieving(t), ref.New()
	m := open(t, dir, dev, "f32")
	if err := m.SetCache("item_id", &rowCache{}); err == nil {
		t.Error("a cache of the checkpoint's rows is no error")
	}
	c := readCases(t, "absolute")[4]
	p, _, answers := c.layout(t, m)
	want := hidden(t, m, dev, p, answers)
	store, _ := stored(t, m.content.item)
	table, err := embed.NewTable(struct{ embed.Store }{store}, nil, embed.TableConfig{}) // its rows are fetched
	if err != nil {
		t.Fatal(err)
	}
	m = openWith(t, dir, dev, map[string]RowSource{"item_id": FromTable(table)})
	cache := &rowCache{}
	if m.CountShards(); m.Shards() == nil {
		t.Error("look-ups are not counted")
	}
	m.Prefetch([]int32{m.Candidate(3)}, nil) // there is no cache
	if err := m.SetCache("creators", cache); err == nil {
		t.Error("a cache of a table that the model does not have is no error")
	}
	if err := m.SetCache("item_id", cache); err != nil {
		t.Fatal(err)
	}
	if m.Shards() != nil {
		t.Error("the look-ups that miss the device's cache count as all")
	}
	m.Prefetch([]int32{m.Candidate(3), int32(m.Vocab() - 1), m.Candidate(7)}, nil)
	if want := []int32{3, m.Item(int32(m.Vocab() - 1)), 7}; !slices.Equal(cache.ahead, slices.DeleteFunc(want,
		func(item int32) bool { return item < 0 })) {
		t.Errorf("rows %v are fetched ahead", cache.ahead)
	}
	fetched := 0
	m.WatchItems(func(rows int, took time.Duration) {
		if fetched += rows; took <= 0 {
			t.Errorf("%d rows took %v", rows, took)
		}
	})
	for i, state := range hidden(t, m, uncached{dev}, p, answers) {
		if !slices.Equal(state, want[i]) {
			t.Errorf("candidate %d differs", i)
		}
	}
	all := fetched
	if err := m.content.item.source.Gather([]int32{1, 2}, make([]float32, 2*m.content.item.dim)); err != nil {
		t.Fatal(err)
	}
	if all == 0 || fetched != all {
		t.Errorf("%d fetched rows were told of, and %d that no cache asked for", all, fetched-all)
	}
}

// A checkpoint without an item table opens, and works once rows are given.
func TestWithoutItems(t *testing.T) {
	dir := t.TempDir()
	full, err := safetensors.Open(fixtureDir("absolute"))
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	var list []safetensors.Named
	for _, name := range full.Names() {
		info, _ := full.Lookup(name)
		flat, err := full.Flat(name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(name, "item_id") {
			list = append(list, safetensors.Named{Name: name, Shape: info.Shape, Data: safetensors.Bytes(flat.Data)})
		}
	}
	if err := safetensors.Write(filepath.Join(dir, safetensors.SingleFile), list); err != nil {
		t.Fatal(err)
	}
	config := func(retrieval bool) {
		if err := os.WriteFile(filepath.Join(dir, model.ConfigFile),
			changed(t, "absolute", map[string]any{"retrieval": retrieval}), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	config(true)
	if _, err := Open(dir, ref.New(), model.Options{}); err == nil ||
		!strings.Contains(err.Error(), "item_id.weight\" is missing") {
		t.Errorf("retrieval without items: %v", err)
	}
	config(false)
	dev := ref.New()
	if _, err := Open(dir, dev, model.Options{}); err == nil ||
		!strings.Contains(err.Error(), "item_id.weight\" is missing") {
		t.Errorf("without rows: %v", err)
	}
	whole := open(t, fixtureDir("absolute"), dev, "f32")
	m := openWith(t, dir, dev, map[string]RowSource{"item_id": &tableSource{m: whole}})
	c := readCases(t, "absolute")[4]
	p, _, answers := c.layout(t, m)
	if !slices.Equal(hidden(t, m, dev, p, answers)[0], hidden(t, whole, dev, p, answers)[0]) {
		t.Error("rows given, and rows of the checkpoint, give different states")
	}
}

func TestItemFirstNeedsAbsolutePositions(t *testing.T) {
	m := open(t, fixtureDir("window"), ref.New(), "f32")
	p := &plan.Plan{Segments: []plan.Segment{{Tokens: []int32{m.Candidate(1)}},
		{Tokens: []int32{m.Event(1, 1)}, Start: 1, Sees: []int32{0}}}}
	if err := m.Annotate(p, 1, &Moment{}); !errors.Is(err, errItemFirst) {
		t.Errorf("got %v, want %v", err, errItemFirst)
	}
}

func ExampleIs() {
	fmt.Println(Is(fixtureDir("absolute")), Is(filepath.Join("..", "..", "testdata", "fixtures", "qwen2-tiny")),
		Is("nowhere"))
	// Output: true false false
}

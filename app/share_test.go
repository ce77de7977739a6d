package app

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	grebev1 "grebe/api/grebe/v1"
	"grebe/app/apptest"
	"grebe/compute"
	"grebe/embed"
	"grebe/internal/config"
	"grebe/internal/datadir"
	"grebe/model/hstu/hstutest"
	"grebe/model/safetensors"
	"grebe/pool"
)

// eventsWithTable returns the configuration of a server whose model of events has its items' rows in Pebble, with
// little memory for them and for KV, and independent of the clock.
func eventsWithTable(t *testing.T, boundary string) *config.Config {
	t.Helper()
	fixture := filepath.Join("..", "testdata", "fixtures", "hstu", "absolute")
	return tableOfEvents(t, fixture, "1MiB", config.Setting{Path: "device", Value: "cpu"},
		config.Setting{Path: "cache.boundary", Value: boundary})
}

// tableOfEvents is eventsWithTable for another checkpoint, with that much memory for rows and as much for KV.
func tableOfEvents(t *testing.T, path, memory string, more ...config.Setting) *config.Config {
	t.Helper()
	items := itemRows(t, path)
	data, dim := t.TempDir(), items.Cols
	l, err := config.Load(config.Source{Flags: append([]config.Setting{
		{Path: "data_dir", Value: data}, {Path: "threads", Value: "1"}, {Path: "slo_ms", Value: "60000"},
		{Path: "models[0].path", Value: apptest.WithoutRetrieval(t, path)}, {Path: "models[0].name", Value: "m"},
		{Path: "models[0].item_table", Value: "items"},
		{Path: "models[0].host_memory", Value: memory}, {Path: "tables[0].cache", Value: memory},
		{Path: "tables[0].name", Value: "items"}, {Path: "tables[0].dim", Value: fmt.Sprint(dim)},
		{Path: "tables[0].timeout_ms", Value: "60000"},
	}, more...)})
	if err != nil {
		t.Fatal(err)
	}
	putRows(t, &l.Config, path)
	return &l.Config
}

// itemRows returns the rows of a checkpoint's items.
func itemRows(t *testing.T, path string) compute.Tensor {
	t.Helper()
	weights, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { weights.Close() })
	items, err := weights.Tensor("_embedding_collection.embeddings.item_id.weight")
	if err != nil {
		t.Fatal(err)
	}
	return items
}

// putRows puts the rows of a checkpoint's items into the table "items" of a configuration's data folder.
func putRows(t *testing.T, cfg *config.Config, path string) {
	t.Helper()
	tables, err := embed.OpenTables(datadir.Tables(cfg.DataDir), TableSpecs(cfg))
	if err != nil {
		t.Fatal(err)
	}
	items := itemRows(t, path)
	keys := make([]uint64, items.Rows)
	for i := range keys {
		keys[i] = uint64(i)
	}
	if err := tables.Table("items").Put(t.Context(), keys, items.Data); err != nil {
		t.Fatal(err)
	}
	if err := tables.Close(); err != nil {
		t.Fatal(err)
	}
}

// visit returns the ranking request of a user's n-th visit, with more events each time.
func visit(user, n int) *grebev1.RankRequest {
	r := &grebev1.RankRequest{User: &grebev1.User{Id: fmt.Sprintf("u%d", user)},
		Candidates: []*grebev1.Item{{Id: "i5"}, {Id: "i9"}, {Id: fmt.Sprintf("i%d", user%50)}}}
	draw := rand.New(rand.NewPCG(uint64(user), 1))
	for range 60 + 4*n {
		r.User.Events = append(r.User.Events, &grebev1.Event{Item: fmt.Sprintf("i%d", draw.IntN(50)), Action: 1})
	}
	return r
}

// ranked requests a ranking and returns the scores as text, to the bit.
func ranked(ctx context.Context, s *App, r *grebev1.RankRequest) (string, error) {
	out, err := s.service.Rank(ctx, r)
	if err != nil {
		return "", err
	}
	text := ""
	for _, x := range out.Results {
		text += fmt.Sprintf("%s %x ", x.Id, x.Score)
	}
	return text, nil
}

// farApart returns the largest difference between the scores of two rankings from ranked; +Inf if their items differ.
func farApart(a, b string) float64 {
	if a == b {
		return 0
	}
	scores := func(text string) map[string]float64 {
		out, words := map[string]float64{}, strings.Fields(text)
		for i := 0; i+1 < len(words); i += 2 {
			out[words[i]], _ = strconv.ParseFloat(words[i+1], 64)
		}
		return out
	}
	x, y, most := scores(a), scores(b), 0.0
	for id := range y {
		if _, ok := x[id]; !ok || len(x) != len(y) {
			return math.Inf(1)
		}
		most = max(most, math.Abs(x[id]-y[id]))
	}
	return most
}

// A model of events and its item table share one pool. Under load the boundary moves both ways, every answer is the
// same as without a cache, and no page is lost.
func TestKVAndRowsShareMemory(t *testing.T) {
	shareMemory(t, func(boundary string) *config.Config { return eventsWithTable(t, boundary) }, 0)
}

// The same with KV in a GPU's small memory first, and then in the pool that rows share.
func TestKVAndRowsShareMemoryOfAGPU(t *testing.T) {
	apptest.NeedGPU(t)
	dir := filepath.Join(t.TempDir(), "hstu")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := hstutest.Write(dir, hstutest.Spec{Hidden: 512, Layers: 2, Heads: 4, HeadDim: 128, Items: 50, MaxSeqLen: 200,
		Seed: 1}); err != nil {
		t.Fatal(err)
	}
	shareMemory(t, func(boundary string) *config.Config {
		return tableOfEvents(t, dir, "8MiB", config.Setting{Path: "device", Value: "cuda"},
			config.Setting{Path: "models[0].dtype", Value: "f32"},
			config.Setting{Path: "models[0].device_memory", Value: "8MiB"},
			config.Setting{Path: "cache.boundary", Value: boundary})
	}, 1e-4)
}

func shareMemory(t *testing.T, with func(boundary string) *config.Config, tolerance float64) {
	const users, visits, workers = 48, 4, 4
	var want [users][visits]string
	plain := with("fixed")
	plain.Models[0].HostMemory = config.Size{Bytes: 64 << 20}
	s, err := Load(t.Context(), plain, Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s.server.SetReady(true)
	for u := range want {
		for v := range want[u] {
			r := visit(u, v)
			r.User.Id = "" // nothing is kept
			if want[u][v], err = ranked(t.Context(), s, r); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	var log bytes.Buffer
	s, err = Load(t.Context(), with("climb"), Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	s.server.SetReady(true)
	both := s.loaded.of("m")[0].memory.shared
	if both == nil || both.divider == nil {
		t.Fatal("KV and rows have pools of their own")
	}
	begin := both.pool.Boundary()
	var answered, moved atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := 0; i < visits || moved.Load() == 0 && i < 30*visits; i++ { // until the controller has made a decision
				v := i % visits
				for u := w; u < users; u += workers {
					got, err := ranked(t.Context(), s, visit(u, v))
					answered.Add(1)
					if err != nil {
						t.Errorf("user %d, visit %d: %v", u, v, err)
					} else if apart := farApart(got, want[u][v]); apart > tolerance {
						t.Errorf("user %d, visit %d: %s, computed anew %s: %.2g apart, want at most %g", u, v, got, want[u][v], apart,
							tolerance)
					}
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for steps, seen := 0, int64(0); ; steps++ {
		select {
		case <-done:
		default:
			if n := answered.Load(); n >= seen+16 { // an epoch with enough requests for the controller
				seen = n
				if d := both.divider.Step(); d.From != d.To {
					moved.Add(1)
				}
			}
			both.pool.SetBoundary([]float64{0.1, 0.9, 0.5}[steps%3]) // farther than any controller would move it
			both.store.Trim()
			both.divider.Fill()
			continue
		}
		break
	}
	last := both.divider.Step() // on a fast machine the first step that has seen enough
	if last.From != last.To {
		moved.Add(1)
	}
	if moved.Load() == 0 {
		t.Errorf("the boundary was at %.3f and is at %.3f: the controller moved it not once", begin, last.To)
	}
	for side, p := range map[string]*pool.Pool{"KV": both.pool.For(pool.KV), "rows": both.pool.For(pool.Embeddings)} {
		if over := p.Over(); over > 0 {
			t.Errorf("%s own %d bytes beyond their part after the last decision", side, over)
		}
		if p.Stats().Used == 0 {
			t.Errorf("%s own nothing of the pool", side)
		}
	}
	if stats := s.tables.Table("items").Stats(); stats.Cache.Hits == 0 || stats.Missing+stats.Outage+stats.Broken > 0 {
		t.Errorf("the table served %+v", stats)
	}
	families, err := s.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]float64{}
	for _, f := range families {
		shown[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
	}
	if shown["grebe_pool_boundary"] != last.To {
		t.Errorf("grebe_pool_boundary is %v, the last decision %+v", shown["grebe_pool_boundary"], last)
	}
	t.Logf("%d answers; the controller moved the boundary %d times, it was at %.3f and is at %.3f; %+v", answered.Load(),
		moved.Load(), begin, last.To, s.tables.Table("items").Stats().Cache)
	if err := s.Close(); err != nil { // a pool reports pages that are still in use
		t.Error(err)
	}
	if !strings.Contains(log.String(), "share of embeddings") || !strings.Contains(log.String(), "kv_hits=") {
		t.Errorf("decisions are not in the log:\n%s", &log)
	}
}

// With boundary=fixed the memory is as configured. A model without a table, or with a mapped one, has its memory alone.
func TestWhoShares(t *testing.T) {
	cfg := eventsWithTable(t, "fixed")
	s, err := Load(t.Context(), cfg, Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	p := s.loaded.of("m")[0].memory.shared.pool
	if got := p.Boundary(); got < 0.49 || got > 0.51 || s.loaded.of("m")[0].memory.shared.divider != nil {
		t.Errorf("rows have %.3f of the memory, want half for good", got)
	}
	if used := p.For(pool.Embeddings).Stats(); used.Used < used.Total-8192 {
		t.Errorf("rows own %d of %d bytes", used.Used, used.Total)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*config.Config){
		"no table":  func(c *config.Config) { c.Models[0].ItemTable = "" },
		"no cache":  func(c *config.Config) { c.Tables[0].Cache = config.Size{} },
		"a file":    func(c *config.Config) { c.Tables[0].Store = "file" },
		"no memory": func(c *config.Config) { c.Models[0].HostMemory, c.Cache.HostMemory = config.Size{}, config.Size{} },
	} {
		c := *cfg
		c.Models, c.Tables = []config.Model{cfg.Models[0]}, []config.Table{cfg.Tables[0]}
		change(&c)
		if n := sharedRows(&c, &c.Models[0]); n != 0 {
			t.Errorf("%s: %d bytes are shared", name, n)
		}
	}
}

// Rows of a table are in the memory of the checkpoint that serves. A checkpoint that needs other memory is refused, and
// nothing changes.
func TestRowsStayWhenAnotherShapeComes(t *testing.T) {
	for _, boundary := range []string{"fixed", "climb"} {
		t.Run(boundary, func(t *testing.T) {
			cfg := eventsWithTable(t, boundary)
			other := apptest.WithoutRetrieval(t, cfg.Models[0].Path)
			spoil(t, filepath.Join(other, "config.json"), func(data []byte) []byte {
				return bytes.Replace(data, []byte(`"hstu_attn_num_layers":2`), []byte(`"hstu_attn_num_layers":1`), 1)
			})
			s, err := Load(t.Context(), cfg, Options{Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			s.server.SetReady(true)
			before, err := ranked(t.Context(), s, visit(1, 1))
			if err != nil {
				t.Fatal(err)
			}
			table := s.tables.Table("items")
			cache := table.Cache()
			moved := cfg.Models[0]
			moved.Path = other
			m, err := s.loader.open(t.Context(), func() (*config.Model, error) { return &moved, nil }, func(int64, int64) {})
			if err == nil {
				err = m.Retire(t.Context())
				t.Errorf("a checkpoint of another shape was taken, and retired: %v", err)
			} else if !strings.Contains(err.Error(), "restart") {
				t.Errorf("refused with %v", err)
			}
			if table.Cache() != cache {
				t.Fatal("the table's rows are cached elsewhere, in memory that is gone")
			}
			if after, err := ranked(t.Context(), s, visit(1, 1)); err != nil || after != before {
				t.Errorf("answers with %s, %v after it; want %s", after, err, before)
			}
		})
	}
}

// A reload is refused if the configuration names a table that was not there at the start.
func TestReloadWithANewTable(t *testing.T) {
	cfg := eventsWithTable(t, "climb")
	s, err := Load(t.Context(), cfg, Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l := newLoader(s, cfg)
	l.again = func() (*config.Config, error) {
		next := *cfg
		next.Models = slices.Clone(cfg.Models)
		next.Models[0].ItemTable = "new"
		return &next, nil
	}
	if _, err := l.Open(t.Context(), "m", func(int64, int64) {}); err == nil || !strings.Contains(err.Error(), "restart") {
		t.Errorf("got %v, want that it needs a restart", err)
	}
}

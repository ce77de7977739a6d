package app

import (
	"fmt"
	"hash/maphash"
	"time"

	"grebe/alloc"
	"grebe/app/divide"
	"grebe/compute"
	"grebe/embed"
	"grebe/internal/config"
	"grebe/internal/human"
	"grebe/kv"
	"grebe/model/hstu"
	"grebe/pool"
	"grebe/schedule"
	"grebe/serve"
)

// sharers returns, by table, the model whose memory also caches the table's rows: the first model of events that takes
// its items from the table and keeps KV in host memory.
func sharers(cfg *config.Config) map[string]*config.Model {
	out := map[string]*config.Model{}
	for i := range cfg.Models {
		mc := &cfg.Models[i]
		t := tableOf(cfg, mc.ItemTable)
		if t == nil || t.Store == "file" || t.Cache.Bytes == 0 || out[t.Name] != nil || hostBytes(cfg, mc) == 0 ||
			!hstu.Is(mc.Path) {
			continue
		}
		if described, err := hstu.ReadConfig(mc.Path); err == nil && described.Recomputes() == "" {
			out[t.Name] = mc
		}
	}
	return out
}

func tableOf(cfg *config.Config, name string) *config.Table {
	for i := range cfg.Tables {
		if name != "" && cfg.Tables[i].Name == name {
			return &cfg.Tables[i]
		}
	}
	return nil
}

// sharedRows returns the bytes for table rows in a model's pool; 0 if the rows have their own pool.
func sharedRows(cfg *config.Config, mc *config.Model) int64 {
	by := sharers(cfg)[mc.ItemTable]
	if mc.ItemTable == "" || by == nil || sharesWith(cfg, by).Name != sharesWith(cfg, mc).Name {
		return 0
	}
	return tableOf(cfg, mc.ItemTable).Cache.Bytes
}

// shared is a model's memory that also caches rows of its table.
type shared struct {
	pool  *pool.Pool // in host memory
	rows  int64      // bytes of the pool that the configuration gives to rows
	store *kv.Store
	above int64 // bytes of KV in the device's memory

	divided bool            // rows are cached in the pool
	divider *divide.Divider // nil: the boundary does not move
}

// divide caches the rows of a model's table in the model's memory. A controller moves the boundary.
func (m *Memory) divide(cfg *config.Config, mc *config.Model) error {
	both := m.shared
	table := m.app.tables.Table(mc.ItemTable)
	books := both.pool.Stats()
	share := float64(both.rows) / float64(books.Total)
	largest := share
	if cfg.Cache.Boundary != "fixed" {
		share, largest = alloc.Clip(share), alloc.MaxShare
	}
	both.pool.SetBoundary(share)
	most := embed.RowsIn(int64(largest*float64(books.Total)), books.Page, table.RowBytes())
	cache, err := embed.NewCache(both.pool.For(pool.Embeddings), embed.Config{
		Rows: embed.MinRows(most), MaxRows: most, RowBytes: table.RowBytes(), Policy: tableOf(cfg, mc.ItemTable).Policy,
	})
	if err != nil {
		return fmt.Errorf("item_table %s: rows in %s of memory shared with KV: %w", mc.ItemTable, human.Bytes(both.rows),
			err)
	}
	m.closers.add(func() error { cache.Close(); return nil })
	if err := table.SetCache(cache); err != nil {
		return err
	}
	both.divided = true
	m.app.log.Info("KV and rows share memory", "model", mc.Name, "table", mc.ItemTable, "memory", human.Bytes(books.Total),
		"rows", human.Round(share, 3), "boundary", cfg.Cache.Boundary)
	refiller := m.app.refill(cfg, mc.ItemTable, table, most, &m.closers)
	m.watch(table, refiller.Gathered)
	if cfg.Cache.Boundary == "fixed" {
		now, _, all := cache.Slabs()
		_, err = cache.Grow(all - now)
		m.closers.run(refiller.Run)
		return err
	}
	slo := time.Duration(cfg.SLOMillis) * time.Millisecond
	controller := &alloc.Climb{SLO: float64(slo) / float64(time.Millisecond)}
	both.divider, err = divide.New(divide.Config{
		Pool: both.pool, Rows: cache, KV: both.store, Controller: controller, SLO: slo, Log: m.app.log, Name: mc.Name,
		Above: both.above, Grown: refiller.Grown,
	}, share)
	if err != nil {
		return err
	}
	m.watch(table, func(b embed.Batch) { both.divider.Gathered(b.Hashes, b.Hits, b.Took) })
	m.closers.run(refiller.Run)
	m.drive(both.divider)
	return nil
}

// predictor provides the computing times of requests.
type predictor interface{ Model() schedule.PrefillModel }

// served returns a callback that reports a model's requests to a divider. KV that leaves the divided memory comes back
// at lowered bytes per second; 0: it is computed again.
func served(d *divide.Divider, shape compute.Shape, load predictor, lowered float64) func(serve.Served) {
	seed, token := maphash.MakeSeed(), int64(shape.ChunkBytes(1, false))
	return func(r serve.Served) {
		times := load.Model()
		ms := max(0, times.Predict(r.Events, r.Events*(r.Events+1)/2, 1)-times.Fixed-times.Request)
		if lowered > 0 {
			ms = min(ms, 1e3*float64(int64(r.Events)*token)/lowered)
		}
		q := divide.Request{
			Events: r.Events, KVBytes: int64(r.Events) * token, KVHit: r.Cached > 0,
			Saved: time.Duration(ms * float64(time.Millisecond)), Computing: r.Computing, Latency: r.Latency,
		}
		if r.User != "" {
			q.User = max(1, maphash.String(seed, r.User))
		}
		d.Done(q)
	}
}

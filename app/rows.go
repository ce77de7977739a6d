package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"grebe/compute"
	"grebe/dispatch"
	"grebe/engine"
	"grebe/internal/config"
	"grebe/internal/human"
	"grebe/model/hstu"
	"grebe/pool"
)

// besideRows returns the part of a model's device memory that KV has beside the cached rows of its item table.
func besideRows(mc *config.Model, bytes int64, shape compute.Shape) (int64, error) {
	if mc.DeviceRows.IsZero() || bytes == 0 {
		return bytes, nil
	}
	above := bytes - mc.DeviceRows.Of(bytes)
	if above <= 0 {
		return 0, fmt.Errorf("device_rows: %s of the %s that device_memory has: give less, or a share such as 50%%",
			human.Bytes(mc.DeviceRows.Of(bytes)), human.Bytes(bytes))
	}
	if err := checkSize(above, shape); err != nil {
		return 0, fmt.Errorf("beside device_rows: %w", err)
	}
	return above, nil
}

// deviceRows is a cache of a table's rows in the memory of a device, on pages of the pool that KV has too.
type deviceRows struct {
	compute.RowCache
	table string
	most  int // items that it may have
	held  *rowPages
}

// itemsFor returns for how many items a cache has room: those of a later checkpoint may be more.
func itemsFor(items int) int { return items + items/4 + 1024 }

// lacks says why a checkpoint that shares the memory cannot use the cache, or nothing.
func (r *deviceRows) lacks(table string, items int) string {
	switch {
	case r.table != table:
		return fmt.Sprintf("it caches those of item_table %s", r.table)
	case items > r.most:
		return fmt.Sprintf("it has room for %d items, and the checkpoint has %d", r.most, items)
	}
	return ""
}

// cacheRows caches rows of a model's item table in the device's memory, as device_rows says.
func (m *Memory) cacheRows(cfg *config.Config, mc *config.Model, weights *hstu.Model) error {
	memory := m.app.device.Memory()
	item := weights.Config().ItemTable
	if mc.DeviceRows.IsZero() || !cfg.Holds() || memory.Host() == memory {
		return nil
	}
	if !weights.Caches(item) {
		return errors.New("device_rows: the model's rows go into an MLP on the host: leave it out")
	}
	if m.rows == nil {
		if err := m.openRows(cfg, mc, weights, memory); err != nil {
			return fmt.Errorf("device_rows: %w", err)
		}
	}
	if why := m.rows.lacks(mc.ItemTable, weights.Config().Items); why != "" {
		m.app.log.Warn("rows are sent with every batch until a restart: the memory in use is that of the checkpoint before",
			"model", mc.Name, "why", why)
		return nil
	}
	return weights.SetCache(item, m.rows.RowCache)
}

func (m *Memory) openRows(cfg *config.Config, mc *config.Model, weights *hstu.Model, memory compute.Memory) error {
	device, ok := m.app.device.(compute.RowCacher)
	if !ok {
		return fmt.Errorf("%s caches no rows", m.app.device.Name())
	}
	pages, err := m.pagesOfRows(cfg, mc, memory)
	if err != nil {
		return err
	}
	items, format := itemsFor(weights.Config().Items), weights.RowFormat(weights.Config().ItemTable)
	rowBytes := 4 * weights.Shape().Hidden
	if format == compute.BF16 {
		rowBytes = 2 * weights.Shape().Hidden
	}
	most := m.largestRows(cfg, pages, items, rowBytes)
	if most == 0 {
		return errors.New("the memory was opened without: it needs a restart")
	}
	cache, err := device.RowCache(items, weights.Shape().Hidden, format, most)
	if err != nil {
		return err
	}
	held := &rowPages{cache: cache, pool: pages, rowBytes: rowBytes, most: int(most / int64(cache.PageBytes()))}
	stop := m.app.tables.Table(mc.ItemTable).Listen(func(keys []uint64) { cache.Changed(hstu.RowsOf(keys)) })
	m.rows = &deviceRows{cache, mc.ItemTable, items, held}
	m.app.rows.add(m.rows)
	m.closers.add(func() error {
		stop()
		m.app.rows.remove(m.rows)
		err := cache.Close()
		held.free()
		return err
	})
	own := pages.Stats().Total
	if n, err := held.Grow(int(own / int64(held.SlabBytes()))); err != nil || n == 0 {
		return fmt.Errorf("%d pages in %s of device_memory: %w", n, human.Bytes(own), err)
	}
	stats := cache.Stats()
	m.app.log.Info("rows are cached on the device", "model", mc.Name, "table", mc.ItemTable, "rows", stats.Rows,
		"items", weights.Items(), "memory", human.Bytes(stats.Bytes))
	return nil
}

// pagesOfRows returns the pages for rows: of the pool that KV has, or of one of their own where no KV is kept.
func (m *Memory) pagesOfRows(cfg *config.Config, mc *config.Model, memory compute.Memory) (*pool.Pool, error) {
	if m.pages != nil {
		return m.pages.For(pool.Embeddings), nil
	}
	bytes, err := m.deviceBytes(cfg, mc, memory)
	if err != nil {
		return nil, err
	}
	p, err := pool.Over(memory, mc.DeviceRows.Of(bytes), 64<<10)
	if err != nil {
		return nil, err
	}
	m.closers.add(p.Close)
	return p, nil
}

// ahead runs jobs of a model of events and has their rows fetched before their batches.
type ahead struct {
	*dispatch.Dispatcher
	model *hstu.Model
}

// waits is the least predicted time in the queue, in milliseconds, for which rows are fetched to the device ahead. A
// job that begins at once fetches them itself.
const waits = 1

// Do is that of serve.Runner. A job joins the queue when its rows are on the host. So no batch holds an engine while it
// waits for a store.
func (a ahead) Do(ctx context.Context, j *engine.Job) (*engine.Result, error) {
	var tokens, content []int32
	for i := range j.Plan.Segments {
		cached, _ := j.Cached(i)
		s := &j.Plan.Segments[i]
		tokens = append(tokens, s.Tokens[cached:]...)
		content = append(content, s.Content[min(cached*a.model.Width(), len(s.Content)):]...)
	}
	if ms, _ := a.Dispatcher.Backlog(); ms >= waits {
		a.model.Prefetch(tokens, content)
	}
	defer a.model.Hold(ctx, tokens, content)()
	return a.Dispatcher.Do(ctx, j)
}

// Backlog is that of the Dispatcher, or the time until the rows that stores are being asked for are there, if that is
// longer.
func (a ahead) Backlog() (ms float64, requests int) {
	ms, requests = a.Dispatcher.Backlog()
	return max(ms, a.model.Fetching().Seconds()*1e3), requests
}

// rowCaches are those of all models. It reports them as metrics.
type rowCaches struct {
	mu   sync.Mutex
	list []*deviceRows

	rows, bytes, hits, misses, evictions, ahead, fetched *prometheus.Desc
}

func newRowCaches() *rowCaches {
	one := []string{"table"}
	return &rowCaches{
		rows:  prometheus.NewDesc("grebe_embed_device_rows", "Rows of a table that fit into devices' memory.", one, nil),
		bytes: prometheus.NewDesc("grebe_embed_device_bytes", "Memory of devices that rows of a table have.", one, nil),
		hits: prometheus.NewDesc("grebe_embed_device_hits_total",
			"Rows of batches that were found in a device's memory; those that a batch repeats count once.", one, nil),
		misses: prometheus.NewDesc("grebe_embed_device_misses_total",
			"Rows of batches that a device's memory did not have, and that were fetched from the table.", one, nil),
		evictions: prometheus.NewDesc("grebe_embed_device_evictions_total",
			"Rows that left a device's memory to make room.", one, nil),
		ahead: prometheus.NewDesc("grebe_embed_device_prefetched_total",
			"Rows that were fetched to a device's memory while their request waited.", one, nil),
		fetched: prometheus.NewDesc("grebe_embed_device_fetched_bytes_total", "Bytes of rows that were sent to devices.",
			one, nil),
	}
}

func (c *rowCaches) add(r *deviceRows) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, r)
}

func (c *rowCaches) remove(r *deviceRows) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = slices.DeleteFunc(c.list, func(o *deviceRows) bool { return o == r })
}

// Describe implements prometheus.Collector.
func (c *rowCaches) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.rows, c.bytes, c.hits, c.misses, c.evictions, c.ahead, c.fetched} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *rowCaches) Collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sums := map[string]compute.RowStats{}
	for _, r := range c.list {
		sum, s := sums[r.table], r.Stats()
		sum.Rows, sum.Bytes, sum.Hits, sum.Misses = sum.Rows+s.Rows, sum.Bytes+s.Bytes, sum.Hits+s.Hits, sum.Misses+s.Misses
		sum.Evictions, sum.Fetched = sum.Evictions+s.Evictions, sum.Fetched+s.Fetched
		sum.Prefetched += s.Prefetched
		sums[r.table] = sum
	}
	for table, s := range sums {
		for _, v := range []struct {
			desc  *prometheus.Desc
			kind  prometheus.ValueType
			value int64
		}{
			{c.rows, prometheus.GaugeValue, int64(s.Rows)}, {c.bytes, prometheus.GaugeValue, s.Bytes},
			{c.hits, prometheus.CounterValue, s.Hits}, {c.misses, prometheus.CounterValue, s.Misses},
			{c.evictions, prometheus.CounterValue, s.Evictions}, {c.fetched, prometheus.CounterValue, s.Fetched},
			{c.ahead, prometheus.CounterValue, s.Prefetched},
		} {
			out <- prometheus.MustNewConstMetric(v.desc, v.kind, float64(v.value), table)
		}
	}
}

package app

import (
	"errors"
	"fmt"

	"grebe/compute"
	"grebe/internal/config"
	"grebe/internal/human"
	"grebe/model/hstu"
	"grebe/pool"
)

// besideTables returns the part of a model's device memory that KV and rows of the item table have beside the cached
// rows of other tables.
func besideTables(mc *config.Model, bytes int64) (int64, error) {
	left := bytes
	for i := range mc.Tables {
		left -= mc.Tables[i].DeviceRows.Of(bytes)
	}
	if left <= 0 && left < bytes {
		return 0, fmt.Errorf("tables[].device_rows: all of the %s that device_memory has: give less, or a share such as 5%%",
			human.Bytes(bytes))
	}
	return left, nil
}

// cacheTables caches rows of a model's tables beside the item table in the device's memory, as their device_rows say.
// Each has memory of its own, which it keeps.
func (m *Memory) cacheTables(cfg *config.Config, mc *config.Model, weights *hstu.Model) error {
	memory := m.app.device.Memory()
	if !cfg.Holds() || memory.Host() == memory {
		return nil
	}
	for i := range mc.Tables {
		t := &mc.Tables[i]
		rows := weights.Sourced()[t.Name]
		if t.DeviceRows.IsZero() {
			continue
		}
		if !weights.Caches(t.Name) {
			return fmt.Errorf("tables[%d].device_rows: rows of %s are computed with on the host: leave it out", i, t.Name)
		}
		if m.tables[t.Name] == nil {
			if err := m.openTable(cfg, mc, t, weights, memory); err != nil {
				return fmt.Errorf("tables[%d].device_rows: %w", i, err)
			}
		}
		cache := m.tables[t.Name]
		if why := cache.lacks(t.Table, rows); why != "" {
			m.app.log.Warn("rows are sent with every batch until a restart: the memory in use is that of the checkpoint before",
				"model", mc.Name, "why", why)
			continue
		}
		if err := weights.SetCache(t.Name, cache.RowCache); err != nil {
			return err
		}
	}
	return nil
}

func (m *Memory) openTable(cfg *config.Config, mc *config.Model, t *config.ModelTable, weights *hstu.Model,
	memory compute.Memory) error {
	device, ok := m.app.device.(compute.RowCacher)
	if !ok {
		return fmt.Errorf("%s caches no rows", m.app.device.Name())
	}
	if m.deviceTotal == 0 { // no KV is kept
		if _, err := m.deviceBytes(cfg, mc, memory); err != nil {
			return err
		}
	}
	bytes := t.DeviceRows.Of(m.deviceTotal)
	rows := itemsFor(weights.Sourced()[t.Name])
	cache, err := device.RowCache(rows, weights.Shape().Hidden, weights.RowFormat(t.Name), bytes)
	if err != nil {
		return err
	}
	pages, err := pool.Over(memory, bytes, min(cache.PageBytes(), 64<<10))
	if err != nil {
		return errors.Join(err, cache.Close())
	}
	runs := pages.AllocRuns(nil, cache.PageBytes(), int(bytes/int64(cache.PageBytes())))
	own := &deviceRows{RowCache: cache, table: t.Table, most: rows}
	stop := m.app.tables.Table(t.Table).Listen(func(keys []uint64) { cache.Changed(hstu.RowsOf(keys)) })
	m.app.rows.add(own)
	m.closers.add(func() error {
		stop()
		m.app.rows.remove(own)
		err := cache.Close()
		pages.FreeRuns(runs)
		return errors.Join(err, pages.Close())
	})
	var blocks []compute.Block
	for _, r := range runs {
		blocks = append(blocks, r.Block)
	}
	if n, err := cache.Grow(blocks); err != nil || n == 0 {
		return fmt.Errorf("%d pages in %s: %w", n, human.Bytes(bytes), err)
	}
	if m.tables == nil {
		m.tables = map[string]*deviceRows{}
	}
	m.tables[t.Name] = own
	stats := cache.Stats()
	m.app.log.Info("rows are cached on the device", "model", mc.Name, "table", t.Table, "rows", stats.Rows,
		"of", weights.Sourced()[t.Name], "memory", human.Bytes(stats.Bytes))
	return nil
}

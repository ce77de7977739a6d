package app

import (
	"grebe/app/divide"
	"grebe/embed"
	"grebe/internal/config"
	"grebe/internal/datadir"
)

// refill returns a Refiller of a table that has a cache, which is reported as metrics until to is closed. The caller
// has the table's batches reported to it and runs it. most is how many rows the cache may grow to.
func (a *App) refill(cfg *config.Config, name string, t *embed.Table, most int, to *closers) *divide.Refiller {
	r := divide.NewRefiller(divide.RefillConfig{
		Table: t, RowBytes: t.RowBytes(), Rows: t.Cache().Rows, Most: most, Name: name,
		File: datadir.HotRows(cfg.DataDir, name), Log: a.log,
	})
	remove := a.divided.Add(r)
	to.add(func() error { remove(); return nil })
	return r
}

// refillTables fetches rows in the background into the caches that belong to tables, and to no model's memory.
func (a *App) refillTables(tables *embed.Tables, cfg *config.Config) {
	for _, name := range tables.Names() {
		t := tables.Table(name)
		if t.Cache() == nil {
			continue
		}
		r := a.refill(cfg, name, t, t.Cache().Rows(), &a.closers)
		t.Watch(r.Gathered)
		a.closers.run(r.Run)
	}
}

package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"grebe/internal/config"
	"grebe/internal/human"
	"grebe/model"
	"grebe/model/hstu"
	"grebe/prompt"
	"grebe/reuse"
	"grebe/schedule"
	"grebe/serve"
)

// openEvents opens a model of events. It keeps users' KV only if a returning user can use it.
func (m *Model) openEvents(ctx context.Context, cfg *config.Config, mc *config.Model) (serve.Model, error) {
	var none serve.Model
	start := time.Now()
	if p := &mc.Prefix; p.Policy != "" && p.Policy != "user" || slices.Contains(p.Orders, "item") {
		return none, errors.New("prefix: a model of events puts the user first: want policy user, or no prefix at all")
	}
	c, err := m.openCheckpoint(mc, false, func() (*checkpoint, error) { return m.loadEvents(ctx, cfg, mc) })
	if err != nil {
		return none, err
	}
	weights, d := c.events, c.queue
	runs := ahead{d, weights}
	builder, err := prompt.New(prompt.Config{}, nil, weights.Vocab())
	if err != nil {
		return none, err
	}
	var cache *reuse.Cache
	if m.memory.store != nil {
		opt := m.options(d, weights.Shape())
		opt.Policy, opt.Least, opt.Load = schedule.User, weights.LeastReused(), runs
		cache = m.openCache(builder, opt, doing(cfg, d))
	}
	m.app.log.Info("model loaded", "model", mc.Name, "architecture", hstu.Architecture, "dtype", weights.DType(),
		"items", weights.Items(),
		"checkpoint", human.Bytes(weights.CheckpointBytes()), "weights", human.Bytes(weights.Bytes()),
		"seconds", human.Seconds(time.Since(start)))
	report := m.memory.reports(weights.Shape(), d)
	runner := serve.Runner(d)
	if len(weights.Sourced()) > 0 {
		runner = runs
	}
	if divider := m.memory.deviceDivider; divider != nil {
		runner = newRowCounter(runner, weights, divider)
	}
	return serve.Model{
		Name: mc.Name, Runner: runner, Queue: d, Admit: d.Admit, Prompt: builder, Cache: cache, Disk: m.memory.disk,
		Reads: serve.Events(weights, report),
		Vocab: weights.Vocab(), Positions: weights.MaxPositions(), Architecture: hstu.Architecture,
		DType: weights.DType().String(),
	}, nil
}

// loadEvents is loadTexts for a model of events.
func (m *Model) loadEvents(ctx context.Context, cfg *config.Config, mc *config.Model) (*checkpoint, error) {
	if mc.Weights != "auto" && mc.Weights != "" {
		return nil, fmt.Errorf("model %q: weights: %s is for models of texts, and this is one of events", mc.Name,
			mc.Weights)
	}
	sources, err := m.app.sources(mc)
	if err != nil {
		return nil, err
	}
	weights, err := hstu.OpenWith(mc.Path, m.app.device, model.Options{
		DType: mc.DType, KV: mc.KVDType, Progress: m.app.telling(ctx, mc.Name, m.progress), Context: ctx,
		Warn: func(text string) { m.app.log.Warn(text, "model", mc.Name) }}, sources)
	if err != nil {
		return nil, err
	}
	m.closers.add(weights.Close)
	m.checkpoint = weights.CheckpointBytes()
	why := weights.Config().Recomputes()
	if why == "" {
		if err := m.openMemory(cfg, mc, weights.Shape(), m.app.device.Memory()); err != nil {
			return nil, err
		}
	} else {
		if err := m.checkRows(mc.Name, nil); err != nil {
			return nil, err
		}
		m.app.log.Warn("this model caches no KV: every request is computed in full", "model", mc.Name, "why", why)
	}
	if both := m.memory.shared; both != nil && !both.divided {
		if err := m.memory.divide(cfg, mc); err != nil {
			return nil, err
		}
	}
	if err := m.memory.cacheRows(cfg, mc, weights); err != nil {
		return nil, err
	}
	if err := m.memory.cacheTables(cfg, mc, weights); err != nil {
		return nil, err
	}
	if cfg.Cluster.Name != "" {
		weights.CountShards() // once it is known what is cached where
	}
	stop := weights.HoldRows()
	m.closers.add(func() error { stop(); return nil })
	if err := m.memory.divideDevice(cfg, mc); err != nil {
		return nil, err
	}
	if divider := m.memory.deviceDivider; divider != nil {
		weights.WatchItems(divider.Fetched)
	}
	d, err := m.openDispatcher(ctx, cfg, []replica{{weights, m.app.device}})
	if err != nil {
		return nil, err
	}
	return &checkpoint{events: weights, memory: m.memory, queue: d}, nil
}

// sources returns where the rows of a model's tables come from, by the names of the model's tables.
func (a *App) sources(mc *config.Model) (map[string]hstu.RowSource, error) {
	described, err := hstu.ReadConfig(mc.Path)
	if err != nil {
		return nil, err
	}
	out := map[string]hstu.RowSource{}
	for _, t := range tablesOf(mc, described) {
		table := a.tables.Table(t.Table)
		if out[t.Name] != nil {
			return nil, fmt.Errorf("%s %s: table %s of the model has rows of another one already", t.key, t.Table, t.Name)
		}
		if table == nil {
			return nil, fmt.Errorf("%s %s: restart the server to open this table", t.key, t.Table)
		}
		out[t.Name] = hstu.FromTable(table)
	}
	return out, nil
}

// modelTable is a table of a model whose rows are in one of tables.
type modelTable struct {
	config.ModelTable
	key string // of the configuration
}

// tablesOf returns which tables of a model come from tables.
func tablesOf(mc *config.Model, described *hstu.Config) (out []modelTable) {
	if mc.ItemTable != "" {
		out = append(out, modelTable{config.ModelTable{Name: described.ItemTable, Table: mc.ItemTable}, "item_table"})
	}
	for i, t := range mc.Tables {
		out = append(out, modelTable{t, fmt.Sprintf("tables[%d].table", i)})
	}
	return out
}

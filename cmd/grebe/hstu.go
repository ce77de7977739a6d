package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"grebe/internal/config"
	"grebe/model"
	"grebe/model/hstu"
	"grebe/prompt"
	"grebe/schedule"
	"grebe/server"
	"grebe/server/reuse"
)

// openEvents opens a model of events. Its users' KV is kept only where a returning user can use it.
func (s *unit) openEvents(ctx context.Context, cfg *config.Config, mc *config.Model, log *slog.Logger) (server.Model, error) {
	var none server.Model
	start := time.Now()
	if p := &mc.Prefix; p.Policy != "" && p.Policy != "user" || slices.Contains(p.Orders, "item") {
		return none, errors.New("prefix: a model of events puts the user first: want policy user, or no prefix at all")
	}
	m, err := hstu.Open(mc.Path, s.device, model.Options{DType: mc.DType, KV: mc.KVDType, Progress: s.telling(ctx, mc.Name, log), Context: ctx})
	if err != nil {
		return none, err
	}
	s.onClose(m.Close)
	s.checkpoint += m.CheckpointBytes()
	if err := s.itemTable(mc, m); err != nil {
		return none, err
	}
	builder, err := prompt.New(prompt.Config{}, nil, m.Vocab())
	if err != nil {
		return none, err
	}
	why := m.Config().Recomputes()
	if why == "" {
		if err := s.openMemory(cfg, mc, m.Shape(), s.device.Memory(), log); err != nil {
			return none, err
		}
	} else {
		if err := s.checkRows(mc.Name, nil); err != nil {
			return none, err
		}
		log.Warn("every request of this model is computed anew", "model", mc.Name, "why", why)
	}
	both := s.memory.shared
	if both != nil && !both.divided {
		if err := s.memory.divide(cfg, mc, both, log); err != nil {
			return none, err
		}
	}
	d, err := s.openDispatcher(ctx, cfg, []replica{{m, s.device}})
	if err != nil {
		return none, err
	}
	var cache *reuse.Cache
	if s.memory.store != nil {
		opt := s.options(d, m.Shape())
		opt.Policy = schedule.User
		cache = s.openCache(builder, opt, d.Do, log)
	}
	log.Info("model loaded", "model", mc.Name, "architecture", hstu.Architecture, "dtype", m.DType(), "items", m.Items(),
		"checkpoint", inBytes(m.CheckpointBytes()), "weights", inBytes(m.Bytes()), "seconds", seconds(time.Since(start)))
	out := server.Model{
		Name: mc.Name, Runner: d, Admit: d.Admit, Prompt: builder, Cache: cache, Disk: s.memory.disk, Events: m,
		Vocab: m.Vocab(), Positions: m.MaxPositions(), Architecture: hstu.Architecture, DType: m.DType().String(),
	}
	if both != nil && both.divider != nil {
		out.Served = served(both.divider, m.Shape(), d)
	}
	return out, nil
}

// itemTable makes a model's items have the rows of the table that the configuration names.
func (s *stack) itemTable(mc *config.Model, m *hstu.Model) error {
	if mc.ItemTable == "" {
		if m.NeedsRows() {
			return errors.New("the checkpoint has no item table: name one as item_table")
		}
		return nil
	}
	table := s.tables.Table(mc.ItemTable)
	if table == nil {
		return fmt.Errorf("item_table %s: tables are opened when the server starts: it needs a restart", mc.ItemTable)
	}
	rows, err := m.FromTable(table)
	if err != nil {
		return fmt.Errorf("item_table %s: %w", mc.ItemTable, err)
	}
	m.SetRows(rows)
	return nil
}

package serve

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"grebe/ahead"
	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/compute"
	"grebe/model/hstu"
	"grebe/plan"
	"grebe/pool"
	"grebe/reuse"
	"grebe/schedule"
)

// A service computes the items of its catalog by itself or on request, and reports its progress.
func TestItemsAreIndexed(t *testing.T) {
	for _, off := range []bool{false, true} {
		w := newCacheWorldOver(t, near, 1, false, func(m compute.Memory, shape compute.Shape) (*pool.Pool, error) {
			return pool.Over(m, int64(shape.ChunkBytes(4000, false)), 4096)
		})
		items := catalog.New(catalog.Options{})
		for i := range 50 {
			if _, err := items.PutItem(&grebev1.Item{Id: fmt.Sprint(i), Tokens: []int32{int32(20 + i), 21, 22}}); err != nil {
				t.Fatal(err)
			}
		}
		s, err := New(Config{Models: []Model{w.model}, Catalog: items, SLO: time.Hour, AheadOff: off})
		must(t, err)
		defer s.Close()
		s.RunAhead()
		if _, err := s.IndexNow("other"); AsError(err).code != NotFound {
			t.Errorf("a model that is not there: %v", err)
		}
		if off {
			if p := s.Index()[0]; p.State != ahead.Idle {
				t.Errorf("indexing is off and %s", p.State)
			}
			p, err := s.IndexNow("m")
			if must(t, err); p[0].Model != "m" {
				t.Errorf("progress of model %q, want m", p[0].Model)
			}
		}
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			p := s.Index()[0]
			if p.State == ahead.Done && p.Items == 50 && p.Computed == 50 && p.Left == 0 {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("progress %+v after a minute", p)
			}
		}
		if n := w.cache.Stats(plan.Item).Entries; n != 50 {
			t.Errorf("%d items are cached, want 50", n)
		}
		families, err := s.Registry().Gather()
		must(t, err)
		var got strings.Builder
		for _, f := range families {
			for _, m := range f.Metric {
				if strings.HasPrefix(f.GetName(), "grebe_index_") && m.GetGauge().GetValue()+m.GetCounter().GetValue() > 0 {
					fmt.Fprintln(&got, f.GetName(), m.Label[len(m.Label)-1].GetValue(),
						m.GetGauge().GetValue()+m.GetCounter().GetValue())
				}
			}
		}
		want := "grebe_index_items done 50\ngrebe_index_items_total m 50\ngrebe_index_state done " +
			"1\ngrebe_index_tokens_total m 150\n"
		if got.String() != want {
			t.Errorf("metrics %s; want %s", got.String(), want)
		}
		s.EndReloads()
		if _, err := s.IndexNow(""); AsError(err).code != Unavailable {
			t.Errorf("asked at the end: %v", err)
		}
	}
}

// Items are computed only for models that use their KV.
func TestModelsThatKeepItems(t *testing.T) {
	w := newCacheWorld(t, 1, false)
	of := func(change func(m *Model)) *Model {
		m := w.model
		change(&m)
		return &m
	}
	policy := func(p schedule.Policy) *Model {
		return of(func(m *Model) {
			m.Cache = reuse.New(m.Prompt, reuse.Options{Store: w.store, Pool: w.pool, Shape: w.shape, Policy: p})
		})
	}
	for name, c := range map[string]struct {
		model *Model
		want  bool
	}{
		"ordinary":   {of(func(*Model) {}), true},
		"no cache":   {of(func(m *Model) { m.Cache = nil }), false},
		"events":     {of(func(m *Model) { m.Reads = Events(&hstu.Model{}, nil) }), false},
		"user first": {of(func(m *Model) { m.Orders = schedule.Of(plan.UserFirst) }), false},
		"blended": {of(func(m *Model) {
			m.Orders, m.Blend = schedule.Of(plan.UserFirst), &reuse.Blend{Auto: true}
		}), true},
		"item first":     {of(func(m *Model) { m.Orders = schedule.Of(plan.ItemFirst) }), true},
		"policy user":    {policy(schedule.User), false},
		"policy none":    {policy(schedule.None), false},
		"policy of BAT":  {policy(schedule.BAT), true},
		"both in orders": {of(func(m *Model) { m.Orders = schedule.Of(plan.UserFirst, plan.ItemFirst) }), true},
	} {
		if got := keepsItems(c.model); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

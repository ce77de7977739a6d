package serve

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// The metrics compare eviction with LRU: the hits of both, and the remaining credit. A policy without a floor has
// none of them.
func TestMetricsOfEviction(t *testing.T) {
	for _, policy := range []string{"default", "lru"} {
		w := newCacheWorld(t, 3, false)
		must(t, w.store.SetPolicy(policy))
		reg := prometheus.NewRegistry()
		s, err := New(Config{Models: []Model{w.model}, Registry: reg})
		must(t, err)
		req := w.request("item")
		for range 3 {
			if _, err := s.Rank(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}
		w.cache.Settle()
		got := map[string]float64{}
		parser := expfmt.NewTextParser(model.LegacyValidation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(exposed(t, s)))
		must(t, err)
		for name, f := range families {
			if !strings.HasPrefix(name, "grebe_eviction_") {
				continue
			}
			for _, m := range f.Metric {
				key := name
				for _, l := range m.Label {
					key += " " + l.GetValue()
				}
				got[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
		floor, ok := w.cache.Floor()
		if policy == "lru" {
			if ok || len(got) > 0 {
				t.Errorf("LRU has metrics of a floor: %v", got)
			}
			continue
		}
		want := map[string]float64{
			"grebe_eviction_hit_bytes_total own": float64(floor.Hits),
			"grebe_eviction_hit_bytes_total lru": float64(floor.LRUHits),
			"grebe_eviction_forced_bytes_total":  float64(floor.Forced),
			"grebe_eviction_credit_bytes":        floor.Credit,
			"grebe_eviction_lent_bytes":          float64(floor.Lent),
		}
		if !ok || floor.Hits == 0 || floor.LRUHits == 0 || floor.Credit == 0 {
			t.Fatalf("the store stands at %+v, %v", floor, ok)
		}
		for name, value := range want {
			if v, ok := got[name]; !ok || v != value {
				t.Errorf("%s is %v (%v), want %v", name, v, ok, value)
			}
		}
	}
}

package serve

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"grebe/generate"
)

// snapshotMetrics reports the age of the items that models generate, and the versions that are kept.
type snapshotMetrics struct {
	models             []*slot
	keeper             *generate.Keeper // nil: no versions
	age, kept, damaged *prometheus.Desc
}

func newSnapshotMetrics(models []*slot, keeper *generate.Keeper) *snapshotMetrics {
	return &snapshotMetrics{models, keeper,
		prometheus.NewDesc("grebe_catalog_version_age_seconds",
			"Age of the catalog's version that items are generated of; of the oldest, where models differ.", nil, nil),
		prometheus.NewDesc("grebe_catalog_versions", "Versions of the catalog that can be activated.", nil, nil),
		prometheus.NewDesc("grebe_catalog_damaged_total", "Files of the catalog's versions that were found torn or damaged.",
			nil, nil)}
}

// Describe implements prometheus.Collector.
func (m *snapshotMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- m.age
	out <- m.kept
	out <- m.damaged
}

// Collect implements prometheus.Collector.
func (m *snapshotMetrics) Collect(out chan<- prometheus.Metric) {
	oldest := time.Time{}
	for _, sl := range m.models {
		if s := sl.serving().snapshot(); s != nil && (oldest.IsZero() || s.Created.Before(oldest)) {
			oldest = s.Created
		}
	}
	if !oldest.IsZero() {
		out <- prometheus.MustNewConstMetric(m.age, prometheus.GaugeValue, time.Since(oldest).Seconds())
	}
	if m.keeper == nil {
		return
	}
	out <- prometheus.MustNewConstMetric(m.kept, prometheus.GaugeValue, float64(len(m.keeper.Versions())))
	out <- prometheus.MustNewConstMetric(m.damaged, prometheus.CounterValue, float64(m.keeper.Damaged()))
}

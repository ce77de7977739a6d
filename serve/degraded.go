package serve

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"grebe/internal/human"
)

// Problems describes, for people, problems with the disks and stores of the service. Requests are still answered, but
// answers may be worse, or changes are refused.
func (s *Service) Problems() []string {
	var out []string
	if err := s.catalog.Failed(); err != nil {
		out = append(out, fmt.Sprintf("%v; %s to change it refused so far", err,
			human.Count(int64(s.refused.Load()), "request")))
	}
	if s.cfg.Users != nil {
		if err := s.cfg.Users.Failing(); err != nil {
			out = append(out, fmt.Sprintf("the store of users does not answer, requests that name a stored user get 503: %v",
				err))
		}
	}
	if s.cfg.Versions != nil {
		if err := s.cfg.Versions.Failing(); err != nil {
			out = append(out, fmt.Sprintf("versions of the catalog are not on disk, and are gone after a restart: %v", err))
		}
	}
	for _, sl := range s.served {
		m := sl.serving()
		if m.Disk == nil {
			continue
		}
		if err := m.Disk.Failing(); err != nil {
			out = append(out, fmt.Sprintf("model %s: KV on disk: %v", m.Name, err))
		}
	}
	return append(out, s.cfg.Tables.Problems()...)
}

// degradedMetrics count problems.
func (s *Service) degradedMetrics() []prometheus.Collector {
	return []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "grebe_degraded", Help: "Problems with what the server keeps, " +
			"which readiness lists."},
			func() float64 { return float64(len(s.Problems())) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "grebe_catalog_refused_total", Help: "Requests to change the catalog that were refused since its disk " +
				"failed."},
			func() float64 { return float64(s.refused.Load()) }),
	}
}

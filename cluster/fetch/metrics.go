package fetch

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"grebe/cluster/peer"
)

// Metrics are those of all Fetchers of a process. nil reports nothing.
type Metrics struct {
	seconds  *prometheus.HistogramVec
	received prometheus.Counter
}

// NewMetrics registers the metrics. sent returns the bytes that this process has sent to others.
func NewMetrics(r prometheus.Registerer, sent func() int64) (*Metrics, error) {
	m := &Metrics{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "grebe_peer_fetch_seconds", Help: "Time of requests to other nodes for KV. The outcome is the worst one of " +
				"the request's entries.",
			Buckets: prometheus.ExponentialBuckets(1e-4, 2, 15),
		}, []string{"peer", "outcome"}),
		received: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "grebe_peer_bytes_total", Help: bytesHelp, ConstLabels: prometheus.Labels{"direction": "received"},
		}),
	}
	out := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "grebe_peer_bytes_total", Help: bytesHelp, ConstLabels: prometheus.Labels{"direction": "sent"},
	}, func() float64 { return float64(sent()) })
	for _, c := range []prometheus.Collector{m.seconds, m.received, out} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

const bytesHelp = "Bytes of KV that other nodes sent, or got."

func (m *Metrics) fetched(node string, worst peer.Status, took time.Duration, bytes int64) {
	if m == nil {
		return
	}
	m.seconds.WithLabelValues(node, worst.String()).Observe(took.Seconds())
	m.received.Add(float64(bytes))
}

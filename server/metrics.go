package server

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"grebe/serve"
)

// metrics are the server's own metrics. Labels are bounded: operations and status codes.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	batches  *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "grebe_requests_total", Help: "Requests answered, by operation and HTTP status."}, []string{"op", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "grebe_request_seconds", Help: "Time to answer a request.", Buckets: serve.Latencies}, []string{"op"}),
	}
	m.batches = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "grebe_batch_lines_total", Help: "Requests of batches that have a result, by outcome: answered or failed."},
		[]string{"outcome"})
	for _, c := range []prometheus.Collector{m.requests, m.seconds, m.batches} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	m.begin()
	return m, nil
}

// begin creates the counters that alerts watch. A counter that appears with its first failure has no rate for it, so
// the alert would miss that failure.
func (m *metrics) begin() {
	for _, op := range []string{"rank", "recommend"} {
		m.requests.WithLabelValues(op, "200")
		m.requests.WithLabelValues(op, "500")
	}
}

func (m *metrics) answered(op string, status int, took time.Duration) {
	m.requests.WithLabelValues(op, strconv.Itoa(status)).Inc()
	m.seconds.WithLabelValues(op).Observe(took.Seconds())
}

package serve

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	grebev1 "grebe/api/grebe/v1"
	"grebe/engine"
	"grebe/generate"
	"grebe/internal/offheap"
	"grebe/plan"
)

// Latencies are the buckets of histograms of time, in seconds.
var Latencies = []float64{.0005, .001, .002, .005, .01, .02, .035, .05, .075, .1, .15, .2, .3, .5, 1, 2, 5, 10, 30}

// metrics are the service's metrics. Labels are bounded: operations, sources, prefix orders.
type metrics struct {
	queue       prometheus.Histogram
	sloOK       *prometheus.CounterVec
	tokens      *prometheus.CounterVec // their sum is the number of prompt tokens
	recomputed  prometheus.Counter
	late        prometheus.Counter
	shared      *prometheus.CounterVec
	prefix      *prometheus.CounterVec
	batchTokens prometheus.Histogram
	beamRows    prometheus.Histogram
	panics      prometheus.Counter
	unknown     prometheus.Counter
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		queue: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "grebe_queue_seconds", Help: "Time a job waited for its batch.", Buckets: Latencies}),
		sloOK: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "grebe_slo_ok_total", Help: "Requests answered within their deadline."}, []string{"op"}),
		tokens: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "grebe_tokens_total", Help: "Prompt tokens, by where their KV came from."}, []string{"op", "source"}),
		recomputed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "grebe_recomputed_tokens_total",
			Help: "Tokens of blended prompts that had KV and were computed again; they are among the computed ones."}),
		late: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "grebe_late_tokens_total",
			Help: "Tokens of blended prompts whose KV did not come from disk, or not in time; they are among the computed " +
				"ones."}),
		shared: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "grebe_shared_tokens_total",
			Help: "Prompt tokens that were computed once for several segments, of one request or of concurrent ones, " +
				"and are not counted as computed for the others. A request waited for awaited ones while another engine computed " +
				"them."},
			[]string{"kind"}),
		prefix: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "grebe_prefix_choice_total", Help: "Rankings by the prefix order that was used."}, []string{"prefix"}),
		batchTokens: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "grebe_batch_tokens", Help: "Tokens computed in the batch that a job was part of.",
			Buckets: prometheus.ExponentialBuckets(16, 2, 13)}),
		beamRows: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "grebe_beam_rows", Help: "Beams computed for a recommendation, over all its rounds.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 15)}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "grebe_panics_total", Help: "Panics contained in handlers and engines."}),
		unknown: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "grebe_history_unknown_total", Help: "Items of histories that are left out of prompts: the catalog does not " +
				"have them, or they have no codes or identifiers that the model could show."}),
	}
	offHeap := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "grebe_offheap_bytes", Help: "Memory mapped outside the Go heap: weights, activations, pools; touched or not."},
		func() float64 { return float64(offheap.Mapped()) })
	for _, c := range []prometheus.Collector{offHeap, m.queue, m.sloOK, m.tokens, m.recomputed, m.late,
		m.shared, m.prefix, m.batchTokens, m.beamRows, m.panics, m.unknown} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	// A shared registry may have these already.
	for _, c := range []prometheus.Collector{collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
		if err := r.Register(c); err != nil {
			if _, ok := err.(prometheus.AlreadyRegisteredError); !ok {
				return nil, err
			}
		}
	}
	m.begin()
	return m, nil
}

// begin creates the counters that alerts divide by. A missing counter has no rate, so an alert would never fire for a
// server that never met a deadline.
func (m *metrics) begin() {
	for _, kind := range []string{"request", "concurrent", "awaited"} {
		m.shared.WithLabelValues(kind)
	}
	for _, op := range []string{"rank", "recommend"} {
		m.sloOK.WithLabelValues(op)
	}
}

func (m *metrics) ran(r *engine.Result) {
	m.queue.Observe(r.Queue.Seconds())
	m.batchTokens.Observe(float64(r.BatchTokens))
	m.late.Add(float64(r.Late))
	m.once(&r.Shared)
}

// once counts tokens that were not computed because equal ones were.
func (m *metrics) once(s *engine.Shared) {
	if s.Request > 0 {
		m.shared.WithLabelValues("request").Add(float64(s.Request))
	}
	if n := s.Concurrent - s.Awaited; n > 0 {
		m.shared.WithLabelValues("concurrent").Add(float64(n))
	}
	if s.Awaited > 0 {
		m.shared.WithLabelValues("awaited").Add(float64(s.Awaited))
	}
}

// prompted counts a prompt's tokens: computed ones, and cached ones by source. It does not count tokens that were
// computed beside the prompt for later requests.
func (m *metrics) prompted(op string, computed int, by *grebev1.Sources) {
	m.tokens.WithLabelValues(op, "computed").Add(float64(computed))
	m.tokens.WithLabelValues(op, plan.Device.String()).Add(float64(by.Device))
	m.tokens.WithLabelValues(op, plan.Host.String()).Add(float64(by.Host))
	m.tokens.WithLabelValues(op, plan.Disk.String()).Add(float64(by.Disk))
	if by.Peer > 0 {
		m.tokens.WithLabelValues(op, plan.Peer.String()).Add(float64(by.Peer))
	}
	if by.Prototype > 0 {
		m.tokens.WithLabelValues(op, "prototype").Add(float64(by.Prototype))
	}
	m.recomputed.Add(float64(by.Recomputed))
}

func (m *metrics) recommended(op string, r *generate.Result) {
	m.queue.Observe(r.Queue.Seconds())
	m.batchTokens.Observe(float64(r.BatchTokens))
	m.beamRows.Observe(float64(r.Rows))
	m.prompted(op, r.Computed, sources(r.Tiers))
	m.once(&r.Shared)
}

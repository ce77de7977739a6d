package divide

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	boundaryDesc = prometheus.NewDesc("grebe_pool_boundary", "Share of the pool that embeddings may own.",
		[]string{"model", "memory"}, nil)
	decisionDesc = prometheus.NewDesc("grebe_pool_decisions_total", "Decisions about the boundary.",
		[]string{"model", "memory", "kind"}, nil)
	changeDesc = prometheus.NewDesc("grebe_pool_change",
		"Change of the share that the last decision made, by the part that wanted it.",
		[]string{"model", "memory", "part"}, nil)
	movedDesc = prometheus.NewDesc("grebe_pool_moved_bytes_total", "Bytes of pages that changed sides.",
		[]string{"model", "memory"}, nil)
	filledDesc = prometheus.NewDesc("grebe_pool_filled_bytes_total",
		"Bytes of cached rows that moved to new capacity in the background.", []string{"model", "memory"}, nil)
	moveDesc = prometheus.NewDesc("grebe_pool_move_seconds",
		"Time of moves of the boundary, with what they evicted; those that changed nothing do not count.",
		[]string{"model", "memory"}, nil)
	hitsDesc = prometheus.NewDesc("grebe_pool_hit_ratio",
		"Share of the last epoch's look-ups of rows, or of its requests for KV, that were cached.",
		[]string{"model", "memory", "side"}, nil)
	lackDesc = prometheus.NewDesc("grebe_pool_lack_milliseconds",
		"Time that half of the pool more would have saved a side in the last epoch, by its ghost.",
		[]string{"model", "memory", "side"}, nil)

	refillRowsDesc = prometheus.NewDesc("grebe_embed_refill_rows_total",
		"Rows that were asked for ahead of requests, by what became of them.", []string{"table", "outcome"}, nil)
	refillBytesDesc = prometheus.NewDesc("grebe_embed_refill_bytes_total",
		"Bytes of rows that were fetched ahead of requests.", []string{"table"}, nil)
	refillActiveDesc = prometheus.NewDesc("grebe_embed_refill_active",
		"1 while rows are fetched ahead of requests.", []string{"table"}, nil)
	linkDesc = prometheus.NewDesc("grebe_embed_link_bytes_per_second",
		"Highest speed of fetches from the table's store in the last minute or two.", []string{"table"}, nil)
)

// Reported is a Divider or a Refiller.
type Reported interface {
	labels() [2]string // those of all of its metrics
	collect(chan<- prometheus.Metric)
}

// Metrics reports Dividers and Refillers: of those with the same labels the last added, as a model has two memories
// while one checkpoint follows another. The zero value reports none. It is safe for concurrent use.
type Metrics struct {
	mu   sync.Mutex
	list []Reported
}

// Add has s reported until remove is called.
func (m *Metrics) Add(s Reported) (remove func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.list = append(m.list, s)
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.list = slices.DeleteFunc(m.list, func(o Reported) bool { return o == s })
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{boundaryDesc, decisionDesc, changeDesc, movedDesc, filledDesc, moveDesc, hitsDesc,
		lackDesc, refillRowsDesc, refillBytesDesc, refillActiveDesc, linkDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, s := range m.list {
		labels := s.labels()
		if !slices.ContainsFunc(m.list[i+1:], func(later Reported) bool { return later.labels() == labels }) {
			s.collect(ch)
		}
	}
}

func (d *Divider) labels() [2]string { return [2]string{d.cfg.Name, d.cfg.Memory} }

func (d *Divider) collect(ch chan<- prometheus.Metric) {
	d.mu.Lock()
	last, count, took, state := d.last, d.count, d.took, d.state
	d.mu.Unlock()
	with := func(labels []string) []string { return append([]string{d.cfg.Name, d.cfg.Memory}, labels...) }
	gauge := func(desc *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, with(labels)...)
	}
	total := func(desc *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(v), with(labels)...)
	}
	gauge(boundaryDesc, last.To)
	gauge(changeDesc, last.Base, "policy")
	gauge(changeDesc, last.Residual, "adapter")
	gauge(changeDesc, last.To-last.From, "all")
	total(decisionDesc, count.decisions-count.recoveries, "usual")
	total(decisionDesc, count.recoveries, "recovery")
	total(movedDesc, count.moved)
	total(filledDesc, count.filled)
	ch <- prometheus.MustNewConstSummary(moveDesc, uint64(count.moves), took.Seconds(), nil, with(nil)...)
	gauge(hitsDesc, state.EmbHit, "rows")
	gauge(hitsDesc, state.KVHit, "kv")
	gauge(lackDesc, state.Gains.Emb.Sum(), "rows")
	gauge(lackDesc, state.Gains.KV.Sum(), "kv")
}

func (r *Refiller) labels() [2]string { return [2]string{r.cfg.Name} }

func (r *Refiller) collect(ch chan<- prometheus.Metric) {
	r.mu.Lock()
	s, rate, active := r.stats, r.pace.Rate(), r.active
	r.mu.Unlock()
	metric := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, append([]string{r.cfg.Name}, labels...)...)
	}
	metric(refillRowsDesc, prometheus.CounterValue, float64(s.Fetched), "fetched")
	metric(refillRowsDesc, prometheus.CounterValue, float64(s.Gone), "gone")
	metric(refillRowsDesc, prometheus.CounterValue, float64(s.Failed), "failed")
	metric(refillBytesDesc, prometheus.CounterValue, float64(s.Bytes))
	on := 0.0
	if active {
		on = 1
	}
	metric(refillActiveDesc, prometheus.GaugeValue, on)
	metric(linkDesc, prometheus.GaugeValue, rate)
}

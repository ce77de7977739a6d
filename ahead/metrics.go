package ahead

import "github.com/prometheus/client_golang/prometheus"

var (
	itemsDesc = prometheus.NewDesc("grebe_index_items",
		"Items that the last full pass over the catalog looked at, and that it left.",
		[]string{"model", "part"}, nil)
	computedDesc = prometheus.NewDesc("grebe_index_items_total", "Items computed before a request needed them.",
		[]string{"model"}, nil)
	tokensDesc = prometheus.NewDesc("grebe_index_tokens_total", "Tokens of items computed before a request needed them.",
		[]string{"model"}, nil)
	stateDesc = prometheus.NewDesc("grebe_index_state",
		"1 for what indexing is at: idle, waiting, computing, done, full or failed.",
		[]string{"model", "state"}, nil)
)

// Describe implements prometheus.Collector.
func (x *Indexer) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{itemsDesc, computedDesc, tokensDesc, stateDesc} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (x *Indexer) Collect(out chan<- prometheus.Metric) {
	for _, m := range x.models {
		m.mu.Lock()
		p, items, tokens := m.now, m.items, m.tokens
		m.mu.Unlock()
		send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
			out <- prometheus.MustNewConstMetric(d, kind, v, append([]string{m.name}, labels...)...)
		}
		send(itemsDesc, prometheus.GaugeValue, float64(p.Items-p.Left), "done")
		send(itemsDesc, prometheus.GaugeValue, float64(p.Left), "left")
		send(computedDesc, prometheus.CounterValue, float64(items))
		send(tokensDesc, prometheus.CounterValue, float64(tokens))
		for _, s := range states {
			v := 0.0
			if s == p.State {
				v = 1
			}
			send(stateDesc, prometheus.GaugeValue, v, string(s))
		}
	}
}

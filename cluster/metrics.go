package cluster

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"grebe/cluster/member"
)

// metrics counts what happens in the cluster, as this process sees it.
type metrics struct {
	c      *Cluster
	total  *prometheus.CounterVec
	errors prometheus.Histogram
	offers *prometheus.CounterVec

	nodes, refused, up, age, epoch, shards *prometheus.Desc
}

func newMetrics(c *Cluster) *metrics {
	return &metrics{
		c: c,
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "grebe_route_total",
			Help: "Requests by where they were answered: here, there (another node), again (another node failed), alone (no " +
				"node is known).",
		}, []string{"reason"}),
		errors: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "grebe_route_error_ms", Help: "Milliseconds that requests took, less what was predicted.",
			Buckets: []float64{-100, -30, -10, -3, -1, 0, 1, 3, 10, 30, 100, 300, 1000},
		}),
		offers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "grebe_kv_offers_total", Help: "Blocks of KV that were offered to members with the role kv: sent, busy or " +
				"failed.",
		}, []string{"result"}),
		nodes: prometheus.NewDesc("grebe_nodes", "Members of the cluster by state.", []string{"state"}, nil),
		refused: prometheus.NewDesc("grebe_nodes_refused",
			"Members that this process does not talk to: they have no version of the protocol in common.", nil, nil),
		up: prometheus.NewDesc("grebe_coordinator_up", "1 if the coordinator answers.", nil, nil),
		epoch: prometheus.NewDesc("grebe_placement_epoch",
			"Epoch of the map that says which node owns which item; 0: there is none.",
			[]string{"model"}, nil),
		age: prometheus.NewDesc("grebe_residency_age_seconds",
			"How old the newest proof is that the index of a node's KV is up to date.", []string{"node", "model"}, nil),
		shards: prometheus.NewDesc("grebe_route_shards",
			"Shards of a model's item table, of 1,024, most of whose recent look-ups a node found in its cache.",
			[]string{"node", "model"}, nil),
	}
}

func (m *metrics) register(r *prometheus.Registry) error {
	all := []prometheus.Collector{m, m.total, m.errors, m.offers}
	if l := m.c.cfg.Limits; l != nil {
		all = append(all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "grebe_limit_share", Help: "Share of keys' limits that the members in reach have: below 1 while a member " +
				"does not answer.",
		}, l.LimitShare))
	}
	for _, c := range all {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// routed counts a decision.
func (m *metrics) routed(p *pick, self string, again bool) {
	reason := "there"
	switch {
	case again:
		reason = "again"
	case p.node == self:
		reason = "here"
	}
	m.total.WithLabelValues(reason).Inc()
}

// answered counts the error of a prediction.
func (m *metrics) answered(p *pick, took time.Duration, err error) {
	if err == nil {
		m.errors.Observe(ms(took) - p.choice.Ms)
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(out chan<- *prometheus.Desc) {
	out <- m.nodes
	out <- m.refused
	out <- m.up
	out <- m.age
	out <- m.shards
	out <- m.epoch
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	counts := map[member.State]int{member.Active: 0, member.LeaseLost: 0, member.Suspect: 0}
	s := m.c.Status()
	refused := 0
	for i := range s.Nodes {
		for state := range counts {
			if s.Nodes[i].State == state.String() {
				counts[state]++
			}
		}
		if s.Nodes[i].Refused != "" {
			refused++
		}
		for _, model := range s.Nodes[i].Models {
			out <- prometheus.MustNewConstMetric(m.age, prometheus.GaugeValue, model.AgeMs/1000, s.Nodes[i].ID, model.Name)
			if model.RowMs > 0 {
				out <- prometheus.MustNewConstMetric(m.shards, prometheus.GaugeValue, float64(model.Shards), s.Nodes[i].ID,
					model.Name)
			}
		}
	}
	for state, n := range counts {
		out <- prometheus.MustNewConstMetric(m.nodes, prometheus.GaugeValue, float64(n), state.String())
	}
	out <- prometheus.MustNewConstMetric(m.refused, prometheus.GaugeValue, float64(refused))
	for _, f := range m.c.groups {
		epoch := uint64(0)
		if p := f.places.Load(); p != nil {
			epoch = p.Epoch
		}
		out <- prometheus.MustNewConstMetric(m.epoch, prometheus.GaugeValue, float64(epoch), f.model.Name)
	}
	up := 0.0
	if s.Coordinator == "up" {
		up = 1
	}
	out <- prometheus.MustNewConstMetric(m.up, prometheus.GaugeValue, up)
}

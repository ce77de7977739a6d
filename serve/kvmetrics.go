package serve

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"grebe/kv"
	"grebe/kv/disk"
	"grebe/plan"
	"grebe/reuse"
)

// cacheMetrics reports the contents of the models' caches at the time of a scrape.
type cacheMetrics struct {
	models                       []*slot
	entries, bytes, evictions    *prometheus.Desc
	poolTotal, poolUsed, indexed *prometheus.Desc
	predicted, wrong, rms        *prometheus.Desc
	hitBytes, forced             *prometheus.Desc
	credit, lent                 *prometheus.Desc
	damaged                      *prometheus.Desc
}

func newCacheMetrics(models []*slot) *cacheMetrics {
	m := &cacheMetrics{
		models: models,
		entries: prometheus.NewDesc("grebe_kv_entries",
			"Cached entries; of kind prefix: runs of tokens that have no name; of tier disk: kinds together.",
			[]string{"kind", "tier"}, nil),
		bytes: prometheus.NewDesc("grebe_kv_bytes", "Bytes of cached entries; shared ones count for each entry.",
			[]string{"kind", "tier"}, nil),
		evictions: prometheus.NewDesc("grebe_evictions_total",
			"Entries dropped from memory to make room, or lowered from the device's to the host's.", []string{"kind", "reason"},
			nil),
		poolTotal: prometheus.NewDesc("grebe_pool_bytes", "Bytes of the pools that KV lives in.", nil, nil),
		poolUsed:  prometheus.NewDesc("grebe_pool_used_bytes", "Bytes of the pools in use.", nil, nil),
		indexed:   prometheus.NewDesc("grebe_meta_entries", "Entries that the index of cached KV knows.", nil, nil),
		predicted: prometheus.NewDesc("grebe_predictions_total", "Predicted returns of entries that were used again.", nil,
			nil),
		wrong: prometheus.NewDesc("grebe_prediction_errors_total",
			"Of these, those that were off by more than a factor of two.", nil, nil),
		rms: prometheus.NewDesc("grebe_prediction_rms_doublings",
			"Recent root mean squared error of predicted returns, in doublings of time; the worst model's.", nil, nil),
	}
	m.hitBytes = prometheus.NewDesc("grebe_eviction_hit_bytes_total",
		"Bytes that the cache hit, and that LRU would have hit with as much memory.", []string{"policy"}, nil)
	m.forced = prometheus.NewDesc("grebe_eviction_forced_bytes_total",
		"Bytes evicted without credit because everything that LRU had given up was in use.", nil, nil)
	m.credit = prometheus.NewDesc("grebe_eviction_credit_bytes", "Bytes by which eviction may still differ from LRU.", nil,
		nil)
	m.lent = prometheus.NewDesc("grebe_eviction_lent_bytes",
		"Most bytes of that credit that were ever lent before they were earned.", nil, nil)
	m.damaged = prometheus.NewDesc("grebe_checksum_failures_total",
		"Entries below memory that were found damaged, and dropped.", []string{"tier"}, nil)
	return m
}

// stores returns the caches and disks of the checkpoints that serve, each once. Other checkpoints of a model share
// its store, and so do models on one checkpoint.
func (m *cacheMetrics) stores() (caches []*reuse.Cache, disks []*disk.Store) {
	for _, sl := range m.models {
		now := sl.serving()
		if now.Disk != nil && !slices.Contains(disks, now.Disk) {
			disks = append(disks, now.Disk)
		}
		if now.Cache != nil && !slices.ContainsFunc(caches, now.Cache.SharesStore) {
			caches = append(caches, now.Cache)
		}
	}
	return caches, disks
}

// Describe implements prometheus.Collector.
func (m *cacheMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.entries, m.bytes, m.evictions, m.poolTotal, m.poolUsed, m.indexed, m.predicted,
		m.wrong, m.rms, m.hitBytes, m.forced, m.credit, m.lent, m.damaged} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *cacheMetrics) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	caches, disks := m.stores()
	for _, kind := range []plan.Kind{plan.Preamble, plan.User, plan.Item, kv.Prefix} {
		name := "prefix"
		if kind != kv.Prefix {
			name = kind.String()
		}
		var evicted, lowered float64
		for _, tier := range []plan.Tier{plan.Device, plan.Host} {
			var entries, bytes float64
			for _, c := range caches {
				s := c.Stats(kind, tier)
				entries += float64(s.Entries)
				bytes += float64(s.Bytes)
				evicted += float64(s.Evicted)
				lowered += float64(s.Lowered)
			}
			gauge(m.entries, entries, name, tier.String())
			gauge(m.bytes, bytes, name, tier.String())
		}
		counter(m.evictions, evicted, name, "room")
		counter(m.evictions, lowered, name, "lowered")
	}
	var total, used, known, predicted, wrong, rms float64
	for _, c := range caches {
		books := c.Books()
		total += float64(books.Total)
		used += float64(books.Used)
		known += float64(c.Known())
		f := c.Forecasts()
		predicted += float64(f.Answered)
		wrong += float64(f.Wrong)
		rms = max(rms, f.RMS)
	}
	m.collectFloor(caches, gauge, counter)
	gauge(m.poolTotal, total)
	gauge(m.poolUsed, used)
	gauge(m.indexed, known)
	counter(m.predicted, predicted)
	counter(m.wrong, wrong)
	gauge(m.rms, rms)
	m.collectPeers(caches, counter)
	if len(disks) == 0 {
		return
	}
	var entries, bytes, damaged float64
	for _, d := range disks {
		s := d.Stats()
		entries += float64(s.Entries)
		bytes += float64(s.LiveBytes)
		damaged += float64(s.ChecksumFailures + s.TornRecords)
	}
	gauge(m.entries, entries, "all", plan.Disk.String())
	gauge(m.bytes, bytes, "all", plan.Disk.String())
	counter(m.damaged, damaged, plan.Disk.String())
}

// collectPeers counts entries of other nodes that arrived damaged, if there are other nodes.
func (m *cacheMetrics) collectPeers(caches []*reuse.Cache, counter func(*prometheus.Desc, float64, ...string)) {
	var damaged int64
	some := false
	for _, c := range caches {
		n, ok := c.PeerDamaged()
		damaged, some = damaged+n, some || ok
	}
	if some {
		counter(m.damaged, float64(damaged), plan.Peer.String())
	}
}

// collectFloor compares eviction with LRU, for models whose policy measures that.
func (m *cacheMetrics) collectFloor(caches []*reuse.Cache, gauge, counter func(*prometheus.Desc, float64, ...string)) {
	var own, lru, forced, credit, lent float64
	found := false
	for _, c := range caches {
		s, ok := c.Floor()
		if !ok {
			continue
		}
		found = true
		own += float64(s.Hits)
		lru += float64(s.LRUHits)
		forced += float64(s.Forced)
		credit += s.Credit
		lent += float64(s.Lent)
	}
	if !found {
		return
	}
	counter(m.hitBytes, own, "own")
	counter(m.hitBytes, lru, "lru")
	counter(m.forced, forced)
	gauge(m.credit, credit)
	gauge(m.lent, lent)
}

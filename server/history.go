package server

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// Readings of the dashboard's metrics.
const (
	readEvery  = 5 * time.Second // between two readings
	recentMost = 60              // readings of the last five minutes
	wholeMost  = 240             // readings since the start, farther apart the longer ago that is
)

// shown are the metrics that the dashboard's charts need, with the labels that they are divided by. Values that differ
// in other labels are added up.
var shown = map[string][]string{
	"grebe_requests_total":                {"op", "code"},
	"grebe_request_seconds":               {"op"},
	"grebe_tokens_total":                  {"source"},
	"grebe_prefix_choice_total":           {"prefix"},
	"grebe_batch_tokens":                  nil,
	"grebe_queue_seconds":                 nil,
	"grebe_kv_bytes":                      {"kind", "tier"},
	"grebe_embed_device_bytes":            nil,
	"grebe_embed_device_hits_total":       nil,
	"grebe_embed_device_misses_total":     nil,
	"grebe_embed_device_prefetched_total": nil,
	"grebe_pool_bytes":                    nil,
	"grebe_pool_used_bytes":               nil,
	"grebe_pool_boundary":                 {"model", "memory"},
	"grebe_pool_hit_ratio":                {"model", "memory", "side"},
	"grebe_embed_refill_bytes_total":      nil,
	"grebe_evictions_total":               {"kind"},
	"grebe_predictions_total":             nil,
	"grebe_prediction_errors_total":       nil,
	"grebe_route_total":                   {"reason"},
}

// reading is what the metrics were at a time.
type reading struct {
	Time    int64  `json:"time"`    // milliseconds since 1970
	Metrics string `json:"metrics"` // in Prometheus' text format
}

// history keeps readings from the start of the server on, in bounded memory. The zero value has none.
type history struct {
	mu     sync.Mutex
	recent []reading     // the last ones
	whole  []reading     // since the start, every apart
	every  time.Duration // doubles whenever whole is full; 0: no reading yet
}

// add keeps a reading. Counters add up, so leaving readings out loses no count.
func (h *history) add(now time.Time, metrics string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := reading{now.UnixMilli(), metrics}
	if len(h.recent) == recentMost {
		h.recent = slices.Delete(h.recent, 0, 1)
	}
	h.recent = append(h.recent, r)
	h.every = max(h.every, readEvery)
	if n := len(h.whole); n > 0 && r.Time-h.whole[n-1].Time < h.every.Milliseconds() {
		return
	}
	h.whole = append(h.whole, r)
	if len(h.whole) <= wholeMost {
		return
	}
	kept := 0
	for i := 0; i < len(h.whole); i += 2 {
		h.whole[kept] = h.whole[i]
		kept++
	}
	clear(h.whole[kept:])
	h.whole = h.whole[:kept]
	h.every *= 2
}

// readings returns those since the start and the recent ones, in the order of time.
func (h *history) readings() []reading {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := []reading{}
	for _, r := range h.whole {
		if len(h.recent) == 0 || r.Time < h.recent[0].Time {
			out = append(out, r)
		}
	}
	return append(out, h.recent...)
}

// runHistory reads the metrics until end is called.
func (s *Server) runHistory() (end func()) {
	ctx, cancel := context.WithCancel(s.cut)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(readEvery)
		defer tick.Stop()
		for {
			if families, err := s.service.Registry().Gather(); err == nil { // an error is the next scrape's to report
				s.history.add(time.Now(), condensed(families))
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// condensed writes the metrics that the charts need as text.
func condensed(families []*dto.MetricFamily) string {
	var b strings.Builder
	for _, f := range families {
		labels, ok := shown[f.GetName()]
		if !ok {
			continue
		}
		values := map[string]float64{} // by the series' name and labels
		for _, m := range f.GetMetric() {
			add(values, f.GetName(), m, labels)
		}
		for _, name := range slices.Sorted(maps.Keys(values)) {
			fmt.Fprintf(&b, "%s %s\n", name, strconv.FormatFloat(values[name], 'g', -1, 64))
		}
	}
	return b.String()
}

// add adds a metric to the values of its series.
func add(values map[string]float64, name string, m *dto.Metric, labels []string) {
	var kept []string
	for _, l := range m.GetLabel() {
		if slices.Contains(labels, l.GetName()) {
			kept = append(kept, l.GetName()+"="+strconv.Quote(l.GetValue()))
		}
	}
	series := func(suffix string, more ...string) string {
		all := strings.Join(append(slices.Clone(kept), more...), ",")
		if all == "" {
			return name + suffix
		}
		return name + suffix + "{" + all + "}"
	}
	switch h := m.GetHistogram(); {
	case h != nil:
		values[series("_sum")] += h.GetSampleSum()
		values[series("_count")] += float64(h.GetSampleCount())
		for _, bucket := range h.GetBucket() {
			le := strconv.FormatFloat(bucket.GetUpperBound(), 'g', -1, 64)
			values[series("_bucket", `le="`+le+`"`)] += float64(bucket.GetCumulativeCount())
		}
		values[series("_bucket", `le="+Inf"`)] += float64(h.GetSampleCount())
	case m.GetCounter() != nil:
		values[series("")] += m.GetCounter().GetValue()
	default:
		values[series("")] += m.GetGauge().GetValue()
	}
}

// getHistory answers with the readings of the dashboard's metrics.
func (s *Server) getHistory(*http.Request, string) (reply, error) {
	return asJSON(struct {
		Now      int64     `json:"now"` // milliseconds since 1970
		Readings []reading `json:"readings"`
	}{time.Now().UnixMilli(), s.history.readings()})
}

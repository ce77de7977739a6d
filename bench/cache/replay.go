package cache

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"grebe/bench/report"
	"grebe/evict"
	"grebe/schedule"
)

// outcome is what one policy made of one trace.
type outcome struct {
	hits, held int // of all requests; of those in the second half
	hit        []bool
	ns         float64 // per request, training not counted
	trained    time.Duration
	models     int
	rms        float64 // of predictions, in doublings of time
	stats      *evict.FloorStats
}

// replay serves a trace of entries of one size from a cache of k of them.
func replay(t *trace, policy string, k int, src source) (*outcome, error) {
	s, err := newStore(t, policy, k, src)
	if err != nil {
		return nil, err
	}
	o := &outcome{hit: make([]bool, len(t.keys))}
	start := time.Now()
	for i := range t.keys {
		if o.hit[i], err = s.serve(i); err != nil {
			return nil, fmt.Errorf("%s: %w", policy, err)
		}
	}
	took := time.Since(start)
	if l, ok := src.(*learnt); ok {
		took -= l.took
		o.trained, o.models = l.took, l.models
		o.rms, _ = l.f.Tracker.Error()
	}
	o.ns = float64(took.Nanoseconds()) / float64(len(t.keys))
	if stats, ok := s.books.Floor(); ok {
		o.stats = &stats
	}
	o.count()
	return o, nil
}

func (o *outcome) count() {
	for i, h := range o.hit {
		if h {
			o.hits++
			if i >= len(o.hit)/2 {
				o.held++
			}
		}
	}
}

// Times to the first token. A prompt's cached blocks up to the first missing one are reused, the rest is computed; a
// trace of keys has prompts of one entry of userTokens tokens and askTokens that are always computed. The
// model's coefficients are Qwen2-1.5B's FLOPs at 200 TFLOP/s. One server takes prompts in order, which arrive at
// random, at the rate at which LRU keeps it busy for 80 % of the time; only the second half of the prompts is sent,
// when caches are warm.
const (
	blockTokens = 512
	userTokens  = 1500
	askTokens   = 200
	busy        = 0.8
)

var prefill = schedule.PrefillModel{Fixed: 3, Row: 2 * 1.31e9 / 200e9, Key: 4 * 28 * 12 * 128 / 200e9}

// warmServices returns the times of the second half of the prompts.
func warmServices(t *trace, hit []bool) []float64 {
	all := services(t, hit)
	return all[len(all)/2:]
}

// services returns each prompt's time on the server in milliseconds.
func services(t *trace, hit []bool) []float64 {
	var out []float64
	add := func(cached, rows int) {
		out = append(out, prefill.Predict(rows, rows*cached+rows*(rows+1)/2, 1))
	}
	if t.prompts == nil {
		for _, h := range hit {
			if h {
				add(userTokens, askTokens)
			} else {
				add(0, userTokens+askTokens)
			}
		}
		return out
	}
	for p, first := range t.prompts {
		end := len(hit)
		if p+1 < len(t.prompts) {
			end = int(t.prompts[p+1])
		}
		blocks := hit[first:end]
		lead := slices.Index(blocks, false)
		if lead < 0 {
			lead = len(blocks) - 1 // the last token's logits are wanted: something is computed
		}
		add(lead*blockTokens, (len(blocks)-lead)*blockTokens)
	}
	return out
}

// p99 queues prompts and returns the 99th percentile of time to the first token, in milliseconds; gap is the mean time
// between arrivals.
func p99(services []float64, gap float64) float64 {
	r := rand.New(rand.NewPCG(99, 1))
	at, free := 0.0, 0.0
	waits := make([]float64, len(services))
	for i, s := range services {
		at += r.ExpFloat64() * gap
		free = max(free, at) + s
		waits[i] = free - at
	}
	slices.Sort(waits)
	return report.Percentile(waits, 99)
}

func mean(xs []float64) float64 {
	sum := 0.0
	for _, x := range xs {
		sum += x
	}
	return sum / float64(len(xs))
}

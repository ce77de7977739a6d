package cache

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

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

// source predicts returns while a trace is replayed.
type source interface {
	// predict returns when request i's key returns. cached tells what the cache holds.
	predict(t *trace, i int, cached func(uint64) bool) int64
	// refresh predicts again at request i.
	refresh(t *trace, i int, keys []uint64, returns []int64)
}

// known predicts from an array, request by request, and never again.
type known []int64

func (k known) predict(_ *trace, i int, _ func(uint64) bool) int64 { return k[i] }
func (known) refresh(*trace, int, []uint64, []int64)               {}
func perfect(t *trace) known                                       { return evict.NextUses(t.keys) }
func nothing(t *trace) known                                       { return make(known, len(t.keys)) }

// learnt predicts with a model trained on the way.
type learnt struct {
	f      *evict.Forecaster
	d      *describer
	took   time.Duration
	models int
}

func (l *learnt) predict(t *trace, i int, cached func(uint64) bool) int64 {
	if l.d == nil {
		l.d = newDescriber(t, cached)
	}
	ret := l.f.Access(t.keys[i], int64(i), l.d.context(i))
	if l.f.Due() {
		start := time.Now()
		l.f.Learn(int64(i), evict.TrainParams{})
		l.took += time.Since(start)
		l.models++
	}
	return ret
}

func (l *learnt) refresh(_ *trace, i int, keys []uint64, returns []int64) {
	l.f.Refresh(keys, int64(i), returns)
}

// maxRefresh is how many predictions a policy may ask for at once.
const maxRefresh = 64

// replay drives a policy over a trace of entries of one size.
func replay(t *trace, policy string, k int, src source) (*outcome, error) {
	o := &outcome{hit: make([]bool, len(t.keys))}
	keyOf, slotOf, late := make([]uint64, k), make([]int32, t.distinct), make([]uint64, maxRefresh)
	for i := range slotOf {
		slotOf[i] = -1
	}
	now, used := 0, 0
	cfg := evict.Config{Slots: k, Bytes: int64(k)}
	if _, fixed := src.(known); !fixed {
		cfg.Refresh = func(slots []evict.Slot, returns []int64) {
			for i, s := range slots {
				late[i] = keyOf[s]
			}
			src.refresh(t, now, late[:len(slots)], returns)
		}
	}
	p, err := evict.New(policy, cfg)
	if err != nil {
		return nil, err
	}
	cached := func(key uint64) bool { return slotOf[key] >= 0 }
	start := time.Now()
	for i, key := range t.keys {
		now = i
		a := evict.Access{Key: key, Bytes: 1, Now: int64(i), Return: src.predict(t, i, cached)}
		if t.costs != nil {
			a.Cost = t.costs[i]
		}
		s := slotOf[key]
		if s >= 0 {
			o.hit[i] = true
			p.Hit(s, a)
			continue
		}
		p.Miss(a)
		if s = int32(used); used < k {
			used++
		} else {
			var ok bool
			if s, ok = p.Victim(nil); !ok {
				return nil, fmt.Errorf("%s: no victim in a full cache of %d", policy, k)
			}
			slotOf[keyOf[s]] = -1
		}
		slotOf[key], keyOf[s] = s, key
		p.Insert(s, a)
	}
	took := time.Since(start)
	if l, ok := src.(*learnt); ok {
		took -= l.took
		o.trained, o.models = l.took, l.models
		o.rms, _ = l.f.Tracker.Error()
	}
	o.ns = float64(took.Nanoseconds()) / float64(len(t.keys))
	o.count()
	if f, ok := p.(*evict.Floor); ok {
		s := f.Stats()
		o.stats = &s
	}
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
// model's coefficients are Qwen2-1.5B's FLOPs at 200 TFLOP/s. One server takes prompts in order, which arrive at random,
// at the rate at which LRU keeps it busy for 80 % of the time; only the second half of the prompts is sent, when caches are warm.
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

// p99 queues prompts and returns the 99th percentile of time to the first token, in milliseconds; gap is the mean time between arrivals.
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
	return waits[len(waits)*99/100]
}

func mean(xs []float64) float64 {
	sum := 0.0
	for _, x := range xs {
		sum += x
	}
	return sum / float64(len(xs))
}

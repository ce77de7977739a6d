package load

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Result is what a run measured. Times are milliseconds, rates per second.
type Result struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"` // of the window that rates are taken over

	Offered    float64 `json:"offered"`    // at which requests were due; 0 in a closed loop
	Throughput float64 `json:"throughput"` // of answers
	Goodput    float64 `json:"goodput"`    // of answers within the SLO

	Requests int            `json:"requests"` // measured: answered or failed
	Answered int            `json:"answered"`
	Good     int            `json:"good"` // answered within the SLO
	Held     int            `json:"held"` // sent late, since as many as allowed were under way
	Errors   map[string]int `json:"errors,omitempty"`

	SLO     float64     `json:"slo_ms,omitempty"`
	Latency Percentiles `json:"latency"`
	// Lag is from the intended to the actual time of sending, and part of Latency. Timers alone make it
	// half a millisecond; where it is not small beside the latency, the client or its bound of requests
	// in flight is what was measured.
	Lag Percentiles `json:"lag"`

	// Next is the index after the run's last request, warm-up included: the First of a run that goes on.
	Next int `json:"next"`
	// Extra is for figures that the caller adds, such as the share of tokens reused. Merge averages
	// them, weighted by requests.
	Extra map[string]float64 `json:"extra,omitempty"`

	latency, lag *track
}

// Percentiles are in milliseconds, exact to a thousandth of their value.
type Percentiles struct {
	Mean float64 `json:"mean_ms"`
	P50  float64 `json:"p50_ms"`
	P90  float64 `json:"p90_ms"`
	P99  float64 `json:"p99_ms"`
	P999 float64 `json:"p999_ms"`
	Max  float64 `json:"max_ms"`
}

// KeepsSLO reports whether 99 % of all requests were answered within the SLO: P99 ≤ SLO where a request
// that failed counts as one that took for ever.
func (r *Result) KeepsSLO() bool { return r.Requests > 0 && r.Good*100 >= r.Requests*99 }

// track is a distribution of durations in bounded memory.
type track struct {
	hist *hdrhistogram.Histogram // microseconds
	sum  time.Duration
	max  time.Duration
}

// longest is what a histogram can hold; longer times count as that.
const longest = time.Hour

func newTrack() *track {
	return &track{hist: hdrhistogram.New(1, longest.Microseconds(), 3)}
}

func (t *track) add(d time.Duration) {
	d = max(d, 0)
	t.sum += d
	t.max = max(t.max, d)
	// It fails for values beyond its range only.
	_ = t.hist.RecordValue(min(d, longest).Microseconds())
}

func (t *track) merge(o *track) {
	t.hist.Merge(o.hist)
	t.sum += o.sum
	t.max = max(t.max, o.max)
}

func (t *track) percentiles() Percentiles {
	n := t.hist.TotalCount()
	if n == 0 {
		return Percentiles{}
	}
	limit := ms(t.max) // a histogram rounds up, beyond the largest value
	at := func(q float64) float64 { return min(float64(t.hist.ValueAtQuantile(q))/1e3, limit) }
	return Percentiles{
		Mean: ms(t.sum) / float64(n), P50: at(50), P90: at(90), P99: at(99), P999: at(99.9), Max: limit,
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// sample is one measured request. Times are since the start, or differences.
type sample struct {
	latency, lag, done time.Duration
	held               bool
}

// window is what rates are taken over.
type window struct {
	from, to time.Duration
	offered  float64
}

// recorder collects samples from many goroutines.
type recorder struct {
	name     string
	slo      time.Duration
	classify func(error) string

	mu           sync.Mutex // guards what is below
	latency, lag *track
	answered     int
	good         int
	held         int
	errors       map[string]int
	last         time.Duration // when the last request was done
	planned      int           // requests of a run that is abandoned when it cannot keep the SLO; else 0
	hopeless     func()        // abandons it
}

func newRecorder(o *Options) *recorder {
	return &recorder{name: o.Name, slo: o.SLO, classify: o.Classify, latency: newTrack(), lag: newTrack(),
		errors: map[string]int{}}
}

// abandon has hopeless called when more of the planned requests missed the SLO than it allows.
func (r *recorder) abandon(planned int, hopeless func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.planned, r.hopeless = planned, hopeless
}

// missed counts the requests so far that missed the SLO.
func (r *recorder) missed() int {
	n := r.answered - r.good
	for _, failed := range r.errors {
		n += failed
	}
	return n
}

// watch abandons a run that cannot keep the SLO any more.
func (r *recorder) watch() {
	if r.planned > 0 && r.missed()*100 > r.planned {
		r.planned = 0
		r.hopeless()
	}
}

// add counts a request; over says that the run had given up by when it returned.
func (r *recorder) add(s sample, err error, over bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.watch()
	r.lag.add(s.lag)
	r.last = max(r.last, s.done)
	if s.held {
		r.held++
	}
	if err != nil {
		r.fail(err, s.latency, over)
		return
	}
	r.latency.add(s.latency)
	r.answered++
	if r.slo <= 0 || s.latency <= r.slo {
		r.good++
	}
}

func (r *recorder) fail(err error, latency time.Duration, over bool) {
	class := Unfinished
	if !over {
		class = r.classify(err)
	}
	r.errors[class]++
	if class == Unfinished || class == Timeout {
		r.latency.add(latency)
	}
}

// unsent counts a request that was due that long ago.
func (r *recorder) unsent(late time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errors[Unsent]++
	r.held++
	r.latency.add(late)
	r.lag.add(late)
}

func (r *recorder) result(w window, next int) Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := Result{
		Name: r.name, Seconds: (w.to - w.from).Seconds(), Offered: w.offered, Next: next,
		Answered: r.answered, Good: r.good, Held: r.held, Errors: r.errors, SLO: ms(r.slo),
		latency: r.latency, lag: r.lag,
	}
	out.Requests = r.answered
	for _, n := range r.errors {
		out.Requests += n
	}
	out.derive()
	return out
}

// derive computes what follows from counts and tracks.
func (r *Result) derive() {
	if r.Seconds > 0 {
		r.Throughput = float64(r.Answered) / r.Seconds
		r.Goodput = float64(r.Good) / r.Seconds
	}
	r.Latency, r.Lag = r.latency.percentiles(), r.lag.percentiles()
}

// Merge returns several runs of one thing, as if they were one that took their times together. It has
// the name and SLO of the first.
func Merge(runs ...Result) Result {
	out := Result{Errors: map[string]int{}, latency: newTrack(), lag: newTrack()}
	due := 0.0
	for i := range runs {
		r := &runs[i]
		if i == 0 {
			out.Name, out.SLO = r.Name, r.SLO
		}
		for name, v := range r.Extra {
			if out.Extra == nil {
				out.Extra = map[string]float64{}
			}
			out.Extra[name] += v * float64(r.Requests)
		}
		out.Next = max(out.Next, r.Next)
		out.Seconds += r.Seconds
		due += r.Offered * r.Seconds
		out.Requests += r.Requests
		out.Answered += r.Answered
		out.Good += r.Good
		out.Held += r.Held
		for class, n := range r.Errors {
			out.Errors[class] += n
		}
		if r.latency != nil {
			out.latency.merge(r.latency)
			out.lag.merge(r.lag)
		}
	}
	for name := range out.Extra {
		out.Extra[name] /= float64(max(out.Requests, 1))
	}
	if out.Seconds > 0 {
		out.Offered = due / out.Seconds
	}
	out.derive()
	return out
}

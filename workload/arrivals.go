package workload

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Arrivals is a process of request arrivals. Next returns the time of the next one since the start,
// never before the one returned last, and false after the last.
type Arrivals interface {
	Next() (at time.Duration, ok bool)
}

// Poisson returns arrivals at independent times, rate per second on average, for as long as a time.Duration is; at a
// rate of 0, none.
func Poisson(rate float64, seed uint64) Arrivals {
	return &poisson{gap: gap(rate), rng: rand.New(rand.NewPCG(seed, golden))}
}

// gap is the time between arrivals, in nanoseconds.
func gap(rate float64) float64 {
	if rate > 0 {
		return float64(time.Second) / rate
	}
	return math.Inf(1)
}

// within returns a time, and false where it is too far away to be one.
func within(at float64) (time.Duration, bool) {
	if at < math.MaxInt64 {
		return time.Duration(at), true
	}
	return math.MaxInt64, false
}

type poisson struct {
	gap float64 // nanoseconds, on average
	at  float64
	rng *rand.Rand
}

func (p *poisson) Next() (time.Duration, bool) {
	p.at += p.rng.ExpFloat64() * p.gap
	return within(p.at)
}

// Uniform returns arrivals at equal distances, rate per second, the first at 0, for as long as a time.Duration is; at a
// rate of 0, none.
func Uniform(rate float64) Arrivals { return &uniform{gap: gap(rate)} }

type uniform struct {
	gap float64
	n   int
}

func (u *uniform) Next() (time.Duration, bool) {
	u.n++
	return within(float64(u.n-1) * u.gap) // not a number, so none, where the gap is infinite
}

// Trace returns the arrivals of a recording, speedup times as fast; the recording ends.
func Trace(times []time.Duration, speedup float64) Arrivals {
	return &trace{times: times, speedup: speedup}
}

type trace struct {
	times   []time.Duration
	speedup float64
}

func (t *trace) Next() (time.Duration, bool) {
	if len(t.times) == 0 {
		return 0, false
	}
	at := t.times[0]
	t.times = t.times[1:]
	return time.Duration(float64(at) / t.speedup), true
}

// Rate returns the mean number of arrivals per second of a recording: divide the rate you want by it
// for a speedup.
func Rate(times []time.Duration) float64 {
	if len(times) < 2 || times[len(times)-1] == times[0] {
		return 0
	}
	return float64(len(times)-1) / (times[len(times)-1] - times[0]).Seconds()
}

// ReadTrace reads the arrival times of a recording, since its first arrival and in order. A .csv file
// has Azure's LLM inference traces' columns (the first is a time stamp), a .jsonl file Mooncake's
// objects ("timestamp" in milliseconds).
func ReadTrace(path string) ([]time.Duration, error) {
	read := map[string]func(io.Reader) ([]time.Duration, error){
		".csv": readAzure, ".jsonl": readMooncake}[filepath.Ext(path)]
	if read == nil {
		return nil, fmt.Errorf("read trace %s: neither .csv nor .jsonl", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	defer f.Close()
	times, err := read(f)
	if err != nil {
		return nil, fmt.Errorf("read trace %s: %w", path, err)
	}
	if len(times) == 0 {
		return nil, fmt.Errorf("read trace %s: it has no requests", path)
	}
	slices.Sort(times)
	first := times[0]
	for i := range times {
		times[i] -= first
	}
	return times, nil
}

func readAzure(r io.Reader) ([]time.Duration, error) {
	var epoch time.Time
	return lines(r, func(n int, line []byte) (time.Duration, bool, error) {
		if n == 1 {
			return 0, false, nil // the names of the columns
		}
		stamp, _, _ := bytes.Cut(line, []byte{','})
		at, err := time.Parse("2006-01-02 15:04:05.9999999", string(stamp))
		if epoch.IsZero() {
			epoch = at
		}
		return at.Sub(epoch), true, err
	})
}

func readMooncake(r io.Reader) ([]time.Duration, error) {
	return lines(r, func(_ int, line []byte) (time.Duration, bool, error) {
		var rec struct {
			Timestamp *float64 `json:"timestamp"`
		}
		if err := json.Unmarshal(line, &rec); err != nil {
			return 0, false, err
		}
		if rec.Timestamp == nil {
			return 0, false, fmt.Errorf("no timestamp")
		}
		return time.Duration(*rec.Timestamp * float64(time.Millisecond)), true, nil
	})
}

// lines reads a time from each line that is not empty; parse may skip one.
func lines(r io.Reader, parse func(n int, line []byte) (time.Duration, bool, error)) ([]time.Duration, error) {
	var out []time.Duration
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 16<<20)
	for n := 1; sc.Scan(); n++ {
		line := bytes.TrimSpace(sc.Bytes())
		if len(line) == 0 {
			continue
		}
		at, ok, err := parse(n, line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if ok {
			out = append(out, at)
		}
	}
	return out, sc.Err()
}

// Package embed measures the cache of embedding rows: SparseLengthsSum over a table in a real Redis on loopback, with
// LRU, learned eviction and no cache in turns on the same lookups; and gathers of cached rows beside a plain copy.
package embed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"slices"
	"time"

	"grebe/bench/report"
	table "grebe/embed"
	"grebe/embed/redisserver"
	"grebe/pool"
)

// Options of a run. Zero means the default.
type Options struct {
	Rows     int           // of the table; 1,000,000
	Percents []float64     // cache sizes; 1, 3, 5
	Batches  []int         // sums per batch; 64, 256, 1024, 4096
	Traces   []string      // drift, fast, zipf, scarab; all
	Policies []string      // none, lru, laru, default; all
	Skew     float64       // exponent of Zipf's law; 0.99
	HalfLife int           // of drift: lookups after which half of the popular rows are others; 20 per row
	Data     string        // folder of scarab-recs.trace; ../shared/data/traces
	Warm     int           // lookups before anything is measured; 4,000,000
	Rounds   int           // 9
	Parts    []string      // hits, sums, gather, outage, refill; all
	Outage   time.Duration // how long Redis is gone; 10 s
	Seed     uint64
	JSON     bool
}

const (
	rowFloats = 128
	rowBytes  = 4 * rowFloats
	lookups   = 8     // rows of a sum
	least     = 32768 // lookups of a round
)

// Validate reports the first option that makes no sense.
func (o Options) Validate() error { return o.setDefaults() }

func (o *Options) setDefaults() error {
	for _, d := range []struct {
		v   *int
		def int
	}{{&o.Rows, 1_000_000}, {&o.Warm, 4_000_000}, {&o.Rounds, 9}} {
		if *d.v < 0 {
			return fmt.Errorf("%d is negative", *d.v)
		}
		if *d.v == 0 {
			*d.v = d.def
		}
	}
	if o.HalfLife == 0 {
		o.HalfLife = 20 * o.Rows
	}
	if o.Outage <= 0 {
		o.Outage = 10 * time.Second
	}
	if o.Data == "" {
		o.Data = "../shared/data/traces"
	}
	if o.Skew == 0 {
		o.Skew = 0.99
	}
	if len(o.Percents) == 0 {
		o.Percents = []float64{1, 3, 5}
	}
	if len(o.Batches) == 0 {
		o.Batches = []int{64, 256, 1024, 4096}
	}
	for _, s := range []struct {
		v    *[]string
		all  []string
		what string
	}{{&o.Traces, []string{"drift", "fast", "zipf", "scarab"}, "trace"},
		{&o.Policies, []string{"none", "lru", "laru", "default"}, "policy"},
		{&o.Parts, []string{"hits", "sums", "gather", "outage", "refill"}, "part"}} {
		if len(*s.v) == 0 {
			*s.v = s.all
		}
		for _, v := range *s.v {
			if !slices.Contains(s.all, v) {
				return fmt.Errorf("no %s %q: want one of %v", s.what, v, s.all)
			}
		}
	}
	if slices.Contains(o.Parts, "sums") && !slices.Contains(o.Policies, "lru") {
		return fmt.Errorf("policies %v: lru is what the others are compared with", o.Policies)
	}
	return nil
}

// Report is what a run measured.
type Report struct {
	Rows    int      `json:"rows"`
	Skew    float64  `json:"skew"`
	Drift   int      `json:"drift_half_life"`
	Hits    []Hits   `json:"hits,omitempty"`
	Lines   []Line   `json:"lines,omitempty"`
	Gather  *Gather  `json:"gather,omitempty"`
	Outages []Outage `json:"outages,omitempty"`
	Refills []Refill `json:"refills,omitempty"`
}

// Line is one policy at one cache size and batch size.
type Line struct {
	Trace   string  `json:"trace"`
	Percent float64 `json:"percent"`
	Batch   int     `json:"batch"`
	Policy  string  `json:"policy"`
	Rows    int     `json:"rows"`     // cached at most; LRU has more for what it keeps less beside rows
	Rate    float64 `json:"rate"`     // lookups per second, median
	Hits    float64 `json:"hit_rate"` // of the measured lookups
	Asked   float64 `json:"asked"`    // rows asked of Redis per lookup: misses, each key once per batch
	Ratio   Ratio   `json:"ratio"`    // of rates, to LRU
}

// Ratio is the median over rounds of the ratios within a round, with a confidence interval of 95 %.
type Ratio struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

// Run measures and writes a report.
func Run(ctx context.Context, o Options, w io.Writer) (*Report, error) {
	if err := o.setDefaults(); err != nil {
		return nil, fmt.Errorf("bench embed: %w", err)
	}
	r := &Report{Rows: o.Rows, Skew: o.Skew, Drift: o.HalfLife}
	p := &printer{w: w, json: o.JSON}
	if slices.Contains(o.Parts, "gather") {
		g, err := o.gather(ctx)
		if err != nil {
			return nil, fmt.Errorf("bench embed: %w", err)
		}
		r.Gather = g
		p.gather(g)
	}
	if slices.Contains(o.Parts, "hits") {
		if err := o.hits(ctx, r, p); err != nil {
			return nil, fmt.Errorf("bench embed: %w", err)
		}
	}
	if slices.Contains(o.Parts, "sums") {
		if err := o.sums(ctx, r, p); err != nil {
			return nil, fmt.Errorf("bench embed: %w", err)
		}
	}
	if slices.Contains(o.Parts, "outage") {
		for _, hung := range []bool{false, true} {
			x, err := o.outage(ctx, hung)
			if err != nil {
				return nil, fmt.Errorf("bench embed: %w", err)
			}
			r.Outages = append(r.Outages, *x)
			p.outage(x)
		}
	}
	if slices.Contains(o.Parts, "refill") {
		var err error
		if r.Refills, err = o.refills(ctx, p); err != nil {
			return nil, fmt.Errorf("bench embed: %w", err)
		}
	}
	return r, p.finish(r)
}

// sums runs every cell of the comparison.
func (o *Options) sums(ctx context.Context, r *Report, p *printer) error {
	server, err := redisserver.Start()
	if err != nil {
		return err
	}
	defer server.Stop()
	store, err := table.NewRedis(table.RedisConfig{Addresses: []string{server.Addr}, Prefix: "e:", RowBytes: rowBytes})
	if err != nil {
		return err
	}
	defer store.Close()
	truth := table.NewMemory(o.Rows, rowBytes)
	if err := o.load(ctx, truth, store); err != nil {
		return err
	}
	p.head(o)
	for _, name := range o.Traces {
		for _, percent := range o.Percents {
			if err := o.cell(ctx, name, percent, truth, store, r, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// load writes the table.
func (o *Options) load(ctx context.Context, stores ...table.Store) error {
	const chunk = 2000
	keys, rows := make([]uint64, 0, chunk), make([]byte, 0, chunk*rowBytes)
	for k := range uint64(o.Rows) {
		keys = append(keys, k)
		for j := range uint64(rowFloats) {
			rows = binary.LittleEndian.AppendUint32(rows, math.Float32bits(float32((k*31+j)%97)))
		}
		if len(keys) < chunk && int(k) < o.Rows-1 {
			continue
		}
		for _, s := range stores {
			if err := s.Put(ctx, keys, rows); err != nil {
				return err
			}
		}
		keys, rows = keys[:0], rows[:0]
	}
	return nil
}

// contender is a policy with its cache.
type contender struct {
	policy      string
	cache       *table.Cache // nil: none
	warm, table *table.Table
	seconds     []float64 // per round
	count       counts
}

// contenders gives each policy the same memory: rows and what is kept beside them.
func (o *Options) contenders(rows int, truth, store table.Store) ([]*contender, func(), error) {
	var out []*contender
	var closing []func()
	end := func() {
		for _, f := range slices.Backward(closing) {
			f()
		}
	}
	for _, policy := range o.Policies {
		c := &contender{policy: policy}
		n, err := rows, error(nil)
		if policy == "lru" {
			n = o.lruRows(rows)
		}
		if policy != "none" {
			var closeIt func()
			if c.cache, closeIt, err = newCache(n, rowBytes, policy); err != nil {
				end()
				return nil, nil, err
			}
			closing = append(closing, closeIt)
		}
		if c.warm, err = table.NewTable(truth, c.cache, table.TableConfig{}); err == nil {
			c.table, err = table.NewTable(store, c.cache, table.TableConfig{Timeout: 10 * time.Second})
		}
		if err != nil {
			end()
			return nil, nil, err
		}
		out = append(out, c)
	}
	return out, end, nil
}

// lruRows is how many rows LRU has where the default has so many.
func (o *Options) lruRows(rows int) int {
	if !slices.Contains(o.Policies, "default") {
		return rows
	}
	return int(float64(rows) * (rowBytes + overhead("default")) / (rowBytes + overhead("lru")))
}

// overhead is what a policy keeps beside a row.
func overhead(policy string) float64 {
	c, end, err := newCache(16*64, 8, policy)
	if err != nil {
		return 0
	}
	defer end()
	return c.Overhead()
}

func newCache(rows, bytes int, policy string) (*table.Cache, func(), error) {
	p, err := pool.New(int64(rows+64)*int64(bytes)+2<<12, 1<<12)
	if err != nil {
		return nil, nil, err
	}
	c, err := table.NewCache(p, table.Config{Rows: rows, RowBytes: bytes, Policy: policy})
	if err != nil {
		return nil, nil, err
	}
	return c, func() { c.Close(); p.Close() }, nil
}

// cell measures all batch sizes of one trace and cache size, on one stream of lookups.
func (o *Options) cell(ctx context.Context, name string, percent float64, truth, store table.Store, r *Report,
	p *printer) error {
	stream, rows, err := o.stream(name)
	if errors.Is(err, fs.ErrNotExist) {
		p.printf("%-6s left out: %v\n", name, err)
		return nil
	}
	if err != nil {
		return err
	}
	if rows > o.Rows {
		return fmt.Errorf("trace %s has %d rows, the table %d", name, rows, o.Rows)
	}
	cs, end, err := o.contenders(int(float64(rows)*percent/100), truth, store)
	if err != nil {
		return err
	}
	defer end()
	sums := newSums(max(slices.Max(o.Batches), 1024))
	if err := o.warmUp(ctx, cs, stream, sums); err != nil {
		return err
	}
	for _, batch := range o.Batches {
		for _, c := range cs {
			c.seconds, c.count = nil, counts{}
		}
		keys := make([]uint64, max(least/(batch*lookups), 1)*batch*lookups)
		for round := range o.Rounds {
			stream.next(keys)
			for i := range cs {
				c := cs[(i+round)%len(cs)]
				begin := time.Now()
				n, err := sums.run(ctx, c.table, keys, batch)
				if err != nil {
					return err
				}
				c.seconds = append(c.seconds, time.Since(begin).Seconds())
				c.count.add(n)
			}
		}
		if err := sums.check(ctx, truth, cs, keys[:batch*lookups]); err != nil {
			return err
		}
		for _, l := range lines(name, percent, batch, len(keys), cs) {
			r.Lines = append(r.Lines, l)
			p.line(&l)
		}
	}
	return nil
}

// warmUp fills the caches from memory.
func (o *Options) warmUp(ctx context.Context, cs []*contender, from stream, s *summer) error {
	keys, warm := make([]uint64, 8192), o.Warm
	if r, ok := from.(*recorded); ok {
		warm = min(warm, len(r.keys)*2/5)
	}
	for done := 0; done < warm; done += len(keys) {
		from.next(keys)
		for _, c := range cs {
			if c.cache == nil {
				continue
			}
			if _, err := s.run(ctx, c.warm, keys, len(keys)/lookups); err != nil {
				return err
			}
		}
	}
	return nil
}

func lines(trace string, percent float64, batch, asked int, cs []*contender) []Line {
	lru := cs[slices.IndexFunc(cs, func(c *contender) bool { return c.policy == "lru" })]
	var out []Line
	for _, c := range cs {
		l := Line{Trace: trace, Percent: percent, Batch: batch, Policy: c.policy, Hits: c.count.share(c.count.hits),
			Asked: c.count.share(c.count.asked)}
		if c.cache != nil {
			l.Rows = c.cache.Rows()
		}
		ratios := make([]float64, len(c.seconds))
		for i, s := range c.seconds {
			ratios[i] = lru.seconds[i] / s
		}
		l.Rate, l.Ratio = float64(asked)/report.Median(c.seconds), ratioOf(ratios)
		out = append(out, l)
	}
	return out
}

// ratioOf is the median of ratios, and between which it lies with 95 %.
func ratioOf(ratios []float64) Ratio {
	low, high := report.Interval(ratios)
	return Ratio{Median: report.Median(ratios), Low: low, High: high}
}

package embed

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"grebe/bench/report"
	table "grebe/embed"
	"grebe/embed/redisserver"
)

// Outage is what requests see while Redis is gone: clients gather batches all the time, the server is killed, and
// started again with its rows.
type Outage struct {
	Seconds  float64 `json:"seconds"`  // that Redis was gone
	Requests int     `json:"requests"` // batches, of 256 rows each
	Failed   int     `json:"failed"`   // of these, those with a row that is neither right nor the default
	Rows     int     `json:"rows"`
	Phases   []Phase `json:"phases"` // before, without Redis, after
	Recovery float64 `json:"recovery_seconds"`
	Hung     bool    `json:"hung"` // Redis was stopped, so that connections stay open, and not killed
}

// Phase is a stretch of an outage's run.
type Phase struct {
	Name     string  `json:"name"`
	Requests int     `json:"requests"`
	Hits     float64 `json:"hit_rate"`
	Defaults float64 `json:"defaults"` // share of rows
	P50      float64 `json:"p50_ms"`
	P99      float64 `json:"p99_ms"`
}

const (
	outageRows    = 100_000 // at most
	outageBatch   = 256
	outageClients = 2
	outageLeast   = 10          // requests of a phase, however slow the machine is
	outageLacks   = 0.8         // of a phase's rows are defaults at most while Redis is there
	outageBack    = time.Minute // until that is so
)

// outageRun is the state of a run.
type outageRun struct {
	table *table.Table
	mu    sync.Mutex
	tries []try
}

// try is one request.
type try struct {
	at, took       time.Duration
	hits, defaults int
	wrong          bool
}

func (o *Options) outage(ctx context.Context, hung bool) (*Outage, error) {
	rows := min(o.Rows, outageRows)
	server, err := redisserver.Start("--appendonly", "yes", "--appendfsync", "no")
	if err != nil {
		return nil, err
	}
	defer server.Stop()
	store, err := table.NewRedis(table.RedisConfig{Addresses: []string{server.Addr}, Prefix: "e:", RowBytes: rowBytes})
	if err != nil {
		return nil, err
	}
	defer store.Close()
	cache, end, err := newCache(rows/20, rowBytes, "default")
	if err != nil {
		return nil, err
	}
	defer end()
	t, err := table.NewTable(store, cache, table.TableConfig{Timeout: 100 * time.Millisecond})
	if err != nil {
		return nil, err
	}
	if err := (&Options{Rows: rows}).load(ctx, store); err != nil {
		return nil, err
	}
	r := &outageRun{table: t}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	begin := time.Now()
	var clients sync.WaitGroup
	for c := range uint64(outageClients) {
		clients.Go(func() { r.client(ctx, newTrace(rows, o.Skew, 0, o.Seed+c), begin) })
	}
	marks, err := r.breakIt(ctx, server, o.Outage, hung, begin)
	stop()
	clients.Wait()
	if err != nil {
		return nil, err
	}
	x := r.report(marks, hung)
	x.Rows = rows
	return x, nil
}

// breakIt lets the load run, takes Redis away for a while, and returns when that began and ended.
func (r *outageRun) breakIt(ctx context.Context, server *redisserver.Server, gone time.Duration, hung bool,
	begin time.Time) ([2]time.Duration, error) {
	var marks [2]time.Duration
	around := min(5*time.Second, 2*gone)
	if err := r.phase(ctx, around, begin, 0, outageLacks); err != nil {
		return marks, fmt.Errorf("before the outage: %w", err)
	}
	marks[0] = time.Since(begin)
	var err error
	if hung {
		err = server.Freeze(true)
	} else {
		server.Halt()
	}
	if err == nil {
		err = r.phase(ctx, gone, begin, time.Since(begin), 1)
	}
	if err != nil {
		return marks, err
	}
	if hung {
		err = server.Freeze(false)
	} else {
		err = server.Resume()
	}
	marks[1] = time.Since(begin)
	if err != nil {
		return marks, err
	}
	if err := r.phase(ctx, around, begin, marks[1], outageLacks); err != nil {
		return marks, fmt.Errorf("after the outage: %w", err)
	}
	return marks, nil
}

// phase lets clients ask for a while, and until enough of what they asked since then was answered and no more than a
// share of it lacks rows: a slow machine answers little, and late, in the same time.
func (r *outageRun) phase(ctx context.Context, lasts time.Duration, begin time.Time, since time.Duration,
	lacks float64) error {
	end := since + max(lasts, outageBack)
	for {
		if err := wait(ctx, lasts); err != nil {
			return err
		}
		r.mu.Lock()
		p := phase("", r.tries, since, math.MaxInt64)
		r.mu.Unlock()
		if p.Requests >= outageLeast && p.Defaults <= lacks {
			return nil
		}
		if p.Defaults > lacks && time.Since(begin) > end {
			return fmt.Errorf("%.3f of the rows of %d requests were defaults, for %v", p.Defaults, p.Requests,
				time.Since(begin)-since)
		}
		lasts = 10 * time.Millisecond
	}
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// client gathers and looks at every row.
func (r *outageRun) client(ctx context.Context, from stream, begin time.Time) {
	keys, rows := make([]uint64, outageBatch), make([]byte, outageBatch*rowBytes)
	for ctx.Err() == nil {
		from.next(keys)
		start := time.Now()
		g := r.table.Gather(context.Background(), keys, rows)
		t := try{at: start.Sub(begin), took: time.Since(start), hits: g.Hits, defaults: g.Default}
		zeros := 0
		for i, k := range keys {
			switch rowIs(rows[i*rowBytes:(i+1)*rowBytes], k) {
			case "default":
				zeros++
			case "":
				t.wrong = true
			}
		}
		t.wrong = t.wrong || zeros != g.Default
		r.mu.Lock()
		r.tries = append(r.tries, t)
		r.mu.Unlock()
	}
}

// rowIs says whether a row is the key's, as load made it, or the default, which is zeros, as no row of load's is.
func rowIs(row []byte, k uint64) string {
	own, zeros := true, true
	for j := range uint64(rowFloats) {
		v := math.Float32frombits(binary.LittleEndian.Uint32(row[4*j:]))
		own = own && v == float32((k*31+j)%97)
		zeros = zeros && v == 0
	}
	switch {
	case own:
		return "own"
	case zeros:
		return "default"
	}
	return ""
}

func (r *outageRun) report(marks [2]time.Duration, hung bool) *Outage {
	slices.SortFunc(r.tries, func(a, b try) int { return int(a.at - b.at) })
	out := &Outage{Seconds: (marks[1] - marks[0]).Seconds(), Requests: len(r.tries), Hung: hung}
	last := marks[1] // the last request that lacked rows
	for _, t := range r.tries {
		if t.wrong {
			out.Failed++
		}
		if t.defaults > 0 {
			last = max(last, t.at+t.took)
		}
	}
	out.Recovery = (last - marks[1]).Seconds()
	end := time.Duration(math.MaxInt64)
	for i, name := range []string{"before", "without", "after"} {
		lo, hi := [3]time.Duration{0, marks[0], marks[1]}[i], [3]time.Duration{marks[0], marks[1], end}[i]
		out.Phases = append(out.Phases, phase(name, r.tries, lo, hi))
	}
	return out
}

func phase(name string, all []try, lo, hi time.Duration) Phase {
	p := Phase{Name: name}
	var took []time.Duration
	hits, defaults := 0, 0
	for _, t := range all {
		if t.at >= lo && t.at < hi {
			took = append(took, t.took)
			hits, defaults = hits+t.hits, defaults+t.defaults
		}
	}
	if p.Requests = len(took); p.Requests == 0 {
		return p
	}
	slices.Sort(took)
	rows := float64(p.Requests * outageBatch)
	p.Hits, p.Defaults = float64(hits)/rows, float64(defaults)/rows
	p.P50, p.P99 = report.Percentile(took, 50).Seconds()*1e3, report.Percentile(took, 99).Seconds()*1e3
	return p
}

func (p *printer) outage(x *Outage) {
	what := "killed"
	if x.Hung {
		what = "stopped with its connections open"
	}
	p.printf("Redis %s for %.1f s and back, %d rows, %d clients with batches of %d: %d requests, %d failed; all rows "+
		"again %.2f s after it was back\n\n",
		what, x.Seconds, x.Rows, outageClients, outageBatch, x.Requests, x.Failed, x.Recovery)
	for _, h := range x.Phases {
		p.printf("%-8s %7d requests  hits %5.1f%%  defaults %5.1f%%  P50 %6.2f ms  P99 %6.2f ms\n", h.Name, h.Requests,
			100*h.Hits, 100*h.Defaults, h.P50, h.P99)
	}
	p.printf("\n")
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"grebe/embed"
	"grebe/embed/redisserver"
	"grebe/model/hstu"
	"grebe/model/hstu/hstutest"
)

// Outages of the Redis that has the rows of a model's items: it is killed, stopped, slow, or loses its rows. No request
// fails meanwhile. An answer that default rows went into says so. Within a second after Redis is back, all answers are
// as before.
//
// GREBE_TRIAL=full makes each outage last 30 s.
func TestTrialRedisOutages(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	if !trialFull() {
		t.Parallel() // it waits most of the time
	}
	o := newOutages(t)
	for _, f := range []struct {
		name        string
		fails, ends func() error
	}{
		{"killed", func() error { o.redis.Halt(); return nil }, func() error { return o.redis.Resume() }},
		{"stopped", func() error { return o.redis.Freeze(true) }, func() error { return o.redis.Freeze(false) }},
		{"slow", func() error { o.link.later.Store(int64(300 * time.Millisecond)); return nil },
			func() error { o.link.later.Store(0); return nil }},
		{"flushed", func() error { return o.redis.Command("FLUSHALL") }, o.fill},
	} {
		t.Run(f.name, func(t *testing.T) { o.outage(t, f.fails, f.ends) })
	}
}

const (
	outageItems = 2000
	outageDim   = 32
	outagePace  = 10 * time.Millisecond // between two requests of a client
	outageBack  = time.Second           // in which answers are right again
)

// outages is a server whose model has its items' rows in Redis, behind a link.
type outages struct {
	redis  *redisserver.Server
	link   *link
	server *running
	asked  []string // requests
	right  []string // their answers
}

func newOutages(t *testing.T) *outages {
	t.Helper()
	s := startRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	o := &outages{redis: s, link: startLink(t, s.Addr)}
	if err := o.fill(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := hstutest.Write(dir, hstutest.Spec{Hidden: outageDim, Layers: 1, Heads: 2, HeadDim: 16, Items: outageItems,
		MaxSeqLen: 64, Change: func(c *hstu.Config) { c.Retrieval = false }}); err != nil {
		t.Fatal(err)
	}
	// A cache of a quarter of the rows: some look-ups hit in an outage, too. Users' KV is not kept, so that all is
	// computed from rows.
	file := filepath.Join(dir, "grebe.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, `listen: 127.0.0.1:0
grpc_listen: ""
admin_listen: ""
device: cpu
threads: 1
slo_ms: 1000
data_dir: %s
cache: {host_memory: 0}
tables: [{name: items, store: redis, addresses: [%q], prefix: "items:", dim: %d, cache: 64KiB}]
models: [{name: events, path: %s, item_table: items}]
`, t.TempDir(), o.link.addr(), outageDim, dir), 0o600); err != nil {
		t.Fatal(err)
	}
	o.server = start(t, "serve", "-c", file)
	r := rand.New(rand.NewPCG(5, 5))
	for range 64 {
		body := map[string]any{"user": map[string]any{"history": o.some(r, 12)}}
		var candidates []map[string]any
		for _, id := range o.some(r, 6) {
			candidates = append(candidates, map[string]any{"id": id})
		}
		body["candidates"] = candidates
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		o.asked = append(o.asked, string(text))
		a := o.ask(len(o.asked) - 1)
		if a.err != nil || len(a.notes) > 0 {
			t.Fatalf("before any outage: %v, notes %q", a.err, a.notes)
		}
		o.right = append(o.right, a.results)
	}
	return o
}

func (*outages) some(r *rand.Rand, n int) (ids []string) {
	for range n {
		ids = append(ids, fmt.Sprint("i", r.IntN(outageItems)))
	}
	return ids
}

// fill writes all rows.
func (o *outages) fill() error { return fillRows(o.redis.Addr, outageItems, outageDim) }

// startRedis runs a redis-server until the end of the test.
func startRedis(t *testing.T, args ...string) *redisserver.Server {
	t.Helper()
	s, err := redisserver.Start(args...)
	if errors.Is(err, redisserver.ErrAbsent) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// fillRows writes the rows of a table called items.
func fillRows(addr string, items, dim int) error {
	r := rand.New(rand.NewPCG(6, 6))
	keys, rows := make([]uint64, items), make([]float32, items*dim)
	for i := range keys {
		keys[i] = uint64(i)
	}
	for i := range rows {
		rows[i] = float32(r.NormFloat64()) / 6
	}
	store, err := embed.NewRedis(embed.RedisConfig{Addresses: []string{addr}, Prefix: "items:", RowBytes: 4 * dim})
	if err != nil {
		return err
	}
	return errors.Join(store.Put(context.Background(), keys, embed.Bytes(rows)), store.Close())
}

// outageAnswer is what a client got.
type outageAnswer struct {
	at, end time.Time
	results string
	notes   []string
	err     error
	wrong   bool
}

func (o *outages) ask(i int) (a outageAnswer) {
	a.at = time.Now()
	defer func() { a.end = time.Now() }()
	resp, err := trialClient.Post(o.server.http+"/v1/rank", "application/json", strings.NewReader(o.asked[i]))
	if a.err = err; err != nil {
		return a
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, data)
	}
	var body struct {
		Results json.RawMessage
		Notes   []string
	}
	if a.err = err; err == nil {
		a.err = json.Unmarshal(data, &body)
	}
	a.results, a.notes = string(body.Results), body.Notes
	return a
}

// outage asks all the time, before, during and after an outage.
func (o *outages) outage(t *testing.T, fails, ends func() error) {
	before, during := long(3*time.Second, 300*time.Millisecond), long(30*time.Second, time.Second)
	var mu sync.Mutex
	var all []outageAnswer
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for c := range 4 {
		clients.Go(func() {
			r, tick := rand.New(rand.NewPCG(7, uint64(c))), time.NewTicker(outagePace)
			defer tick.Stop()
			for {
				select {
				case <-stop:
					return
				case <-tick.C:
				}
				i := r.IntN(len(o.asked))
				a := o.ask(i)
				a.wrong = a.err == nil && a.results != o.right[i]
				mu.Lock()
				all = append(all, a)
				mu.Unlock()
			}
		})
	}
	time.Sleep(before)
	began := time.Now()
	err := fails()
	time.Sleep(during)
	ended := time.Now() // a server that was killed is back later, when it has read its rows
	err = errors.Join(err, ends())
	back := time.Now()
	time.Sleep(outageBack + before)
	close(stop)
	clients.Wait()
	if err != nil {
		t.Fatal(err)
	}
	o.judge(t, all, began, ended, back)
}

func (o *outages) judge(t *testing.T, all []outageAnswer, began, ended, back time.Time) {
	failed, marked, silent, stray := 0, 0, 0, 0
	var last time.Time
	var took []time.Duration
	for i := range all {
		a := &all[i]
		switch {
		case a.err != nil:
			if failed++; failed < 4 {
				t.Errorf("%v after the outage began: %v", a.at.Sub(began), a.err)
			}
		case a.end.Before(began) || a.at.After(back.Add(outageBack)):
			if a.wrong || len(a.notes) > 0 {
				stray++
			}
		case len(a.notes) > 0:
			marked++
		case a.wrong:
			silent++
		}
		if a.end.After(began) && a.at.Before(back) {
			took = append(took, a.end.Sub(a.at))
		}
		if (a.wrong || len(a.notes) > 0) && a.at.After(last) {
			last = a.at
		}
	}
	slices.Sort(took)
	t.Logf("%d answers, %d failed; of %d during %.1f s of outage P50 %v, P99 %v, the longest %v; %d were marked, "+
		"%d wrong ones were not; the last default row was %v after Redis was back", len(all), failed, len(took),
		back.Sub(began).Seconds(), took[len(took)/2], took[len(took)*99/100], took[len(took)-1], marked, silent,
		max(0, last.Sub(back)))
	if silent > 0 || stray > 0 {
		t.Errorf("%d answers with default rows were not marked; %d were wrong before the outage, or later than %v after it",
			silent, stray, outageBack)
	}
	if marked == 0 {
		t.Errorf("no answer was marked in %v: the outage was none", ended.Sub(began))
	}
}

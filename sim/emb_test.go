package sim

import (
	"testing"
	"time"

	"grebe/schedule"
	"grebe/workload/regime"
)

// events is a stream of package regime.
type events struct {
	stream *regime.Stream
	spec   regime.Spec
	last   map[uint64]regime.Request // by user
	items  []int32
	ones   []int32
}

func newEvents(t testing.TB, name string, times float64) *events {
	t.Helper()
	spec, err := regime.Named(name, 3)
	if err != nil {
		t.Fatal(err)
	}
	spec.Rate *= times
	stream, err := regime.NewStream(spec)
	if err != nil {
		t.Fatal(err)
	}
	e := &events{stream: stream, spec: spec, last: map[uint64]regime.Request{}}
	for i := range spec.Candidates {
		e.items, e.ones = append(e.items, int32(i)), append(e.ones, 1)
	}
	return e
}

func (e *events) Items() int                { return len(e.items) }
func (e *events) ItemTokens(int32) int32    { return 1 }
func (e *events) Grains() (count, rows int) { return e.spec.Grains, e.spec.Grain }

func (e *events) Next(r *Request) bool {
	q, ok := e.stream.Next()
	if !ok {
		return false
	}
	e.last[q.User] = q
	r.At, r.User, r.UserTokens = time.Duration(q.At*float64(time.Second)), q.User, int32(q.Events)
	r.Items, r.ItemTokens = append(r.Items[:0], e.items...), append(r.ItemTokens[:0], e.ones...)
	return true
}

func (e *events) AppendGrains(dst []int32, r *Request, cached int) []int32 {
	q := e.last[r.User]
	q.Events = int(r.UserTokens)
	return e.stream.AppendRows(dst, &q, cached)
}

// A model of events divides its memory between KV and embeddings, and the controller moves the boundary.
func TestEventsAndEmbeddings(t *testing.T) {
	s := small(t, func(s *Scenario) {
		s.Requests, s.SLO, s.Deadline = 12000, ms(30), Duration{time.Minute}
		s.Prompt.Policy, s.Prompt.Question = "user", 0
		s.Fleet.Nodes, s.Route.Policy = 2, "joint"
		s.Route.Heartbeat, s.Cache.Predict = ms(200), true
	})
	p := *s.profiles[0]
	p.DeviceBytes, p.HostBytes, p.KVTokenBytes, p.RowBytes, p.RowLink, p.Noise = 128849018880, 0, 6144, 1024, 49e9, 0
	p.Prefill = schedule.PrefillModel{Fixed: .2214, Row: 1.053e-4, Key: 1.493e-8}
	p.Prefill.Quality.Largest = schedule.Sample{Rows: 15000, Keys: 15000 * 7500, Requests: 1}
	s.profiles = []*Profile{&p, &p}
	r, f := play(t, s, Options{Stream: newEvents(t, "steady", 2)})
	if r.Answered < 11900 || r.Hits.Device == 0 {
		t.Errorf("%d answered, hits %+v", r.Answered, r.Hits)
	}
	for i, n := range f.nodes {
		if n.emb.alpha == .5 || n.alpha() < .1 || n.alpha() > .9 {
			t.Errorf("node %d: the boundary is at %v", i, n.emb.alpha)
		}
		if top := n.users.mem[0]; top.used > top.total || float64(top.total) > (1-n.emb.alpha)*float64(n.emb.total)+1 {
			t.Errorf("node %d: KV has %d of %d bytes at a share of %v for embeddings", i, top.used, top.total, n.emb.alpha)
		}
		if _, models := n.users.books.Forecasts(); models == 0 {
			t.Errorf("node %d: no model of returns was trained", i)
		}
		if looks := &n.emb.last; looks.EmbHit <= 0 || looks.EmbHit >= 1 {
			t.Errorf("node %d: %v of the look-ups hit", i, looks.EmbHit)
		}
	}
	t.Logf("hits %+v, P99 %.2f ms, shares %.3f %.3f", r.Hits, r.Latency.P99, f.nodes[0].emb.alpha, f.nodes[1].emb.alpha)
}

// A cache whose share of the memory is small and fixed keeps all grains that fit. Measured times of grains are 0 until
// some were fetched, as those of servers are.
func TestASmallFixedShareOfEmbeddings(t *testing.T) {
	s := small(t, func(s *Scenario) {
		s.Fleet.Nodes, s.Embeddings.Controller, s.Embeddings.Share = 1, "static", 0.01
	})
	p, stream := *s.profiles[0], newEvents(t, "steady", 1)
	_, rows := stream.Grains()
	p.RowBytes, p.RowLink, p.DeviceBytes = 1024, 1e9, 100*64*int64(rows)*1024*10 // ten sets at a share of 1 %
	s.profiles = []*Profile{&p}
	f, err := newFleet(s, Options{Stream: stream})
	if err != nil {
		t.Fatal(err)
	}
	e := f.nodes[0].emb
	hits := 0
	for round := range 2 {
		for g := range int32(320) { // half of the slots, so that hardly a set has too many
			if e.cache.Use(g, 1, &e.epoch.gains.Emb) && round == 1 {
				hits++
			}
		}
	}
	if are, most := e.cache.Sets(); hits < 315 || are != 10 || most != 10 {
		t.Errorf("%d of 320 grains are cached in %d of %d sets", hits, are, most)
	}
	if ms := f.nodes[0].rowMs(); ms != 0 {
		t.Errorf("a grain takes %v ms before one was fetched", ms)
	}
}

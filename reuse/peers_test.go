package reuse

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"grebe/bench/replay"
	"grebe/engine"
	"grebe/internal/record"
	"grebe/kv"
	"grebe/plan"
	"grebe/residency"
	"grebe/schedule"
)

// neighbour has the KV of another machine's store, at no distance.
type neighbour struct {
	from      *kv.Store
	trip, mib float64
	fetched   func(ctx context.Context, wants []Want) // called instead of a fetch; nil: fetch
	mu        sync.Mutex
	wants     int
}

func (n *neighbour) Items(keys []plan.Key, tiers []plan.Tier) (found int) {
	for i := range keys {
		if _, ok := n.from.Lookup(keys[i]); ok && tiers[i] == plan.Missing {
			tiers[i] = plan.Peer
			found++
		}
	}
	return found
}

func (n *neighbour) User(key plan.Key, tokens []int32) int {
	e, ok := n.from.Lookup(key)
	if !ok || int(e.Tokens) > len(tokens) || e.Digest != residency.Digest(tokens[:e.Tokens]) {
		return 0
	}
	return int(e.Tokens)
}

func (n *neighbour) Cost() (trip, mib, late float64) { return n.trip, n.mib, 1 }
func (n *neighbour) Damaged() int64                  { return 3 }

func (n *neighbour) Fetch(ctx context.Context, wants []Want) {
	n.mu.Lock()
	n.wants += len(wants)
	n.mu.Unlock()
	if n.fetched != nil {
		n.fetched(ctx, wants)
		return
	}
	for i := range wants {
		n.send(ctx, &wants[i])
	}
}

func (n *neighbour) send(ctx context.Context, w *Want) {
	digest := uint64(0)
	if w.Tokens != nil {
		digest = residency.Digest(w.Tokens)
	}
	var l kv.Loan
	if n.from.Lend(ctx, w.Key, len(w.Tokens), digest, &l) != nil {
		return
	}
	defer n.from.Return(&l)
	all := slices.Concat(l.Pieces...)
	pieces, err := w.Arrival.Place(l.Meta, int64(len(all)))
	for _, p := range pieces {
		all = all[copy(p, all):]
	}
	w.Came = err == nil
}

// scoreOf answers a score of items without a user, the items first. It returns the sources of the items.
func (m *machine) scoreOf(t *testing.T, query []int32, items [][]int32) (logits []float32, sources []string) {
	t.Helper()
	l := m.prompt.Score(query, items, true)
	job := &engine.Job{Plan: l.Plan}
	for i := range items {
		job.Want = append(job.Want, engine.Want{Segment: l.Answers + i, IDs: []int32{1, 2}})
	}
	v := m.Unnamed(&l)
	v.Attach(t.Context(), &l, job)
	res, err := m.engine.Do(t.Context(), job)
	if err != nil {
		t.Fatal(err)
	}
	for i := range items {
		_, at := job.Cached(l.Items + i)
		sources = append(sources, at.String())
	}
	v.EndUnnamed(&l, res)
	return slices.Concat(res.Logits...), sources
}

// Scores without a user fetch items that a peer has, as rankings do, and have the bits of computed ones.
func TestScoresFromAPeer(t *testing.T) {
	r := &Request{UserID: "u", User: someone, Items: someItems, Policy: schedule.Item}
	from, to, n, _ := pair(t, r)
	query := []int32{41, 42}
	alone := newMachine(t, 7, []int32{1, 2}, "", false)
	want, sources := alone.scoreOf(t, query, someItems)
	if slices.Contains(sources, "peer") {
		t.Fatalf("without peers: %q", sources)
	}
	got, sources := to.scoreOf(t, query, someItems)
	if !slices.Equal(got, want) || sources[0] != "peer" || sources[1] != "peer" || n.wants != 2 {
		t.Errorf("same answer %v, sources %q, %d entries asked for", slices.Equal(got, want), sources, n.wants)
	}
	if got, sources = to.scoreOf(t, query, someItems); !slices.Equal(got, want) || sources[0] != "host" || n.wants != 2 {
		t.Errorf("again: same answer %v, sources %q, %d entries asked for", slices.Equal(got, want), sources, n.wants)
	}
	dear := newMachine(t, 7, []int32{1, 2}, "", false)
	far := &neighbour{from: from.store, trip: 1e4}
	dear.opt.Load = slow{}
	dear.SetPeers(far)
	if got, sources = dear.scoreOf(t, query, someItems); !slices.Equal(got, want) || far.wants != 0 {
		t.Errorf("from far away: same answer %v, sources %q, %d entries asked for", slices.Equal(got, want), sources,
			far.wants)
	}
}

// slow computes a token in 20 milliseconds.
type slow struct{ quiet }

func (slow) Model() schedule.PrefillModel { return schedule.PrefillModel{Row: 20} }

// pair returns a machine that has ranked r and one that has not, whose peer it is.
func pair(t *testing.T, r *Request) (from, to *machine, n *neighbour, logits []float32) {
	t.Helper()
	from, to = newMachine(t, 7, []int32{1, 2}, "", false), newMachine(t, 7, []int32{1, 2}, "", false)
	from.opt.Load, to.opt.Load = slow{}, slow{}
	n = &neighbour{from: from.store}
	to.SetPeers(n)
	logits, _, _, _ = from.visitOf(t, r)
	return from, to, n, logits
}

var (
	someone   = []int32{11, 12, 13, 14, 15}
	someItems = [][]int32{{21, 22, 23}, {31, 32}, {21, 22, 23}}
)

// KV from a peer equals computed KV, is counted as such, and is this node's own from then on.
func TestRankingsFromAPeer(t *testing.T) {
	for _, policy := range []schedule.Policy{schedule.User, schedule.Item} {
		r := &Request{UserID: "u", User: someone, Items: someItems, Policy: policy}
		_, to, n, want := pair(t, r)
		got, sources, _, _ := to.visitOf(t, r)
		if !slices.Equal(got, want) || sources[1] != "peer" || n.wants == 0 {
			t.Errorf("%v: same answer %v, %q, %d entries asked for", policy, slices.Equal(got, want), sources, n.wants)
		}
		asked := n.wants
		if got, sources, _, _ = to.visitOf(t, r); !slices.Equal(got, want) || sources[1] != "host" || n.wants != asked {
			t.Errorf("%v: again: same answer %v, %q", policy, slices.Equal(got, want), sources)
		}
		if d, ok := to.PeerDamaged(); d != 3 || !ok {
			t.Errorf("%d damaged entries, %v", d, ok)
		}
	}
}

// A request asks peers only if that is predicted to be faster than computing.
func TestPeersAreAskedIfThatPays(t *testing.T) {
	for _, policy := range []schedule.Policy{schedule.Predicted, schedule.User, schedule.Item} {
		for _, c := range []struct {
			trip, mib float64
			asked     bool
		}{{.1, 1, true}, {1000, 0, false}, {0, 1e9, false}} {
			r := &Request{UserID: "u", User: someone, Items: someItems, Policy: policy}
			_, to, n, want := pair(t, r)
			n.trip, n.mib = c.trip, c.mib
			if got, _, _, _ := to.visitOf(t, r); !slices.Equal(got, want) || (n.wants > 0) != c.asked {
				t.Errorf("%v, a trip of %v ms and %v ms per MiB: %d entries asked for, same answer %v",
					policy, c.trip, c.mib, n.wants, slices.Equal(got, want))
			}
		}
	}
}

// A request waits for a peer no longer than computing takes. What does not come is computed. Time is virtual here:
// computing takes none of it, so the budget is what was decided, whatever the machine does meanwhile.
func TestPeersThatDoNotAnswer(t *testing.T) {
	for _, policy := range []schedule.Policy{schedule.User, schedule.Item} {
		synctest.Test(t, func(t *testing.T) {
			r := &Request{UserID: "u", User: someone, Items: someItems, Policy: policy}
			_, to, n, want := pair(t, r)
			var budget time.Duration
			n.fetched = func(ctx context.Context, wants []Want) {
				end, _ := ctx.Deadline()
				budget = time.Until(end)
				n.send(ctx, &wants[0]) // but its end is not confirmed
				wants[0].Came = false
				<-ctx.Done()
			}
			got, sources, _, _ := to.visitOf(t, r)
			if !slices.Equal(got, want) || slices.Contains(sources, "peer") {
				t.Errorf("%v: same answer %v, %q", policy, slices.Equal(got, want), sources)
			}
			if budget <= 0 || budget > 160*time.Millisecond { // at most eight tokens, of 20 ms each
				t.Errorf("%v: the budget is %v", policy, budget)
			}
			if _, first := to.store.Expect(0, plan.User, to.UserKey("u", nil), someone, 0); !first {
				t.Error("an arrival has not ended")
			}
		})
	}
}

// A user who is deleted while a peer sends it does not come back.
func TestUsersDeletedWhileTheyArrive(t *testing.T) {
	r := &Request{UserID: "u", User: someone, Items: someItems, Policy: schedule.User}
	_, to, n, want := pair(t, r)
	n.fetched = func(ctx context.Context, wants []Want) {
		n.send(ctx, &wants[0])
		if err := to.DropUser("u"); err != nil {
			t.Error(err)
		}
	}
	v := to.Begin(r)
	l, err := to.prompt.Rank(v.Order(), r.User, r.Items)
	if err != nil {
		t.Fatal(err)
	}
	job := &engine.Job{Plan: l.Plan, Want: []engine.Want{{Segment: l.Answers, IDs: []int32{1, 2}}}}
	v.Attach(t.Context(), &l, job)
	if _, ok := to.store.Lookup(to.UserKey("u", nil)); ok || job.Tiers()[plan.Peer] != 0 {
		t.Error("the deleted user came back")
	}
	res, err := to.engine.Do(t.Context(), job)
	if err != nil || !slices.Equal(res.Logits[0], want) {
		t.Errorf("the answer differs: %v", err)
	}
	v.End(&l, res)
}

// Requests at the same time fetch an entry once. Those that wait for another's fetch use it too.
func TestFetchesAreShared(t *testing.T) {
	r := &Request{UserID: "u", User: someone, Items: someItems, Policy: schedule.Item}
	_, to, n, want := pair(t, r)
	to.opt.Load = glacial{}
	both := make(chan struct{})
	var once sync.Once
	n.fetched = func(ctx context.Context, wants []Want) {
		select {
		case <-both:
		case <-ctx.Done():
		}
		for i := range wants {
			n.send(ctx, &wants[i])
		}
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			v := to.Begin(r)
			once.Do(func() { time.AfterFunc(20*time.Millisecond, func() { close(both) }) })
			l, err := to.prompt.Rank(v.Order(), r.User, r.Items)
			if err != nil {
				t.Error(err)
				return
			}
			job := &engine.Job{Plan: l.Plan, Want: []engine.Want{{Segment: l.Answers, IDs: []int32{1, 2}}}}
			v.Attach(t.Context(), &l, job)
			res, err := to.engine.Do(t.Context(), job)
			if err != nil || !slices.Equal(res.Logits[0], want) {
				t.Errorf("the answer differs: %v", err)
			}
			v.End(&l, res)
		})
	}
	wg.Wait()
	if n.wants != 2 { // one of the three items is there twice
		t.Errorf("%d entries were asked for", n.wants)
	}
}

// glacial computes a token in ten seconds.
type glacial struct{ quiet }

func (glacial) Model() schedule.PrefillModel { return schedule.PrefillModel{Row: 1e4} }

// A generation fetches its user.
func TestGenerationsFromAPeer(t *testing.T) {
	_, to, _, _ := pair(t, &Request{UserID: "u", User: someone, Items: someItems, Policy: schedule.User})
	v := to.Generate("u", someone)
	l := to.prompt.Generate(someone)
	job := &engine.Job{Plan: l.Plan, Hidden: []int{l.Answers}}
	v.AttachPrompt(t.Context(), &l, job)
	if n, at := job.Cached(l.User); n < len(someone)-1 || at != plan.Peer {
		t.Errorf("%d tokens of the user come from %v", n, at)
	}
	res, err := to.engine.Do(t.Context(), job)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range v.EndPrompt(&l, res) {
		if e != nil {
			e.Release()
		}
	}
}

// A blended prompt does not count on blocks of peers, and fetches the user.
func TestBlendedPromptsBesidePeers(t *testing.T) {
	r := &Request{UserID: "u", User: someone, Items: someItems}
	from, to, n, _ := pair(t, &Request{UserID: "u", User: someone, Items: someItems, Policy: schedule.Item})
	from.visitOf(t, &Request{UserID: "u", User: someone, Items: someItems, Policy: schedule.User})
	v := to.Begin(r)
	in := v.withoutPeers()
	if slices.Contains(in.ItemTier, plan.Peer) || !slices.Contains(v.in.ItemTier, plan.Peer) {
		t.Errorf("items are at %v, and for a blended prompt at %v", v.in.ItemTier, in.ItemTier)
	}
	v.End(nil, nil)
	for _, first := range []bool{false, true} {
		if _, a, _, _ := to.blended(t, r, &Blend{Layers: 1, ItemsFirst: first}); first == (a.Peer > 0) ||
			a.Peer > len(someone) {
			t.Errorf("items first %v: %+v", first, a)
		}
		if err := to.DropUser("u"); err != nil {
			t.Error(err)
		}
	}
	if n.wants != 1 {
		t.Errorf("%d entries were asked for", n.wants)
	}
}

// A log has all that the decisions about peers follow from.
func TestPeersAreRecorded(t *testing.T) {
	r := &Request{UserID: "u", User: someone, Items: someItems}
	_, to, n, _ := pair(t, r)
	n.trip, n.mib = .1, 1
	var lines bytes.Buffer
	log := record.New(&lines, 1<<30)
	to.opt.Record = log.Room("reuse")
	to.visitOf(t, r)
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := replay.Run(&lines)
	if err != nil {
		t.Fatal(err)
	}
	if got.Different != 0 || got.Decisions["reuse fetches"] != 1 || got.Decisions["reuse order"] != 1 {
		t.Errorf("%+v", got)
	}
}

package fetch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"grebe/cluster/peer"
	"grebe/kv"
	"grebe/plan"
	"grebe/reuse"
	"grebe/schedule"
)

func tokens(from, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(10 + (from*31+i*7)%180)
	}
	return out
}

// question is a ranking of a user with 100 tokens and 20 items.
func question(policy schedule.Policy) *reuse.Request {
	r := &reuse.Request{UserID: "u", User: tokens(3, 100), Policy: policy}
	for i := range 20 {
		r.Items = append(r.Items, tokens(100+i, 5+i))
	}
	return r
}

var orders = []schedule.Policy{schedule.User, schedule.Item}

// KV that comes from another node over a real connection has the bits that computing gives, between all kinds of
// memory.
func TestFetchedEqualsComputed(t *testing.T) {
	kinds := map[string]kind{"host": {}, "device": {far: true}, "device and host": {far: true, host: true},
		"disk": {disk: true}}
	for a, from := range kinds {
		for b, to := range kinds {
			t.Run(a+" to "+b, func(t *testing.T) {
				all := fleet(t, from, to)
				for _, policy := range orders {
					r := question(policy)
					want, _ := all[0].ranks(t, r)
					got, tiers := all[1].ranks(t, r)
					if reused := len(r.User); policy == schedule.User && tiers[plan.Peer] != reused || tiers[plan.Peer] == 0 ||
						!slices.Equal(got, want) {
						t.Errorf("%v: %v tokens by tier, same answer %v", policy, tiers, slices.Equal(got, want))
					}
					if again, tiers := all[1].ranks(t, r); tiers[plan.Peer] != 0 || !slices.Equal(again, want) {
						t.Errorf("%v: again: %v tokens by tier, same answer %v", policy, tiers, slices.Equal(again, want))
					}
				}
			})
		}
	}
}

// Entries that are only on the other node's disk are fetched too.
func TestFetchFromADisk(t *testing.T) {
	all := fleet(t, kind{disk: true}, kind{})
	r := question(schedule.Item)
	want, _ := all[0].ranks(t, r)
	all[0].store.Flush()
	for _, item := range r.Items {
		all[0].store.Unload(all[0].ItemKey(item))
	}
	if e, ok := all[0].store.Lookup(all[0].ItemKey(r.Items[0])); !ok || e.Tier != plan.Disk {
		t.Fatalf("an item is at %v", e.Tier)
	}
	if got, tiers := all[1].ranks(t, r); tiers[plan.Peer] == 0 || !slices.Equal(got, want) {
		t.Errorf("%v tokens by tier, same answer %v", tiers, slices.Equal(got, want))
	}
}

// A node of another numerics class sends nothing.
func TestOtherNumericsDoNotMix(t *testing.T) {
	all := fleet(t, kind{numerics: "other"}, kind{})
	for _, policy := range orders {
		r := question(policy)
		all[0].ranks(t, r)
		if _, tiers := all[1].ranks(t, r); tiers[plan.Peer] != 0 {
			t.Errorf("%v: %v", policy, tiers)
		}
	}
	if s := all[0].server.Stats(); s.Answers[peer.Hit] != 0 || s.Answers[peer.Miss] == 0 {
		t.Errorf("%+v", s)
	}
}

// A peer that stalls in the middle of a block costs a request no more than its budget. It computes what is missing, and
// nothing of the block is left.
func TestAStalledPeer(t *testing.T) {
	best := time.Hour
	for try := range 8 { // the machine may be busy
		all := fleet(t, kind{}, kind{})
		r := question(orders[try%2])
		want, _ := all[0].ranks(t, r)
		budget := &deadline{Peers: all[1].fetcher}
		all[1].SetPeers(budget)
		all[1].load.ms = 1 // a budget of about 100 or 300 ms
		var sent atomic.Int64
		open := make(chan struct{})
		all[0].wire.set(func(b []byte) []byte {
			if sent.Add(int64(len(b))) > 20_000 {
				<-open
			}
			return b
		})
		got, tiers := all[1].ranks(t, r)
		if !slices.Equal(got, want) || policyTokens(r) == tiers[plan.Peer] {
			t.Errorf("%v: %v, same answer %v", r.Policy, tiers, slices.Equal(got, want))
		}
		if budget.budget <= 0 || budget.budget > 310*time.Millisecond {
			t.Errorf("the budget is %v", budget.budget)
		}
		if !all[1].fetcher.Client.Slow("n0") {
			t.Error("the peer does not count as slow")
		}
		other := question(r.Policy)
		other.UserID = "other"
		for i := range other.Items {
			other.Items[i] = tokens(500+i, 20)
		}
		all[0].ranks(t, other)
		before := budget.fetches
		all[1].ranks(t, other)
		if again := all[1].fetcher.Client.Slow("n0"); again && budget.fetches != before {
			t.Error("a peer that has stalled is asked again at once")
		}
		close(open)
		best = min(best, budget.over)
	}
	t.Logf("%v beyond the budget", best)
	if best > 5*time.Millisecond {
		t.Errorf("fetches take at least %v beyond the budget, want 5 ms", best)
	}
}

func policyTokens(r *reuse.Request) (n int) {
	if r.Policy == schedule.User {
		return len(r.User)
	}
	for _, i := range r.Items {
		n += len(i)
	}
	return n
}

// deadline notes the budget of a fetch, and how long after it the fetch ended.
type deadline struct {
	reuse.Peers
	budget, over time.Duration
	fetches      int
}

func (d *deadline) Fetch(ctx context.Context, wants []reuse.Want) {
	end, _ := ctx.Deadline()
	d.budget = time.Until(end)
	d.fetches++
	d.Peers.Fetch(ctx, wants)
	d.over = max(0, time.Since(end))
}

// Bytes that change on their way are noticed and counted, and the KV is computed.
func TestFlippedBytes(t *testing.T) {
	for _, policy := range orders {
		all := fleet(t, kind{}, kind{})
		r := question(policy)
		want, _ := all[0].ranks(t, r)
		all[0].wire.set(func(b []byte) []byte {
			if len(b) > 10_000 { // of a payload
				b[5000] ^= 4
			}
			return b
		})
		got, tiers := all[1].ranks(t, r)
		if !slices.Equal(got, want) || all[1].fetcher.Damaged() == 0 {
			t.Errorf("%v: %v, %d damaged, same answer %v", policy, tiers, all[1].fetcher.Damaged(), slices.Equal(got, want))
		}
		if policy == schedule.User && tiers[plan.Peer] != 0 {
			t.Errorf("%v", tiers)
		}
		if n, ok := all[1].PeerDamaged(); !ok || n != all[1].fetcher.Damaged() {
			t.Errorf("the cache counts %d damaged entries", n)
		}
	}
}

// A user who is deleted while its KV is on its way is on no node afterwards, whichever node deletes it first.
func TestADeletedUserDoesNotComeBack(t *testing.T) {
	for _, first := range []int{0, 1} {
		all := fleet(t, kind{}, kind{})
		r := question(schedule.User)
		want, _ := all[0].ranks(t, r)
		reached, deleted := make(chan struct{}), make(chan struct{})
		var once sync.Once
		all[0].wire.set(func(b []byte) []byte {
			if len(b) > 10_000 {
				once.Do(func() { close(reached) })
				<-deleted
			}
			return b
		})
		go func() {
			defer close(deleted)
			<-reached
			for _, n := range []*node{all[first], all[1-first]} {
				if err := n.DropUser("u"); err != nil {
					t.Error(err)
				}
			}
		}()
		v := all[1].Begin(r)
		l, err := all[1].prompt.Rank(v.Order(), r.User, r.Items)
		if err != nil {
			t.Fatal(err)
		}
		job := jobOf(&l)
		v.Attach(t.Context(), &l, job)
		if job.Tiers()[plan.Peer] != 0 {
			t.Error("KV of a deleted user is used")
		}
		for _, n := range all {
			if _, ok := n.store.Lookup(n.UserKey("u", nil)); ok {
				t.Errorf("node %s has the user", n.name)
			}
		}
		res, err := all[1].engine.Do(t.Context(), job)
		if err != nil || !slices.Equal(res.Logits[0], want) {
			t.Errorf("the answer differs: %v", err)
		}
		v.End(&l, res)
		if err := all[1].DropUser("u"); err != nil { // as the server does after a request whose user was deleted meanwhile
			t.Error(err)
		}
	}
}

// The second holder of an entry answers if the first one is gone.
func TestTheSecondHolderAnswers(t *testing.T) {
	all := fleet(t, kind{}, kind{}, kind{})
	r := question(schedule.Item)
	want, _ := all[0].ranks(t, r)
	if _, tiers := all[1].ranks(t, r); tiers[plan.Peer] == 0 {
		t.Fatal("nothing is fetched")
	}
	all[2].fetcher.Client.SetPeers(map[string]string{"n0": "127.0.0.1:1", "n1": all[1].wire.Addr().String()})
	if got, tiers := all[2].ranks(t, r); tiers[plan.Peer] == 0 || !slices.Equal(got, want) {
		t.Errorf("%v, same answer %v", tiers, slices.Equal(got, want))
	}
}

// No more bytes are asked for at a time than is allowed. The rest is computed.
func TestBytesAreBounded(t *testing.T) {
	all := fleet(t, kind{}, kind{})
	r := question(schedule.Item)
	want, _ := all[0].ranks(t, r)
	all[1].fetcher.MaxBytes = 50_000
	got, tiers := all[1].ranks(t, r)
	if !slices.Equal(got, want) || tiers[plan.Peer] == 0 || tiers[plan.Peer] >= policyTokens(r) {
		t.Errorf("%v, same answer %v", tiers, slices.Equal(got, want))
	}
	if n := all[1].fetcher.asked.Load(); n != 0 {
		t.Errorf("%d bytes are still asked for", n)
	}
}

// Costs are those that were measured, and a guess before.
func TestCostsAreMeasured(t *testing.T) {
	all := fleet(t, kind{}, kind{})
	f := all[1].fetcher
	if trip, mib, _ := f.Cost(); trip != guessTrip || mib != guessMiB {
		t.Errorf("a trip of %v ms, %v ms per MiB", trip, mib)
	}
	for i := range 5 {
		r := question(schedule.Item)
		for k := range r.Items {
			r.Items[k] = tokens(1000*i+k, 50+k)
		}
		all[0].ranks(t, r)
		all[1].ranks(t, r)
	}
	f.price.at = time.Time{}
	s, _ := f.Client.Stats("n0")
	if trip, mib, _ := f.Cost(); trip != s.RoundTrip.Seconds()*1e3 || mib == guessMiB || mib <= 0 {
		t.Errorf("a trip of %v ms, %v ms per MiB: %+v", trip, mib, s)
	}
	f.Client.SetPeers(nil)
	f.price.at = time.Time{}
	if trip, mib, _ := f.Cost(); trip != guessTrip || mib != guessMiB || len(f.price.nodes) != 0 {
		t.Errorf("without peers: a trip of %v ms, %v ms per MiB", trip, mib)
	}
}

// Late fetches make others dearer, and time makes up for it.
func TestLateness(t *testing.T) {
	var l lateness
	now := time.Unix(100, 0)
	if f := l.factor(now); f != 1 {
		t.Errorf("the factor is %v before the first fetch", f)
	}
	for range 20 {
		l.ended(true, now)
	}
	if f := l.factor(now); f < 16000 || f > 17000 {
		t.Errorf("the factor is %v after many late fetches", f)
	}
	if f := l.factor(now.Add(time.Minute)); f > 1.03 {
		t.Errorf("the factor is %v after a minute", f)
	}
	for range 50 {
		l.ended(false, now)
	}
	if f := l.factor(now); f != 1 {
		t.Errorf("the factor is %v after many fetches in time", f)
	}
}

// Over a link that is too slow, few requests fetch in vain.
func TestASlowLink(t *testing.T) {
	all := fleet(t, kind{}, kind{})
	all[1].load.ms = .1 // ten milliseconds for a user, who takes about 100 ms on the link
	for _, r := range []*reuse.Request{question(schedule.User), question(schedule.Predicted)} {
		all[0].ranks(t, r)
	}
	all[0].wire.set(func(b []byte) []byte { time.Sleep(time.Duration(len(b)) * time.Microsecond); return b })
	fetches := &deadline{Peers: all[1].fetcher}
	all[1].SetPeers(fetches)
	const users = 60
	for i := range users {
		r := question(schedule.Predicted)
		r.UserID, r.Items = fmt.Sprint("u", i), r.Items[:2]
		first := *r
		first.Policy = schedule.User
		all[0].ranks(t, &first)
		all[1].ranks(t, r)
	}
	t.Logf("%d of %d requests fetched", fetches.fetches, users)
	if fetches.fetches == 0 || fetches.fetches > users/4 {
		t.Errorf("%d of %d requests fetched over a link that is too slow", fetches.fetches, users)
	}
}

func TestMetrics(t *testing.T) {
	all := fleet(t, kind{}, kind{})
	r := question(schedule.User)
	all[0].ranks(t, r)
	all[1].ranks(t, r)
	size := float64(all[0].server.Stats().Bytes)
	for i, want := range []map[string]float64{
		{"grebe_peer_bytes_total sent": size, "grebe_peer_bytes_total received": 0},
		{"grebe_peer_bytes_total sent": 0, "grebe_peer_bytes_total received": size, "grebe_peer_fetch_seconds hit n0": 1},
	} {
		families, err := all[i].metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			for _, m := range f.Metric {
				name := f.GetName()
				for _, l := range m.Label {
					name += " " + l.GetValue()
				}
				got[name] = m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
		if !maps.Equal(got, want) || size == 0 {
			t.Errorf("node %d reports %v, want %v", i, got, want)
		}
	}
}

// Random requests to random nodes with little memory, with deletions, links that stall and change bytes, have the
// answers of a node that computes everything.
func TestRandomRequests(t *testing.T) {
	alone := fleet(t, kind{})[0]
	all := fleet(t, kind{memory: 600 << 10}, kind{memory: 600 << 10, disk: true},
		kind{far: true, host: true, memory: 400 << 10})
	for _, n := range all {
		n.load.ms = 2
	}
	type asked struct {
		request *reuse.Request
		want    []float32
	}
	rng := rand.New(rand.NewPCG(1, 9))
	var questions []asked
	for i := range 60 {
		user := rng.IntN(12)
		r := &reuse.Request{UserID: fmt.Sprint("u", user), User: tokens(user, 20+rng.IntN(120)), Policy: orders[i%2]}
		for range 10 {
			item := rng.IntN(40)
			r.Items = append(r.Items, tokens(200+item, 3+item%17))
		}
		whole := *r
		v := alone.Begin(&whole)
		l, err := alone.prompt.Rank(v.Order(), r.User, r.Items)
		if err != nil {
			t.Fatal(err)
		}
		res, err := alone.engine.Do(t.Context(), jobOf(&l)) // nothing attached: all is computed
		if err != nil {
			t.Fatal(err)
		}
		questions = append(questions, asked{r, slices.Clone(res.Logits[0])})
		v.End(&l, nil)
	}
	var wg sync.WaitGroup
	var fetched, wrong, full atomic.Int64
	for w := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), 5))
			for i := range 120 {
				q, n := &questions[r.IntN(len(questions))], all[r.IntN(len(all))]
				switch {
				case i%20 == 19:
					if err := n.DropUser(q.request.UserID); err != nil {
						t.Error(err)
					}
				case i%20 == 9 && w == 0:
					n.wire.set([]func(b []byte) []byte{
						nil,
						func(b []byte) []byte { time.Sleep(3 * time.Millisecond); return b },
						func(b []byte) []byte { b[len(b)/2] ^= 1; return b },
					}[i/20%3])
				}
				got, tiers, err := n.rank(t.Context(), q.request)
				if errors.Is(err, kv.ErrFull) { // the other requests have all memory
					full.Add(1)
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				fetched.Add(int64(tiers[plan.Peer]))
				if !slices.Equal(got, q.want) {
					wrong.Add(1)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d tokens were fetched", fetched.Load())
	if wrong.Load() > 0 || fetched.Load() == 0 || full.Load() > 100 {
		t.Errorf("%d answers differ, %d tokens were fetched, %d times there was no memory", wrong.Load(), fetched.Load(),
			full.Load())
	}
}

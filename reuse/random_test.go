package reuse

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"grebe/blend"
	"grebe/engine"
	"grebe/plan"
	"grebe/schedule"
)

// randomNode sends a cache random rankings, generations, scores and blended prompts, and knows which items it has.
type randomNode struct {
	*machine
	t      *testing.T
	rng    *rand.Rand
	what   string
	users  map[string][]int32 // tokens of each user; a request has the first of them
	items  [][]int32
	cached map[int]bool // by item
	seen   map[string]int
}

func newRandomNode(t *testing.T, seed uint64, seen map[string]int) *randomNode {
	rng := rand.New(rand.NewPCG(seed, 61))
	n := &randomNode{t: t, rng: rng, users: map[string][]int32{}, cached: map[int]bool{}, seen: seen}
	var preamble, leadIn []int32
	if rng.IntN(4) > 0 {
		preamble = n.tokens(1 + rng.IntN(4))
	}
	if rng.IntN(2) == 0 {
		leadIn = n.tokens(1 + rng.IntN(3))
	}
	n.machine = newMachine(t, 7, nil, t.TempDir(), false).led(t, preamble, leadIn)
	n.costs.Transfer[plan.Disk] = schedule.Transfer{} // reading costs nothing
	for _, id := range []string{"", "ann", "bob"} {
		n.users[id] = n.tokens(12)
	}
	copy(n.users[""], n.users["ann"][:8]) // what nobody's requests leave is known of hers
	for range 6 {
		n.items = append(n.items, n.tokens(1+rng.IntN(6)))
	}
	return n
}

func (n *randomNode) tokens(count int) []int32 {
	out := make([]int32, count)
	for i := range out {
		out[i] = int32(10 + n.rng.IntN(vocabulary-10))
	}
	return out
}

// request draws a user's first tokens and some items, each once.
func (n *randomNode) request() (r *Request, which []int) {
	id := []string{"", "ann", "bob"}[n.rng.IntN(3)]
	r = &Request{UserID: id, User: n.users[id][:1+n.rng.IntN(12)]}
	which = n.rng.Perm(len(n.items))[:1+n.rng.IntN(3)]
	for _, i := range which {
		r.Items = append(r.Items, n.items[i])
	}
	return r, which
}

// answer runs a job, or only the plan, and returns its logits after each wanted segment.
func (n *randomNode) answer(p *plan.Plan, job *engine.Job) ([][]float32, *engine.Result) {
	n.t.Helper()
	if job == nil {
		job = &engine.Job{Plan: p}
	}
	job.Want = []engine.Want{{Segment: len(p.Segments) - 1, IDs: []int32{1, 2, 3}}}
	r, err := n.engine.Do(n.t.Context(), job)
	if err != nil {
		n.t.Fatalf("%s: %v", n.what, err)
	}
	return r.Logits, r
}

// sources checks that a job's counts by tier agree with its segments, and returns the reused tokens.
func (n *randomNode) sources(job *engine.Job) (total int) {
	from := map[string]int{}
	for i := range job.Plan.Segments {
		tokens, at := job.Cached(i)
		if (tokens > 0) != (at != plan.Missing) || tokens > len(job.Plan.Segments[i].Tokens) {
			n.t.Fatalf("%s: %d tokens of segment %d from %v", n.what, tokens, i, at)
		}
		from[at.String()] += tokens
		total += tokens
	}
	if by := job.Tiers(); by[plan.Disk] != from["disk"] || by[plan.Host] != from["host"] ||
		from["host"]+from["disk"] != total {
		n.t.Fatalf("%s: tokens by tier %v, by segment %v", n.what, by, from)
	}
	n.seen["disk"] += from["disk"]
	n.seen["host"] += from["host"]
	return total
}

// rankAny ranks with a random policy. The second time everything is cached that its order can reuse.
func (n *randomNode) rankAny() {
	r, which := n.request()
	policies := []schedule.Policy{schedule.Predicted, schedule.User, schedule.Item, schedule.None, schedule.Longer}
	r.Policy = policies[n.rng.IntN(len(policies))]
	r.Pointwise = n.rng.IntN(4) == 0
	for round := range 2 {
		v := n.Begin(r)
		named := map[schedule.Policy]plan.Order{schedule.User: plan.UserFirst, schedule.Item: plan.ItemFirst}
		if want, ok := named[r.Policy]; ok && v.Order() != want {
			n.t.Fatalf("%s: %v has the order %v", n.what, r.Policy, v.Order())
		}
		lay := n.prompt.Rank
		if r.Pointwise {
			lay = n.prompt.Pointwise
		}
		l, err := lay(v.Order(), r.User, r.Items)
		if err != nil {
			n.t.Fatal(err)
		}
		reuse, first := v.Decision.Reuse, v.Order()
		if known := slices.Max(v.in.UserCached[:]); v.hit && (!reuse || first == plan.ItemFirst || known == 0) {
			n.t.Fatalf("%s: %v is a hit, %d tokens of the user are cached", n.what, r.Policy, known)
		}
		job := &engine.Job{Plan: l.Plan}
		v.Attach(n.t.Context(), &l, job)
		taken := n.sources(job)
		if first == plan.ItemFirst {
			for k, i := range which {
				tokens, _ := job.Cached(l.Items + k)
				fixed := r.Policy == schedule.Item
				if tokens > 0 && !n.cached[i] || fixed && tokens == 0 && n.cached[i] {
					n.t.Fatalf("%s: %d tokens of item %d are cached, want it to be: %v", n.what, tokens, i, n.cached[i])
				}
				n.cached[i] = true
			}
		}
		if round == 1 && r.Policy == schedule.User {
			if tokens, _ := job.Cached(l.User); tokens != len(r.User) {
				n.t.Fatalf("%s: %d of a user's %d tokens are cached the second time", n.what, tokens, len(r.User))
			}
		}
		got, res := n.answer(l.Plan, job)
		if want, _ := n.answer(l.Plan, nil); !slices.EqualFunc(got, want, slices.Equal) {
			n.t.Fatalf("%s: %v of %+v: %v, computed %v", n.what, r.Policy, r, got, want)
		}
		if res.Cached != taken || !reuse && taken > 0 {
			n.t.Fatalf("%s: %d tokens were cached, %d attached", n.what, res.Cached, taken)
		}
		v.End(&l, res)
		n.opt.Store.Count(n.opt.Now())
	}
}

// generateAny computes the prompt of a generation. The second time all of the user is cached, except for a token that
// answers.
func (n *randomNode) generateAny() {
	r, _ := n.request()
	l := n.prompt.Generate(r.User)
	var want []float32
	for round := range 3 {
		job := &engine.Job{Plan: l.Plan, Hidden: []int{l.Answers}}
		if round == 0 {
			res, err := n.engine.Do(n.t.Context(), job)
			if err != nil {
				n.t.Fatal(err)
			}
			want = slices.Clone(res.Hidden[0])
			continue
		}
		v := n.Generate(r.UserID, r.User)
		v.AttachPrompt(n.t.Context(), &l, job)
		if have, _ := job.Cached(l.User); round == 2 && have != len(r.User) {
			n.t.Fatalf("%s: of a user's %d tokens %d are cached the second time", n.what, len(r.User), have)
		}
		hit := job.Source(l.User) == plan.Cached
		if v.hit != hit {
			n.t.Fatalf("%s: a user's prompt is a hit: %v, want %v", n.what, v.hit, hit)
		}
		res, err := n.engine.Do(n.t.Context(), job)
		if err != nil {
			n.t.Fatal(err)
		}
		if !slices.Equal(res.Hidden[0], want) {
			n.t.Fatalf("%s: a generation's state differs", n.what)
		}
		for _, e := range v.EndPrompt(&l, res) {
			if e != nil {
				e.Release()
			}
		}
	}
}

// scoreAny computes a query with items, in either order. The second time the query or the items are cached.
func (n *randomNode) scoreAny() {
	r, which := n.request()
	itemsFirst := n.rng.IntN(2) == 0
	l := n.prompt.Score(r.User, r.Items, itemsFirst)
	want, _ := n.answer(l.Plan, nil)
	for range 2 {
		v := n.Unnamed(&l)
		job := &engine.Job{Plan: l.Plan}
		v.Attach(n.t.Context(), &l, job)
		n.sources(job)
		got, res := n.answer(l.Plan, job)
		if !slices.EqualFunc(got, want, slices.Equal) {
			n.t.Fatalf("%s: a score from the cache: %v, computed %v", n.what, got, want)
		}
		v.EndUnnamed(&l, res)
	}
	if itemsFirst && len(n.leadIn.tokens) == 0 {
		for _, i := range which {
			n.cached[i] = true
		}
	}
}

// blendAny answers an ordinary prompt in which every token is computed again. Within rounding the answer is as without
// a cache.
func (n *randomNode) blendAny() {
	r, which := n.request()
	how := &Blend{Budget: blend.Budget{Items: 1, History: 1}, Layers: 1, ItemsFirst: n.rng.IntN(2) == 0}
	res, _, _, l := n.blended(n.t, r, how)
	want, _ := n.answer(l.Plan, nil)
	for i, x := range res.Logits[0] {
		if d := x - want[0][i]; d > 1e-3 || d < -1e-3 {
			n.t.Fatalf("%s: blended %v, computed %v", n.what, res.Logits[0], want[0])
		}
	}
	for _, i := range which {
		if _, there := n.Heat(n.items[i]); there { // blocks of items that came before are made beside
			n.cached[i] = true
		}
	}
}

// In every sequence of requests, reads and deletions, answers are as without a cache, and nothing stays pinned.
func TestRandomRequestsAreAsIfNothingWasCached(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(8) {
		n := newRandomNode(t, seed, seen)
		for turn := range 40 {
			n.what = fmt.Sprintf("seed %d, turn %d", seed, turn)
			switch op := n.rng.IntN(16); {
			case op < 6:
				n.rankAny()
			case op < 8:
				n.generateAny()
			case op < 10:
				n.scoreAny()
			case op < 12:
				n.blendAny()
			case op == 12:
				n.lower(t)
				for i, it := range n.items { // what could not be written in time is gone
					_, there := n.Heat(it)
					n.cached[i] = n.cached[i] && there
				}
			case op == 13:
				i := n.rng.IntN(len(n.items))
				if err := n.DropItem(n.items[i]); err != nil {
					t.Fatal(err)
				}
				delete(n.cached, i)
			case op == 14:
				if err := n.DropUser("ann"); err != nil {
					t.Fatal(err)
				}
				if own, _ := n.store.PeekPrefix(n.UserKey("ann", nil), n.users["ann"]); own > 0 {
					t.Fatalf("%s: %d tokens of a dropped user are cached", n.what, own)
				}
			case op == 15: // a history changes
				at := n.rng.IntN(12)
				n.users["bob"] = append(slices.Clone(n.users["bob"][:at]), n.tokens(12-at)...)
			}
			for i, it := range n.items {
				if _, there := n.Heat(it); there != n.cached[i] {
					t.Fatalf("%s: item %d is cached: %v, want %v", n.what, i, there, n.cached[i])
				}
			}
		}
		if used := pinned(n.machine); used != 0 {
			t.Errorf("seed %d: entries are pinned", seed)
		}
		if err := n.Clear(t.Context()); err != nil {
			t.Error(err)
		}
		n.store.Drain()
		if used := n.opt.Pool.Stats().Used; n.Known() != 0 || used != 0 {
			t.Errorf("seed %d: %d entries are known and %d bytes used after all was cleared", seed, n.Known(), used)
		}
	}
	if seen["disk"] < 50 || seen["host"] < 500 {
		t.Errorf("%v tokens were cached: the draw tests too little", seen)
	}
}

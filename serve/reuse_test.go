package serve

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/compute"
	"grebe/compute/computetest"
	"grebe/compute/cpu"
	"grebe/dispatch"
	"grebe/engine"
	"grebe/evict"
	"grebe/kv"
	"grebe/kv/disk"
	"grebe/model"
	_ "grebe/model/llama"
	"grebe/model/modeltest"
	_ "grebe/model/qwen"
	"grebe/plan"
	"grebe/pool"
	"grebe/prompt"
	"grebe/residency"
	"grebe/reuse"
	"grebe/schedule"
	"grebe/serve/servetest"
)

// cacheWorld is a small model behind two services, with and without a cache.
type cacheWorld struct {
	cached, plain *Service
	model         Model   // of cached
	further       []Model // beside it, in crowds
	cache         *reuse.Cache
	entries       *reuse.Shared // of cache
	store         *kv.Store
	pool          *pool.Pool
	host          *pool.Pool // nil: the device computes in the host's memory
	shape         compute.Shape
	rand          *rand.Rand
	users         [][]int32
	items         [][]int32
	strangers     [][]int32 // users without an id
	engines       []dispatch.Engine
}

// maxTokens is the number of tokens that the largest request of these tests computes.
const maxTokens = 70000

// farMemory is the memory that a world's device computes in.
type farMemory int

const (
	near   farMemory = iota // the host's
	far                     // a device's own, above some of the host's
	pinned                  // the same, and the device can use the host's memory in place
)

func newCacheWorld(t *testing.T, seed uint64, pointwise bool) *cacheWorld {
	return newCacheWorldIn(t, near, seed, pointwise)
}

func newCacheWorldIn(t *testing.T, where farMemory, seed uint64, pointwise bool) *cacheWorld {
	return newCacheWorldOver(t, where, seed, pointwise, nil)
}

// newCacheWorldOver takes its pages from take, or draws their number. If over is set, it has a disk, wrapped by over.
func newCacheWorldOver(t *testing.T, where farMemory, seed uint64, pointwise bool,
	take func(compute.Memory, compute.Shape) (*pool.Pool, error), over ...func(kv.Disk) kv.Disk) *cacheWorld {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 9))
	dev, err := cpu.New(cpu.Options{Threads: 2})
	must(t, err)
	if where != near {
		dev = computetest.Far(dev, where == pinned)
	}
	t.Cleanup(func() { must(t, dev.Close()) })
	dir := t.TempDir()
	must(t, modeltest.Write(dir, modeltest.Spec{Architecture: modeltest.Qwen3, Hidden: 64, Layers: 2, Heads: 4, KVHeads: 2,
		HeadDim: 32, Inter: 96, Vocab: 11000, MaxPositions: 1 << 20, Seed: seed}))
	m, err := model.Open(dir, dev, model.Options{DType: []string{"bf16", "f32"}[r.IntN(2)]})
	must(t, err)
	t.Cleanup(func() { m.Close() })
	shape := m.Shape()
	// From room for a few entries to room for all.
	room := 4000
	if where != near {
		room = 1200 // so that several tiers are used
	}
	if take == nil {
		take = func(m compute.Memory, shape compute.Shape) (*pool.Pool, error) {
			return pool.Over(m, int64(shape.ChunkBytes(200+r.IntN(room), false)), 256<<r.IntN(4))
		}
	}
	pages, err := take(dev.Memory(), shape)
	must(t, err)
	store := kv.New(shape, pages)
	var hostPages *pool.Pool
	if where != near {
		hostPages, err = pool.Over(dev.Memory().Host(), int64(shape.ChunkBytes(100+r.IntN(room), false)), 256)
		must(t, err)
		must(t, store.SetHost(hostPages))
	}
	must(t, store.SetPolicy(evict.Names()[r.IntN(len(evict.Names()))]))
	if r.IntN(2) == 0 || len(over) > 0 {
		d, err := disk.Open(t.TempDir(), disk.Options{Budget: 1 << 20 << r.IntN(5)})
		must(t, err)
		t.Cleanup(func() { d.Close() })
		var tier kv.Disk = d
		for _, f := range over {
			tier = f(tier)
		}
		store.SetDisk(tier)
	}
	e, err := engine.New(m, dev, engine.Options{MaxTokens: maxTokens, Cache: store})
	must(t, err)
	times, err := dispatch.Profile(t.Context(), e, m.MaxPositions())
	must(t, err)
	engines := []dispatch.Engine{e}
	if r.IntN(2) == 0 && where == near { // a second worker, which shares the weights and the cache
		other, err := cpu.New(cpu.Options{Threads: 1})
		must(t, err)
		t.Cleanup(func() { other.Close() })
		second, err := engine.New(m, other, engine.Options{MaxTokens: maxTokens, Cache: store})
		must(t, err)
		t.Cleanup(func() { second.Close() })
		engines = append(engines, second)
	}
	// The SLO determines the size of batches.
	d, err := dispatch.New(engines, dispatch.Options{SLO: time.Second << r.IntN(6), Model: times})
	must(t, err)
	b, err := prompt.New(prompt.Config{
		Preamble:    prompt.Text{Tokens: []int32{1, 2, 3}[:r.IntN(4)]},
		LeadIn:      prompt.Text{Tokens: []int32{4, 5}[:r.IntN(3)]},
		Instruction: prompt.Text{Tokens: []int32{6, 7}},
	}, servetest.Tokenizer{}, m.Vocab())
	must(t, err)
	must(t, store.SetHotness(residency.HotnessConfig{Users: 1000, Items: 1000}))
	w := &cacheWorld{store: store, pool: pages, host: hostPages, shape: shape, rand: r, engines: engines}
	w.entries = reuse.Share(store)
	w.cache = reuse.New(b, reuse.Options{Store: store, Pool: pages, Load: d, Shape: shape, Policy: schedule.Predicted,
		Shared: w.entries})
	sm := Model{Name: "m", Runner: d, Prompt: b, Vocab: m.Vocab(), Positions: m.MaxPositions()}
	if pointwise {
		sm.Scoring = Scoring{Kind: Pointwise, Yes: 11, No: 12}
	}
	w.plain, err = New(Config{Models: []Model{sm}, SLO: time.Hour}) // the machine may be slow
	must(t, err)
	sm.Cache = w.cache
	w.model = sm
	w.cached, err = New(Config{Models: []Model{sm}, SLO: time.Hour}) // the machine may be slow
	must(t, err)
	t.Cleanup(func() {
		w.cache.Settle()
		d.Close()
		e.Close()
		store.Close()
		if err := pages.Close(); err != nil {
			t.Error(err)
		}
		if hostPages != nil {
			must(t, hostPages.Close())
		}
	})
	for range 6 {
		w.users = append(w.users, w.tokens(1+r.IntN(200)))
	}
	for range 30 {
		w.items = append(w.items, w.tokens(1+r.IntN(12)))
	}
	return w
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *cacheWorld) tokens(n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(20 + w.rand.IntN(200))
	}
	return out
}

// request draws a ranking of known users and items by their current tokens.
func (w *cacheWorld) request(policy string) *grebev1.RankRequest {
	u := w.rand.IntN(len(w.users))
	req := &grebev1.RankRequest{Prefix: policy, User: &grebev1.User{Tokens: w.users[u]}, Explain: true}
	switch w.rand.IntN(4) {
	case 0:
		req.User.Tokens = w.stranger()
	case 1: // also without an id
	default:
		req.User.Id = fmt.Sprint("u", u)
	}
	for i, j := range w.rand.Perm(len(w.items))[:1+w.rand.IntN(12)] {
		id := int32(230 + i)
		if w.rand.IntN(4) == 0 { // often a candidate occurs twice
			j %= 3
		}
		req.Candidates = append(req.Candidates, &grebev1.Item{Tokens: w.items[j], Identifier: &id})
	}
	return req
}

// Random requests under random cache and page sizes and policies, with growing and changing users and items, give
// exactly the scores that the same prefix order gives without a cache.
func TestReuseChangesNoScore(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			where := farMemory(seed / 2 % 3)
			w := newCacheWorldIn(t, where, seed, seed%2 == 1)
			var by grebev1.Sources
			for step := range 120 {
				w.change()
				policy := []string{"auto", "auto", "user", "item", "none"}[w.rand.IntN(5)]
				u := w.compare(t, step, w.request(policy))
				if w.rand.IntN(3) == 0 {
					w.compareScores(t, step)
				}
				by.Device, by.Host, by.Disk = by.Device+u.Device, by.Host+u.Host, by.Disk+u.Disk
			}
			if where == near && by.Host == 0 || where != near && by.Device == 0 {
				t.Error("nothing was ever reused")
			}
			if where == near && by.Device > 0 {
				t.Errorf("%d tokens were in a device's memory, which there is not", by.Device)
			}
			t.Logf("tokens reused: %d in the device's memory, %d in the host's, %d from disk; items %+v; prefixes %+v; below "+
				"memory: %+v",
				by.Device, by.Host, by.Disk, w.store.Stats(plan.Item), w.store.Stats(kv.Prefix), w.store.BelowStats())
		})
	}
}

// change lets time pass: histories grow or change, items change, users are deleted.
func (w *cacheWorld) change() {
	u := w.rand.IntN(len(w.users))
	switch w.rand.IntN(6) {
	case 0:
		w.users[u] = append(slices.Clone(w.users[u]), w.tokens(1+w.rand.IntN(70))...)
	case 1:
		w.users[u] = slices.Clone(w.users[u])
		w.users[u][w.rand.IntN(len(w.users[u]))]++
	case 2:
		i := w.rand.IntN(len(w.items))
		if err := w.cache.DropItem(w.items[i]); err != nil {
			panic(err)
		}
		w.items[i] = w.tokens(1 + w.rand.IntN(12))
	case 3:
		if err := w.cache.DropUser(fmt.Sprint("u", u)); err != nil {
			panic(err)
		}
	}
}

// compare ranks with and without the cache and returns how many tokens the cache saved, by tier.
func (w *cacheWorld) compare(t *testing.T, step int, req *grebev1.RankRequest) *grebev1.Sources {
	t.Helper()
	got, err := w.cached.Rank(t.Context(), req)
	if err != nil {
		t.Fatalf("step %d: %v", step, err)
	}
	asked := req.Prefix
	req.Prefix = got.Prefix
	want, err := w.plain.Rank(t.Context(), req)
	must(t, err)
	req.Prefix = asked
	same := slices.EqualFunc(got.Results, want.Results, func(a, b *grebev1.Ranked) bool {
		return a.Index == b.Index && a.Score == b.Score && a.Logit == b.Logit
	})
	if !same {
		t.Fatalf("step %d, prefix %s (%s), %d of %d tokens cached: got %v, want %v", step, asked, got.Prefix,
			got.Usage.CachedTokens, got.Usage.PromptTokens, got.Results, want.Results)
	}
	by := got.Usage.BySource
	if got.Usage.CachedTokens+got.Usage.ComputedTokens != got.Usage.PromptTokens ||
		by.Device+by.Host+by.Disk != got.Usage.CachedTokens {
		t.Fatalf("step %d: the account does not add up: %v", step, got.Usage)
	}
	checkParts(t, step, got)
	if asked == "none" && got.Usage.CachedTokens != 0 {
		t.Fatalf("step %d: prefix none took %d tokens from the cache", step, got.Usage.CachedTokens)
	}
	return by
}

// checkParts compares the sources of a prompt's parts with those of the whole prompt.
func checkParts(t *testing.T, step int, got *grebev1.RankResponse) {
	t.Helper()
	checkPartsOf(t, step, got.Parts, got.Usage)
}

func checkPartsOf(t *testing.T, step int, parts []*grebev1.Part, u *grebev1.Usage) {
	t.Helper()
	var tokens, cached int32
	by := map[string]int32{}
	for _, p := range parts {
		tokens, cached = tokens+p.Tokens, cached+p.Cached
		by[p.Source] += p.Cached
		if p.Cached > p.Tokens || (p.Cached > 0) != (p.Source != "") {
			t.Errorf("step %d: a part says of itself %v", step, p)
		}
	}
	if tokens != u.PromptTokens || cached != u.CachedTokens || by["device"] != u.BySource.Device ||
		by["host"] != u.BySource.Host || by["disk"] != u.BySource.Disk {
		t.Errorf("step %d: the parts %v do not add up to %v", step, parts, u)
	}
}

// The same under concurrent requests.
func TestReuseConcurrently(t *testing.T) {
	for _, where := range []farMemory{near, far, pinned} {
		reuseConcurrently(t, newCacheWorldIn(t, where, 99, false))
	}
}

func reuseConcurrently(t *testing.T, w *cacheWorld) {
	var reqs []*grebev1.RankRequest
	for range 60 {
		reqs = append(reqs, w.request([]string{"auto", "user", "item"}[w.rand.IntN(3)]))
	}
	var wg sync.WaitGroup
	for part := range 4 {
		wg.Go(func() {
			for _, req := range reqs[part*15 : part*15+15] {
				w.compare(t, part, req)
			}
		})
	}
	wg.Wait()
}

// A returning user computes only new tokens. An item that was ranked before costs nothing.
func TestReuseSavesWork(t *testing.T) {
	w := newCacheWorld(t, 2, false)
	user, items := w.tokens(100), w.items[:5]
	rank := func(prefix string, user []int32) *grebev1.Usage {
		req := &grebev1.RankRequest{Prefix: prefix, User: &grebev1.User{Id: "returning", Tokens: user}}
		for i := range items {
			id := int32(230 + i)
			req.Candidates = append(req.Candidates, &grebev1.Item{Tokens: items[i], Identifier: &id})
		}
		r, err := w.cached.Rank(t.Context(), req)
		must(t, err)
		return r.Usage
	}
	fixed := int32(len(w.plain.served[0].serving().Prompt.Preamble()))
	rank("user", user)
	u := rank("user", append(slices.Clone(user), w.tokens(7)...))
	if want := u.ItemTokens + 7 + 2; u.ComputedTokens != want {
		t.Errorf("user-first, 7 new tokens: computed %d of %d, want %d", u.ComputedTokens, u.PromptTokens, want)
	}
	rank("item", user)
	i := rank("item", user)
	if want := i.UserTokens + 2; i.ComputedTokens != want {
		t.Errorf("item-first, all items known: computed %d of %d (preamble %d), want %d", i.ComputedTokens, i.PromptTokens,
			fixed, want)
	}
	if st := w.store.Stats(plan.Item); st.Entries != 5 {
		t.Errorf("%d items are cached, want 5", st.Entries)
	}
}

// Cached KV with NaN, left by an earlier version after a device's fault, fails no request: the prompt is computed
// without it, and it is dropped.
func TestCachedNaNIsDroppedAndComputedAgain(t *testing.T) {
	for _, prefix := range []string{"user", "item"} {
		w := newCacheWorld(t, 2, false)
		user := w.tokens(100)
		rank := func(from *Service) *grebev1.RankResponse {
			req := &grebev1.RankRequest{Prefix: prefix, User: &grebev1.User{Id: "returning", Tokens: user}}
			for i := range 5 {
				id := int32(230 + i)
				req.Candidates = append(req.Candidates, &grebev1.Item{Tokens: w.items[i], Identifier: &id})
			}
			r, err := from.Rank(t.Context(), req)
			must(t, err)
			return r
		}
		want := rank(w.plain)
		rank(w.cached)
		if again := rank(w.cached); again.Usage.ComputedTokens == again.Usage.PromptTokens {
			t.Fatal("nothing is cached: the test shows nothing")
		}
		key := w.cache.UserKey("returning", nil)
		if prefix == "item" {
			key = w.cache.ItemKey(w.items[3])
		}
		e, _ := w.store.Get(key)
		if e == nil {
			t.Fatalf("%s: no entry to spoil", prefix)
		}
		for _, c := range e.AppendChunks(nil) {
			for i := range c.Bytes {
				c.Bytes[i] = 0xff // NaN in every format
			}
		}
		e.Release()
		r := rank(w.cached)
		for i := range want.Results {
			if r.Results[i].Score != want.Results[i].Score {
				t.Errorf("%s: score %d is %v, want %v", prefix, i, r.Results[i].Score, want.Results[i].Score)
			}
		}
		if r.Usage.ComputedTokens != r.Usage.PromptTokens {
			t.Errorf("%s: %d of %d tokens computed, want all", prefix, r.Usage.ComputedTokens, r.Usage.PromptTokens)
		}
		if tokens, _ := w.store.Where(key); tokens != 0 {
			t.Errorf("%s: the entry is still there", prefix)
		}
		rank(w.cached)
		if again := rank(w.cached); again.Usage.ComputedTokens == again.Usage.PromptTokens {
			t.Errorf("%s: nothing is cached again", prefix)
		}
	}
}

// Ten thousand candidates are ranked in one request, in both orders, with a cache that holds a few.
func TestTenThousandCandidates(t *testing.T) {
	for _, pointwise := range []bool{false, true} {
		w := newCacheWorld(t, 4, pointwise)
		req := &grebev1.RankRequest{User: &grebev1.User{Tokens: w.users[0]}, TopK: 10}
		for i := range 10000 {
			id := int32(i)
			req.Candidates = append(req.Candidates, &grebev1.Item{Tokens: w.tokens(3), Identifier: &id})
		}
		for _, prefix := range []string{"user", "item", "item"} {
			req.Prefix = prefix
			r, err := w.cached.Rank(t.Context(), req)
			must(t, err)
			plain, err := w.plain.Rank(t.Context(), req)
			must(t, err)
			if len(r.Results) != 10 || r.Results[0].Index != plain.Results[0].Index ||
				r.Results[0].Score != plain.Results[0].Score {
				t.Errorf("pointwise %v, prefix %s: got %v, want %v", pointwise, prefix, r.Results, plain.Results)
			}
		}
	}
}

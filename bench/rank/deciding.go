package rank

import (
	"math/rand/v2"
	"runtime"
	"time"

	"grebe/compute"
	"grebe/kv"
	"grebe/plan"
	"grebe/prompt"
	"grebe/residency"
	"grebe/reuse"
	"grebe/schedule"
)

// Deciding is what it takes to decide over that many candidates; the fastest of several runs, since
// what disturbs one slows it down.
type Deciding struct {
	Candidates  int     `json:"candidates"`
	DecideNs    float64 `json:"decide_ns"`
	Allocations float64 `json:"allocations"` // per decision
	BeginNs     float64 `json:"begin_ns"`    // with the items' keys digested and looked up
}

var timesForDeciding = schedule.PrefillModel{Fixed: 1, Row: 0.02, Key: 2e-5}

// deciding measures decisions with half of the items cached.
func (s *system) deciding() ([]Deciding, error) {
	var out []Deciding
	for _, n := range []int{1, 100, 1000, 10_000} {
		d := Deciding{Candidates: n}
		in := schedule.Request{Question: 8, User: 1500, Items: make([]int32, n), ItemTier: make([]plan.Tier, n),
			ItemFrequency: make([]float32, n)}
		for i := range n {
			in.Items[i], in.ItemTier[i], in.ItemFrequency[i] = 10, []plan.Tier{plan.Missing, plan.Host}[i%2], 1
		}
		costs := schedule.DefaultCosts(timesForDeciding)
		d.DecideNs, d.Allocations = fastest(func() { schedule.Decide(&in, &costs, schedule.Predicted) })
		var err error
		if d.BeginNs, err = s.begin(n); err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	return out, nil
}

// begin measures a request's whole way to its decision.
func (s *system) begin(n int) (float64, error) {
	const tokens = 10 // of an item
	pages, err := newPool(int64(s.shape.ChunkBytes((n+1)*2*tokens, false)), &s.shape)
	if err != nil {
		return 0, err
	}
	defer pages.Close()
	store := kv.New(s.shape, pages)
	defer store.Close()
	if err := store.SetHotness(residency.HotnessConfig{}); err != nil {
		return 0, err
	}
	b, err := prompt.New(prompt.Config{Instruction: prompt.Text{Tokens: []int32{1}}}, nil, s.model.Vocab())
	if err != nil {
		return 0, err
	}
	c := reuse.New(b, reuse.Options{Store: store, Pool: pages, Load: &dry{model: timesForDeciding}, Shape: s.shape})
	r := reuse.Request{UserID: "u", User: make([]int32, 1500), Items: make([][]int32, n), Policy: schedule.Predicted}
	for i := range r.Items {
		r.Items[i] = []int32{int32(i), 2, 3, 4, 5, 6, 7, 8, 9, 10}
		if i%2 == 0 {
			e, err := store.Reserve(kv.Exact, tokens, nil)
			if err != nil {
				return 0, err
			}
			store.Publish(plan.Item, c.ItemKey(r.Items[i]), nil, e)
			e.Release()
		}
	}
	ns, _ := fastest(func() { c.Begin(&r).End(&prompt.Layout{}, nil) })
	return ns, nil
}

// fastest returns the nanoseconds and allocations of a call.
func fastest(f func()) (ns, allocations float64) {
	const runs, slice = 7, 10 * time.Millisecond
	f()
	count := 1
	for start := time.Now(); time.Since(start) < slice; count++ {
		f()
	}
	var before, after runtime.MemStats
	for range runs {
		runtime.ReadMemStats(&before)
		start := time.Now()
		for range count {
			f()
		}
		took := float64(time.Since(start)) / float64(count)
		runtime.ReadMemStats(&after)
		if ns == 0 || took < ns {
			ns, allocations = took, float64(after.Mallocs-before.Mallocs)/float64(count)
		}
	}
	return ns, allocations
}

// Packing is how much of the memory a catalog's KV leaves unused.
type Packing struct {
	Tokens     int     `json:"item_tokens"`
	TokenBytes int     `json:"token_bytes"`
	Page       int     `json:"page"`
	Bytes      int64   `json:"bytes"`
	Items      int     `json:"items"`   // that were put in
	Padding    float64 `json:"padding"` // share of the pages in use that is not KV
	// Fragmentation is the share of all memory that is not KV when it is full.
	Fragmentation float64 `json:"fragmentation"`
}

// packing fills memory with items of about that length and has many times as many come and go, in an
// order that has nothing to do with where they lie, since some are used again.
func packing(shape *compute.Shape, tokens int) (Packing, error) {
	const items, churn = 2000, 10
	c := Packing{Tokens: tokens, TokenBytes: shape.ChunkBytes(1, false), Items: items * churn}
	pages, err := newPool(int64(shape.ChunkBytes(items*tokens, false)), shape)
	if err != nil {
		return c, err
	}
	defer pages.Close()
	store := kv.New(*shape, pages)
	defer store.Close()
	live := map[plan.Key]int{} // tokens of each
	store.OnDrop(func(k plan.Key, _ plan.Kind) { delete(live, k) })
	random := rand.New(rand.NewPCG(3, 4))
	for i := range items * churn {
		n := tokens/2 + random.IntN(tokens+1)
		e, err := store.Reserve(kv.Exact, n, nil)
		if err != nil {
			return c, err
		}
		key := kv.KeyOf(plan.Key{}, []int32{int32(i)}, "")
		store.Publish(plan.Item, key, nil, e)
		live[key] = n
		e.Release()
		again := kv.KeyOf(plan.Key{}, []int32{int32(random.IntN(i + 1))}, "")
		if e, _ := store.Get(again); e != nil {
			e.Release()
		}
	}
	used := int64(0)
	for _, n := range live {
		used += int64(n * c.TokenBytes)
	}
	books := pages.Stats()
	c.Page, c.Bytes = books.Page, books.Total
	c.Padding = 1 - float64(used)/float64(books.Used)
	c.Fragmentation = 1 - float64(used)/float64(books.Total)
	return c, nil
}

package reuse

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"grebe/blend"
	"grebe/compute"
	"grebe/engine"
	"grebe/internal/record"
	"grebe/kv"
	"grebe/plan"
	"grebe/prompt"
	"grebe/residency"
	"grebe/schedule"
)

// led returns another cache over a machine's store, for prompts with a lead-in before the items.
func (m *machine) led(t *testing.T, preamble, leadIn []int32) *machine {
	t.Helper()
	b, err := prompt.New(prompt.Config{Preamble: prompt.Text{Tokens: preamble}, LeadIn: prompt.Text{Tokens: leadIn},
		Instruction: prompt.Text{Tokens: []int32{9}}, GenerateInstruction: prompt.Text{Tokens: []int32{8, 7}}}, nil,
		vocabulary)
	if err != nil {
		t.Fatal(err)
	}
	opt := m.opt
	opt.Model, opt.Load, opt.Policy = kv.KeyOf(opt.Model, nil, "led"), linear{}, schedule.Predicted
	return &machine{New(b, opt), m.engine, m.store, m.close}
}

// rank answers a request and returns its logits, with how many tokens of each segment were cached.
func (m *machine) rank(t *testing.T, r *Request) (logits []float32, cached []int, l prompt.Layout) {
	t.Helper()
	v := m.Begin(r)
	var err error
	if r.Pointwise {
		l, err = m.prompt.Pointwise(v.Order(), r.User, r.Items)
	} else {
		l, err = m.prompt.Rank(v.Order(), r.User, r.Items)
	}
	if err != nil {
		t.Fatal(err)
	}
	job := &engine.Job{Plan: l.Plan, Want: []engine.Want{{Segment: len(l.Plan.Segments) - 1, IDs: []int32{1, 2, 3}}}}
	v.Attach(t.Context(), &l, job)
	res, err := m.engine.Do(t.Context(), job)
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for i := range l.Plan.Segments {
		n, at := job.Cached(i)
		if (n > 0) != (at == plan.Host) {
			t.Errorf("segment %d: %d tokens from %v", i, n, at)
		}
		cached, total = append(cached, n), total+n
	}
	if res.Cached != total {
		t.Errorf("%d tokens were cached, %v by segment", res.Cached, cached)
	}
	v.End(&l, res)
	m.opt.Store.Count(m.opt.Now())
	return res.Logits[0], cached, l
}

// A ranking's answer is the same whatever is cached: in both orders, with and without a preamble, a lead-in and an id,
// for one answer and for one per item. What was computed once is cached the next time.
func TestRankingsFromTheCacheAreTheSame(t *testing.T) {
	user, items := []int32{11, 12, 13, 14, 15}, [][]int32{{21, 22, 23}, {31, 32}, {41}}
	for _, preamble := range [][]int32{nil, {1, 2, 3}} {
		for _, leadIn := range [][]int32{nil, {4, 5}} {
			for _, policy := range []schedule.Policy{schedule.User, schedule.Item} {
				for _, id := range []string{"", "u"} {
					name := fmt.Sprintf("preamble %v, lead-in %v, %v, user %q", preamble, leadIn, policy, id)
					m := newMachine(t, 7, nil, "", false).led(t, preamble, leadIn)
					r := &Request{UserID: id, User: user, Items: items, Policy: policy}
					none := *r
					none.Policy = schedule.None
					plain := map[schedule.Policy]plan.Order{schedule.User: plan.UserFirst, schedule.Item: plan.ItemFirst}[policy]
					first, cached, l := m.rank(t, r)
					if slices.Max(cached) != 0 {
						t.Errorf("%s: %v are cached before anything was computed", name, cached)
					}
					again, cached, _ := m.rank(t, r)
					if !slices.Equal(first, again) {
						t.Errorf("%s: %v from the cache, %v computed", name, again, first)
					}
					for i := range cached {
						want := len(l.Plan.Segments[i].Tokens)
						kind := l.Plan.Segments[i].Kind
						switch {
						case kind == plan.Instruction:
							want = 0
						case plain == plan.UserFirst && kind == plan.Item:
							want = 0
						case plain == plan.ItemFirst && kind == plan.User:
							want = 0
						}
						if cached[i] != want {
							t.Errorf("%s: %d tokens of segment %d (%v) are cached, want %d", name, cached[i], i, kind, want)
						}
					}
					if id != "" && policy == schedule.User {
						longer := *r
						longer.User = append(slices.Clone(user), 16, 17)
						if _, cached, l := m.rank(t, &longer); cached[l.User] != 5 {
							t.Errorf("%s: %d tokens of a user with two more are cached", name, cached[l.User])
						}
						if err := m.DropUser("u"); err != nil {
							t.Error(err)
						}
						if _, cached, l := m.rank(t, r); cached[l.User] != 0 {
							t.Errorf("%s: %d tokens of a user who was dropped are cached", name, cached[l.User])
						}
					}
					if policy == schedule.Item {
						if uses, there := m.Heat(items[1]); !there || uses < 1.5 {
							t.Errorf("%s: an item is cached %v, used %v times", name, there, uses)
						}
						if err := m.DropItem(items[1], items[2]); err != nil {
							t.Error(err)
						}
						if _, there := m.Heat(items[1]); there {
							t.Errorf("%s: an item is cached after it was dropped", name)
						}
						if _, cached, l := m.rank(t, r); cached[l.Items] != 3 || cached[l.Items+1] != 0 || cached[l.Items+2] != 0 {
							t.Errorf("%s: %v are cached after two items were dropped", name, cached)
						}
					}
					if _, cached, _ := m.rank(t, &none); slices.Max(cached) != 0 {
						t.Errorf("%s: %v are cached, and nothing is to be reused", name, cached)
					}
				}
			}
		}
	}
}

// Rankings with one answer per item reuse the segments before the answers.
func TestPointwiseRankingsFromTheCache(t *testing.T) {
	for _, policy := range []schedule.Policy{schedule.User, schedule.Item} {
		m := newMachine(t, 7, nil, "", false).led(t, []int32{1, 2}, nil)
		r := &Request{UserID: "u", User: []int32{11, 12, 13}, Items: [][]int32{{21, 22}, {31}}, Pointwise: true,
			Policy: policy}
		first, _, _ := m.rank(t, r)
		again, cached, _ := m.rank(t, r)
		total := 0
		for _, n := range cached {
			total += n
		}
		if !slices.Equal(first, again) || total < 3 {
			t.Errorf("%v: %v from the cache (%v), %v computed", policy, again, cached, first)
		}
	}
}

// Decisions are counted by order and reason.
func TestDecisionsAreCounted(t *testing.T) {
	m := newMachine(t, 7, nil, "", false).led(t, nil, nil)
	for range 3 {
		m.rank(t, &Request{User: []int32{1}, Items: [][]int32{{2}}, Policy: schedule.User})
	}
	m.rank(t, &Request{User: []int32{1}, Items: [][]int32{{2}}, Policy: schedule.Item})
	total := int64(0)
	for what, n := range m.Decisions() {
		if total += n; strings.HasPrefix(what, "user ") && n != 3 || strings.HasPrefix(what, "item ") && n != 1 {
			t.Errorf("%q: %d", what, n)
		}
	}
	if total != 4 || m.Policy() != schedule.Predicted {
		t.Errorf("%v were decided, the policy is %v", m.Decisions(), m.Policy())
	}
	if m.Bytes(10) != 10*m.bytesPerToken || m.bytesPerToken*kv.ChainTokens != int64(
		m.opt.Shape.ChunkBytes(kv.ChainTokens, false)) {
		t.Errorf("ten tokens take %d bytes", m.Bytes(10))
	}
	if m.Books().Total != m.opt.Pool.Stats().Total || m.Known() == 0 || m.Stats(plan.Item).Entries == 0 {
		t.Errorf("%+v, %d known, %+v", m.Books(), m.Known(), m.Stats(plan.Item))
	}
}

// A generation reuses the cached part of its user and keeps all of its prompt except the instruction. If the prompt
// ends with the user, the last token answers and is computed.
func TestPromptsOfGenerations(t *testing.T) {
	for _, instruction := range []bool{true, false} {
		m := newMachine(t, 7, nil, "", false).led(t, []int32{1, 2}, []int32{4})
		if !instruction {
			b, err := prompt.New(prompt.Config{Preamble: prompt.Text{Tokens: []int32{1, 2}}}, nil, vocabulary)
			if err != nil {
				t.Fatal(err)
			}
			m.prompt = b
		}
		generate := func(user []int32, fail bool) (hidden []float32, cached int, kept []*kv.Entry) {
			v := m.Generate("u", user)
			l := m.prompt.Generate(user)
			job := &engine.Job{Plan: l.Plan, Hidden: []int{l.Answers}}
			v.AttachPrompt(t.Context(), &l, job)
			if fail {
				if out := v.EndPrompt(&l, nil); out != nil {
					t.Errorf("a job that failed kept %v", out)
				}
				return nil, 0, nil
			}
			r, err := m.engine.Do(t.Context(), job)
			if err != nil {
				t.Fatal(err)
			}
			kept = v.EndPrompt(&l, r)
			if len(kept) != len(l.Plan.Segments) {
				t.Fatalf("%d of %d segments are kept", len(kept), len(l.Plan.Segments))
			}
			for i, e := range kept {
				if n := len(l.Plan.Segments[i].Tokens); n == 0 {
					continue
				} else if e == nil || e.Len() != n {
					t.Errorf("segment %d is kept as %v", i, e)
				} else {
					defer e.Release()
				}
			}
			return r.Hidden[0], r.Cached, kept
		}
		user := []int32{11, 12, 13, 14}
		generate(user, true)
		first, cached, _ := generate(user, false)
		if cached != 0 {
			t.Errorf("%d tokens were cached before anything was computed", cached)
		}
		want := 2 + 4
		if !instruction {
			want = 2 + 3
		}
		again, cached, _ := generate(user, false)
		if !slices.Equal(first, again) || cached != want {
			t.Errorf("instruction %v: %d tokens were cached, want %d; states differ: %v", instruction, cached, want,
				!slices.Equal(first, again))
		}
		if _, cached, _ := generate(append(slices.Clone(user), 15), false); cached != 2+4 {
			t.Errorf("instruction %v: %d tokens of a longer user were cached", instruction, cached)
		}
		if instruction {
			if _, cached, _ := generate(nil, false); cached != 2 {
				t.Errorf("%d tokens of a prompt without a user were cached", cached)
			}
			if _, cached, l := m.rank(t, &Request{UserID: "u", User: user, Items: [][]int32{{21}},
				Policy: schedule.User}); cached[l.User] != 4 {
				t.Errorf("%d tokens of a user of generations are cached for a ranking", cached[l.User])
			}
		}
		used := m.store.Stats(plan.Instruction).Entries
		if used != 0 {
			t.Errorf("%d instructions are cached", used)
		}
	}
}

// A repeated prompt of a query and items reuses the items that an item-first ranking kept.
func TestUnnamedItemsAreThoseOfRankings(t *testing.T) {
	for _, leadIn := range [][]int32{nil, {4}} {
		m := newMachine(t, 7, nil, "", false).led(t, []int32{1, 2}, leadIn)
		items := [][]int32{{21, 22}, {31}}
		m.rank(t, &Request{User: []int32{5}, Items: items, Policy: schedule.Item})
		l := m.prompt.Score([]int32{6, 7}, items, true)
		v := m.Unnamed(&l)
		job := &engine.Job{Plan: l.Plan}
		v.Attach(t.Context(), &l, job)
		got := 0
		for i := range l.Plan.Segments {
			if n, _ := job.Cached(i); l.Plan.Segments[i].Kind == plan.Item {
				got += n
			}
		}
		if want := 3 * (1 - len(leadIn)); got != want {
			t.Errorf("lead-in %v: %d tokens of items are cached, want %d", leadIn, got, want)
		}
		v.EndUnnamed(&l, nil)
	}
}

// blended answers a blended prompt and returns its account.
func (m *machine) blended(t *testing.T, r *Request, how *Blend) (*engine.Result, Account, *Blended, prompt.Layout) {
	t.Helper()
	v := m.BeginBlend(r)
	l, err := m.prompt.Rank(how.Order(), r.User, r.Items)
	if err != nil {
		t.Fatal(err)
	}
	job := &engine.Job{Plan: l.Plan, Want: []engine.Want{{Segment: l.Answers, IDs: []int32{1, 2, 3}}}}
	v.Attach(t.Context(), &l, job, how, how.Budget)
	res, err := m.engine.Do(t.Context(), job)
	if err != nil {
		t.Fatal(err)
	}
	a := v.Account(res)
	if total := l.Plan.Tokens(); a.Reused()+a.Computed != total {
		t.Errorf("%d tokens reused and %d computed, of %d: %+v", a.Reused(), a.Computed, total, a)
	}
	v.End(&l, res)
	m.opt.Store.Count(m.opt.Now())
	return res, a, v, l
}

// A blended prompt computes the blocks of items that came before, uses them the next time, and counts every token. With
// a budget of 1 its answer is the same as without a cache.
func TestBlendedPrompts(t *testing.T) {
	user, items := []int32{11, 12, 13, 14, 15, 16}, [][]int32{{21, 22, 23, 24}, {31, 32, 33}, {}, {21, 22, 23, 24}}
	for _, preamble := range [][]int32{nil, {1, 2, 3}} {
		for _, leadIn := range [][]int32{nil, {4, 5}} {
			for _, itemsFirst := range []bool{false, true} {
				name := fmt.Sprintf("preamble %v, lead-in %v, items first %v", preamble, leadIn, itemsFirst)
				m := newMachine(t, 7, nil, "", false).led(t, preamble, leadIn)
				how := &Blend{Budget: blend.Budget{Items: 1, History: 1}, Layers: 1, ItemsFirst: itemsFirst}
				if want := map[bool]plan.Order{false: plan.Causal, true: plan.CausalItems}[itemsFirst]; how.Order() != want {
					t.Errorf("%s: order %v", name, how.Order())
				}
				r := &Request{UserID: "u", User: user, Items: items}
				all, a, _, l := m.blended(t, r, how)
				total := l.Plan.Tokens()
				if a.Computed != total || a.Reused() != 0 || a.Beside != 0 {
					t.Errorf("%s, first: %+v of %d", name, a, total)
				}
				second, a, _, _ := m.blended(t, r, how) // the items came before, so their blocks are computed beside the prompt
				userCached := len(user) + len(preamble)
				if itemsFirst {
					userCached = len(preamble)
					if len(leadIn) > 0 {
						userCached += len(leadIn)
					}
				}
				if a.Beside != 7+len(leadIn) && !itemsFirst || a.Host != userCached || a.Recomputed != 0 || a.Partly != 0 {
					t.Errorf("%s, second: %+v, want %d beside and %d from the host", name, a, 7+len(leadIn), userCached)
				}
				for _, it := range items[:2] {
					if _, there := m.Heat(it); !there {
						t.Errorf("%s: the block of %v is not there", name, it)
					}
				}
				third, a, v, l := m.blended(t, r, how)
				if a.Beside != 0 || a.Recomputed != 11 || a.Partly != 0 {
					t.Errorf("%s, third: %+v", name, a)
				}
				for _, got := range []*engine.Result{second, third} {
					for i := range got.Logits[0] {
						if d := got.Logits[0][i] - all.Logits[0][i]; d > 1e-4 || d < -1e-4 {
							t.Errorf("%s: %v, want %v", name, got.Logits[0], all.Logits[0])
							break
						}
					}
				}
				if n, source := v.Part(third, l.Items, 0); n != 0 || source != "" {
					t.Errorf("%s: %d tokens of a part from %q, and all were computed again", name, n, source)
				}
				how.Budget = blend.Budget{}
				last, a, v, l := m.blended(t, r, how)
				if a.Partly == 0 || a.Recomputed+a.Partly != 11 || a.Host != a.Reused() || a.Prototype+a.Disk+a.Device != 0 {
					t.Errorf("%s, without a budget: %+v", name, a)
				}
				if n, source := v.Part(last, l.Items, l.ItemAt[0]); n != last.Reused[0] || source != "host" || n == 0 {
					t.Errorf("%s: %d tokens of a part from %q, want %d", name, n, source, last.Reused[0])
				}
				if n, source := v.Part(last, l.Items, l.ItemAt[0]+1); n != 0 || source != "" {
					t.Errorf("%s: %d tokens of no part from %q", name, n, source)
				}
				if v.Prototypes(last, l.User) != 0 {
					t.Errorf("%s: prototypes of nothing", name)
				}
			}
		}
	}
	if (*Blend)(nil).Order() != plan.Causal {
		t.Error("no blend at all has another order")
	}
}

// A visit with another decision can blend instead.
func TestBlendInstead(t *testing.T) {
	m := newMachine(t, 7, nil, "", false).led(t, nil, nil)
	v := m.Begin(&Request{User: []int32{1, 2}, Items: [][]int32{{3}}, Policy: schedule.Item})
	if v.Decision.Order != plan.ItemFirst {
		t.Fatal("the test needs another decision")
	}
	b := m.BlendInstead(v)
	if b.Decision.Order != plan.UserFirst || !b.Decision.Reuse {
		t.Errorf("it was decided %+v", b.Decision)
	}
	l, err := m.prompt.Rank(plan.Causal, []int32{1, 2}, [][]int32{{3}})
	if err != nil {
		t.Fatal(err)
	}
	b.Attach(t.Context(), &l, &engine.Job{Plan: l.Plan}, &Blend{}, blend.Budget{})
	b.End(&l, nil)
}

// Blending pays if it is predicted to take less time than the chosen order, less what that order may save later.
func TestWhenBlendingPays(t *testing.T) {
	m := newMachine(t, 7, nil, "", false).led(t, []int32{1}, nil)
	// A token takes 0.01 ms. There are 50 + 200 + 1 tokens, and blocks save two thirds of 200.
	visit := func(tier plan.Tier, queue, chosen, value float64) *Visit {
		v := &Visit{cache: m.Cache}
		v.in = schedule.Request{User: 50, Preamble: 1, Question: 1, Queue: queue,
			Items: []int32{100, 100}, ItemTier: []plan.Tier{tier, tier}}
		v.Decision = schedule.Decision{Order: plan.UserFirst}
		v.Decision.User.Ms, v.Decision.User.Value = chosen, value
		return v
	}
	how := &Blend{Layers: 1}
	const blends = (50 + 200 + 1 - 200*2./3) * .01 // 1.17 ms
	for _, c := range []struct {
		tier                 plan.Tier
		queue, chosen, value float64
		want                 bool
	}{
		{plan.Host, 0, blends + .02, 0, true}, {plan.Host, 0, blends - .02, 0, false},
		{plan.Host, 5, blends + 4, 0, false}, {plan.Host, 5, blends + 5.02, 0, true},
		{plan.Host, 0, blends + .5, .45, true}, {plan.Host, 0, blends + .5, .55, false},
		{plan.Missing, 0, 2.52, 0, true}, {plan.Missing, 0, 2.5, 0, false},
	} {
		if got := visit(c.tier, c.queue, c.chosen, c.value).BlendPays(how); got != c.want {
			t.Errorf("%+v: pays %v", c, got)
		}
	}
	half := &Blend{Layers: 1, Budget: blend.Budget{Items: .5}}
	if v := visit(plan.Host, 0, blends+.6, 0); v.BlendPays(half) {
		t.Error("half of the blocks are computed again, and it pays as much")
	}
	v := visit(plan.Host, 0, blends-.1, 0)
	if v.in.UserCached[plan.Host] = 20; !v.BlendPays(how) {
		t.Error("a cached part of the user is not counted")
	}
	// Reads count beyond the first layers; one of three takes 0.83 ms. Two blocks of 100 tokens are read at 0.01 ms.
	t1 := m.costs.Transfer[plan.Disk]
	reads := 2*t1.Entry + 200*t1.Token
	extra := max(0, reads-2.51/3)
	if !visit(plan.Disk, 0, blends+extra+.02, 0).BlendPays(how) ||
		visit(plan.Disk, 0, blends+extra-.02, 0).BlendPays(how) {
		t.Errorf("blocks on disk: %v ms are read", reads)
	}
}

// A user may be kept without evicting anything while there is room. A cache that was full counts as full until half of
// it is free.
func TestRoomForUsers(t *testing.T) {
	m := newMachine(t, 7, nil, "", false)
	total := m.opt.Pool.Stats().Total
	if !m.room(int(total/m.bytesPerToken)) || m.room(int(total/m.bytesPerToken)+1) {
		t.Errorf("of %d bytes", total)
	}
	m.noteFull()
	if m.full.Load() {
		t.Error("an empty cache is full")
	}
	hog, err := m.opt.Pool.Alloc(int(total - total/8))
	if err != nil {
		t.Fatal(err)
	}
	if m.noteFull(); !m.full.Load() || m.room(1) {
		t.Error("a cache of which an eighth is free is not full")
	}
	m.opt.Pool.Free(hog)
	half, err := m.opt.Pool.Alloc(int(total / 2))
	if err != nil {
		t.Fatal(err)
	}
	if m.room(1) {
		t.Error("half of it is free, and it is not full any more")
	}
	m.opt.Pool.Free(half)
	if !m.room(1) || m.full.Load() {
		t.Error("all of it is free, and it is full")
	}
}

// Half of the time left after computing a prompt may be spent on reading.
func TestTimeForReading(t *testing.T) {
	m := newMachine(t, 7, nil, "", false)
	m.opt.Load = waiting{}
	p := &plan.Plan{Segments: []plan.Segment{{Tokens: make([]int32, 10)}, {Tokens: make([]int32, 4), Sees: []int32{0}}}}
	synctest.Test(t, func(t *testing.T) {
		// 1 ms of work waits, and 14 rows with 55 + 40 + 10 keys take 1.4 + 1.05 ms.
		for slack, want := range map[time.Duration]time.Duration{
			100 * time.Millisecond:  (100*time.Millisecond - 3450*time.Microsecond) / 2,
			3 * time.Millisecond:    3 * time.Millisecond,
			3450 * time.Microsecond: 3450 * time.Microsecond,
		} {
			ctx, cancel := context.WithTimeout(t.Context(), slack)
			within, done := m.inTime(ctx, p)
			if deadline, ok := within.Deadline(); !ok || time.Until(deadline).Round(time.Microsecond) != want.Round(
				time.Microsecond) {
				t.Errorf("of %v, %v are for reading, want %v", slack, time.Until(deadline), want)
			}
			done()
			cancel()
		}
		within, done := m.inTime(t.Context(), p)
		if _, ok := within.Deadline(); ok {
			t.Error("without a deadline there is one for reading")
		}
		done()
	})
}

// waiting is a Load with a millisecond of waiting work, and times per row and key.
type waiting struct{}

func (waiting) Backlog() (float64, int)      { return 1, 1 }
func (waiting) Model() schedule.PrefillModel { return schedule.PrefillModel{Row: .1, Key: .01} }

// Items are computed ahead in batches of 1,024 tokens. Cached ones are skipped, and a failure ends the run.
func TestPrecomputeInBatches(t *testing.T) {
	m := newMachine(t, 7, nil, "", false)
	var batches []int
	fail := -1
	broken := errors.New("broken")
	do := func(_ context.Context, j *engine.Job) (*engine.Result, error) {
		if len(batches) == fail {
			return nil, broken
		}
		n := 0
		for _, s := range j.Plan.Segments {
			n += len(s.Tokens)
		}
		batches = append(batches, n)
		return m.dryRun(t, j), nil
	}
	item := func(i int32, n int) []int32 { out := make([]int32, n); out[0] = i; return out }
	items := [][]int32{item(1, 512), item(2, 512), item(3, 1), item(4, 1000), item(5, 24), item(6, 2000)}
	var told []string
	progress := func(items, tokens int) { told = append(told, fmt.Sprint(items, " ", tokens)) }
	if n, tooLong, err := m.Precompute(t.Context(), do, items, progress); n != 6 || tooLong != 0 || err != nil {
		t.Errorf("%d computed, %d too long, %v", n, tooLong, err)
	}
	if !slices.Equal(batches, []int{1024, 1001, 24, 2000}) && !slices.Equal(batches, []int{1024, 1001, 2024}) {
		t.Errorf("batches of %v", batches)
	}
	if len(told) != len(batches) || told[0] != "2 1024" {
		t.Errorf("told %v", told)
	}
	before := len(batches)
	if n, _, err := m.Precompute(t.Context(), do, items, nil); n != 0 || err != nil || len(batches) != before {
		t.Errorf("%d computed again, %v", n, err)
	}
	fail = len(batches)
	if _, _, err := m.Precompute(t.Context(), do, [][]int32{item(7, 5)}, nil); !errors.Is(err, broken) {
		t.Errorf("a failure: %v", err)
	}
	fail++
	more := [][]int32{item(8, 1000), item(9, 1000), item(10, 1000)}
	if n, _, err := m.Precompute(t.Context(), do, more, nil); n != 1 || !errors.Is(err, broken) {
		t.Errorf("%d computed before a failure, %v", n, err)
	}
	fail = -1
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := m.Precompute(ctx, do, nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("for nobody: %v", err)
	}
}

// Unused prototypes are removed with the first user who is deleted.
func TestUnusedPrototypesGo(t *testing.T) {
	if err := (&Blend{}).DropUser("u"); err != nil {
		t.Errorf("without prototypes: %v", err)
	}
	file := filepath.Join(t.TempDir(), "x.proto")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := &Blend{Unused: file}
	if err := b.DropUser("u"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the file is there: %v", err)
	}
	if got := PrototypesFile("data", "a/b"); got != filepath.Join("data", "prototypes", "a%2Fb.proto") {
		t.Errorf("prototypes of a model are in %s", got)
	}
	dir := filepath.Join(t.TempDir(), "d")
	if err := os.MkdirAll(filepath.Join(dir, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := (&Blend{Unused: dir}).DropUser("u"); err == nil {
		t.Error("a file that cannot be removed is no error")
	}
}

// KV in a format that cannot be moved has no prototypes.
func TestKVThatCannotBeMoved(t *testing.T) {
	m := newMachine(t, 7, nil, "", false)
	if err := m.movable(); err != nil {
		t.Errorf("%v", err)
	}
	m.opt.Shape.KV = compute.FP8
	if err := m.movable(); err == nil {
		t.Error("KV in FP8 is moved")
	}
	if _, err := m.BuildPrototypes(t.Context(), m.engine.Do, filepath.Join(t.TempDir(), "x"), people(1, 3)); err == nil {
		t.Error("prototypes of KV in FP8 are made")
	}
}

// Evictions of users and known prefixes teach how long entries survive; those of items do not.
func TestEvictionsAreLearntFrom(t *testing.T) {
	m := newMachine(t, 7, nil, "", false)
	key := m.UserKey("u", nil)
	m.returns.note(residency.Hash(key), 0, 0)
	m.opt.Now = func() time.Duration { return 77 }
	m.dropped(key, plan.Item)
	m.forgotten(key)
	m.opt.Now = func() time.Duration { return 77 + 160 }
	m.dropped(key, plan.User)
	want := schedule.NewReturns()
	want.Came(residency.Hash(key), 0, 0)
	want.Evicted(residency.Hash(key), 77)
	want.Evicted(residency.Hash(key), 77+160)
	if !reflect.DeepEqual(m.returns.core, want) {
		t.Error("a known prefix and a user that made room did not survive 77 and 237")
	}
}

// The inputs and decisions of a cache are recorded.
func TestRecordOfACache(t *testing.T) {
	var out strings.Builder
	log := record.New(&out, 1<<20)
	m := newMachine(t, 7, nil, "", false)
	m.opt.Record = log.Room("reuse")
	m.returns.rec = m.opt.Record
	m.opt.Load = linear{}
	m.opt.Now = func() time.Duration { return 5 }
	m.rank(t, &Request{UserID: "u", User: []int32{1, 2, 3}, Items: [][]int32{{4, 5}}, Policy: schedule.User,
		Slack: time.Second})
	v := m.Begin(&Request{UserID: "u", User: []int32{1, 2, 3}, Items: [][]int32{{4, 5}}, Policy: schedule.User})
	v.BlendPays(&Blend{Layers: 2, Budget: blend.Budget{Items: .5}})
	(&Blended{Visit: v}).invests(&schedule.Prototypes{Matched: 2, Layers: 3, Budget: .25})
	ctx, cancel := m.inTime(t.Context(), &plan.Plan{Segments: []plan.Segment{{Tokens: []int32{1, 2}}}})
	cancel()
	_ = ctx
	m.returns.gain(1)
	m.returns.evicted(3, 9)
	v.End(&prompt.Layout{Plan: &plan.Plan{}, User: -1, Items: -1}, nil)
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"costs 0 0.01 0 0 0 [", "decide user k", " 1 - 0 3 [0,0,0,0,0] [2] [missing] [0] 0 0 0.5999999", ". order user ",
		"expect 0",
		". returns 0.5999999", "came ", " 0 5",
		"kept ", "hit ", "end k", " 5 +", " 5 -",
		"blending 0 0.01 0 0 0 0.05 ", " 3 2 0.5 ", ". pays 0.03 ", "investing 0 0.01 0 0 0 0 3 1 1 2 0 3 0.25",
		". invests 0.03 0.02 +",
		"[0,0,0,0,0,7.32421875",
		"reading 0 - 0 0.02", ". within 0", "gain 1", ". share 1", "evicted 3 9",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("not recorded: %q", want)
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

// Everything that requests share waits for its lock.
func TestReuseCallsWaitForTheirLocks(t *testing.T) {
	r := &returns{core: schedule.NewReturns()}
	s := &Shared{}
	l := &changed{some: make(chan struct{}, 1), items: map[plan.Key]*changedItem{}}
	m := newMachine(t, 7, nil, "", false)
	for name, w := range map[string]struct {
		lock, unlock func()
		call         func()
	}{
		"note":     {r.mu.Lock, r.mu.Unlock, func() { r.note(1, 1, 1) }},
		"evicted":  {r.mu.Lock, r.mu.Unlock, func() { r.evicted(1, 1) }},
		"expect":   {r.mu.Lock, r.mu.Unlock, func() { r.expect(1) }},
		"gain":     {r.mu.Lock, r.mu.Unlock, func() { r.gain(1) }},
		"kept":     {r.mu.Lock, r.mu.Unlock, func() { r.kept(1, 1) }},
		"hit":      {r.mu.Lock, r.mu.Unlock, func() { r.hit(1) }},
		"each":     {s.mu.Lock, s.mu.Unlock, func() { s.each(func(*Cache) {}) }},
		"userKeys": {s.mu.Lock, s.mu.Unlock, func() { s.userKeys(nil) }},
		"add":      {l.mu.Lock, l.mu.Unlock, func() { l.add(plan.Key{1}, nil) }},
		"remove":   {l.mu.Lock, l.mu.Unlock, func() { l.remove(plan.Key{1}) }},
		"take":     {l.mu.Lock, l.mu.Unlock, func() { l.take(1) }},
		"listed":   {l.mu.Lock, l.mu.Unlock, func() { l.listed(nil) }},
		"Settle":   {m.loads.mu.Lock, m.loads.mu.Unlock, func() { _ = m.Settle() }},
		"Leave":    {m.opt.Shared.mu.Lock, m.opt.Shared.mu.Unlock, func() { _ = m.Leave() }},
	} {
		w.lock()
		ended, waiting := waits(w.call)
		if !waiting {
			t.Errorf("%s does not wait", name)
		}
		w.unlock()
		ends(ended)
	}
}

package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"grebe/kv"
	"grebe/plan"
)

// apart gives equal items other kinds: these change no result, but no segment is then computed in place of another.
func apart(p *plan.Plan) *plan.Plan {
	kinds := []plan.Kind{plan.Item, plan.Preamble, plan.Instruction, plan.Discriminant}
	out := &plan.Plan{Segments: slices.Clone(p.Segments)}
	for i := range out.Segments {
		n := 0
		for j := range i {
			if p.Segments[j].Kind == plan.Item && slices.Equal(p.Segments[i].Tokens, p.Segments[j].Tokens) {
				n++
			}
		}
		if p.Segments[i].Kind == plan.Item {
			out.Segments[i].Kind = kinds[n]
		}
	}
	return out
}

// repeating returns a plan whose items are repeated up to four times: user-first or item-first, with one instruction
// that sees all or with one discriminant per item. distinct is how many tokens it has without repetitions.
func repeating(r *rand.Rand) (p *plan.Plan, answers []int, distinct int) {
	p = &plan.Plan{}
	add := func(kind plan.Kind, tokens []int32, start int, sees ...int32) int32 {
		p.Segments = append(p.Segments, plan.Segment{Kind: kind, Tokens: tokens, Start: start, Sees: sees})
		return int32(len(p.Segments) - 1)
	}
	const longest = 80
	lead := add(plan.Preamble, randomTokens(r, 5), 0)
	user, question := randomTokens(r, []int{1, 17, 64, 150}[r.IntN(4)]), randomTokens(r, 3)
	distinct = 5 + len(user)
	var items [][]int32
	for range 1 + r.IntN(4) {
		tokens := append(randomTokens(r, []int{1, 3, 9, 65}[r.IntN(4)]), int32(len(items))) // none equals another
		distinct += len(tokens)
		for range 1 + r.IntN(4) {
			items = append(items, tokens)
		}
	}
	r.Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
	seen := map[int32]bool{}
	userFirst, pointwise := r.IntN(2) == 0, r.IntN(2) == 0
	before, start := []int32{lead}, 5
	var u int32
	if userFirst {
		u = add(plan.User, user, start, before...)
		before, start = append(before, u), start+len(user)
	}
	all := slices.Clone(before)
	for _, tokens := range items {
		all = append(all, add(plan.Item, tokens, start, before...))
	}
	end := start + longest
	if !userFirst {
		u = add(plan.User, user, end, all...)
		all, end = append(all, u), end+len(user)
	}
	if !pointwise {
		return p, []int{int(add(plan.Instruction, question, end, all...))}, distinct + 3
	}
	first := int(lead) + 1
	if userFirst {
		first++
	}
	for i, tokens := range items {
		answers = append(answers, int(add(plan.Discriminant, question, end, lead, u, int32(first+i))))
		if last := tokens[len(tokens)-1]; !seen[last] {
			seen[last] = true
			distinct += 3
		}
	}
	return p, answers, distinct
}

// Repeated items, and the questions about them, are computed once, and all answers have the bits that they have when
// each is computed.
func TestRepeatedItemsAreComputedOnce(t *testing.T) {
	for name, dev := range cpuDevices(t) {
		for _, dtype := range []string{"f32", "bf16"} {
			t.Run(name+"/"+dtype, func(t *testing.T) {
				e := newTiny(t, dev, dtype, Options{})
				r := rand.New(rand.NewPCG(7, 21))
				for round := range 20 {
					p, answers, distinct := repeating(r)
					job := &Job{Plan: p, Hidden: answers, Once: true}
					for _, a := range answers {
						job.Want = append(job.Want, Want{Segment: a, IDs: ids(7)})
					}
					plain := *job
					plain.Plan = apart(p)
					want, err := e.Do(t.Context(), &plain)
					if err != nil {
						t.Fatal(err)
					}
					if want.Computed != p.Tokens() || want.Shared.Request != 0 {
						t.Fatalf("round %d: %d of %d tokens computed apart", round, want.Computed, p.Tokens())
					}
					keep := round%2 == 1
					if keep {
						job.Segments = slices.Repeat(keeping(true), len(p.Segments))
					}
					got, err := e.Do(t.Context(), job)
					if err != nil {
						t.Fatal(err)
					}
					sameAnswers(t, fmt.Sprintf("round %d, KV kept: %v", round, keep), got, want)
					repeated := p.Tokens() - distinct
					if got.Computed != distinct || got.BatchTokens != distinct || got.Cached != repeated ||
						got.Shared.Request != repeated ||
						got.Shared.Concurrent != 0 || got.Shared.Cost.Rows != repeated {
						t.Fatalf("round %d: %d of %d tokens are distinct, but %+v", round, distinct, p.Tokens(), got)
					}
					if by := got.Tiers(job); by[e.home] != repeated {
						t.Fatalf("round %d: %v by tier, %d repeated", round, by, repeated)
					}
					if keep {
						giveBack(t, e, got, job)
					}
				}
			})
		}
	}
}

// sameAnswers compares bits.
func sameAnswers(t *testing.T, what string, got, want *Result) {
	t.Helper()
	if !slices.EqualFunc(got.Logits, want.Logits, slices.Equal[[]float32]) {
		t.Fatalf("%s: other logits", what)
	}
	if !slices.EqualFunc(got.Hidden, want.Hidden, slices.Equal[[]float32]) {
		t.Fatalf("%s: other hidden states", what)
	}
}

// giveBack runs a job once more with the KV that it kept, all but what answers, and releases that.
func giveBack(t *testing.T, e *tiny, kept *Result, job *Job) {
	t.Helper()
	again := *job
	again.Segments = make([]Segment, len(kept.Kept))
	for i, k := range kept.Kept {
		if k == nil || k.Len() != len(job.Plan.Segments[i].Tokens) {
			t.Fatalf("segment %d: KV was not kept whole", i)
		}
		if !slices.Contains(job.Hidden, i) {
			again.Segments[i].Entry = k
		}
	}
	got, err := e.Do(t.Context(), &again)
	if err != nil {
		t.Fatal(err)
	}
	sameAnswers(t, "with what was kept", got, kept)
	for _, k := range kept.Kept {
		k.Release()
	}
	if used := e.pool.Stats().Used; used != 0 {
		t.Fatalf("%d bytes are in use when all is released", used)
	}
}

// What jobs of a batch have in common is computed once: a user, items, or all of it.
func TestJobsOfABatchShare(t *testing.T) {
	e := newTiny(t, oneThread(t), "bf16", Options{})
	r := rand.New(rand.NewPCG(3, 21))
	for round := range 10 {
		user := randomTokens(r, 70)
		jobs, distinct := make([]*Job, 5), len(user)
		for i := range jobs {
			if i == 4 { // all of another one
				jobs[i] = &Job{Once: true, Plan: jobs[1].Plan, Want: jobs[1].Want, Hidden: jobs[1].Hidden}
			} else {
				item := append(randomTokens(r, 6), int32(i))
				distinct += len(item)
				jobs[i] = &Job{Once: true, Plan: &plan.Plan{Segments: []plan.Segment{
					{Kind: plan.User, Tokens: user}, {Kind: plan.Item, Tokens: item, Start: 70, Sees: []int32{0}},
				}}, Want: []Want{{Segment: 1, IDs: ids(9)}}, Hidden: []int{1}}
			}
			jobs[i].Segments = make([]Segment, 2)
			jobs[i].Segments[0].Keep = round%2 == 0
		}
		alone := make([]*Result, len(jobs))
		for i, j := range jobs {
			plain := *j
			plain.Segments = nil
			var err error
			if alone[i], err = e.Do(t.Context(), &plain); err != nil {
				t.Fatal(err)
			}
		}
		out := make([]Outcome, len(jobs))
		e.Run(jobs, out)
		computed, shared := 0, 0
		for i := range out {
			if out[i].Err != nil {
				t.Fatal(out[i].Err)
			}
			sameAnswers(t, fmt.Sprintf("round %d, job %d", round, i), &out[i].Result, alone[i])
			computed += out[i].Computed
			shared += out[i].Shared.Concurrent
			if n := jobs[i].Plan.Tokens(); out[i].Computed+out[i].Cached != n || out[i].Cached != out[i].Shared.Concurrent {
				t.Errorf("job %d has %d tokens: %+v", i, n, out[i].Result)
			}
			for s, k := range out[i].Kept {
				if jobs[i].Segments[s].Keep != (k != nil) || s == 0 && k != out[0].Kept[0] {
					t.Errorf("job %d, segment %d: kept %v, want the first one's", i, s, k)
				}
				if k != nil {
					k.Release()
				}
			}
		}
		if computed != distinct || out[0].BatchTokens != distinct || shared != 4*len(user)+7 {
			t.Errorf("%d tokens computed and %d shared, want %d and %d", computed, shared, distinct, 4*len(user)+7)
		}
		if used := e.pool.Stats().Used; used != 0 {
			t.Errorf("%d bytes are in use when all is released", used)
		}
	}
}

// KV that shall be kept is not taken from a segment whose KV is not; one whose KV is cached has no row to answer at.
func TestWhatCannotBeShared(t *testing.T) {
	e := newTiny(t, oneThread(t), "f32", Options{})
	r := rand.New(rand.NewPCG(4, 21))
	p := user(randomTokens(r, 30)...)
	out := make([]Outcome, 2)
	e.Run([]*Job{{Once: true, Plan: p, Hidden: []int{0}},
		{Once: true, Plan: p, Hidden: []int{0}, Segments: keeping(true)}}, out)
	if out[0].Err != nil || out[1].Err != nil || out[1].Computed != 30 || out[1].Kept[0] == nil {
		t.Fatalf("behind one that keeps nothing: %+v", out[1])
	}
	kept := out[1].Kept[0]
	defer kept.Release()
	e.Run([]*Job{{Once: true, Plan: p, Segments: From(kept)}, {Once: true, Plan: p, Hidden: []int{0}}}, out)
	if out[0].Err != nil || out[1].Err != nil || out[1].Computed != 30 || out[0].Computed != 0 {
		t.Fatalf("an answer behind one that is cached: %+v", out[1])
	}
	e.Run([]*Job{{Once: true, Plan: p, Hidden: []int{0}}, {Plan: p, Hidden: []int{0}}}, out)
	if out[0].Err != nil || out[1].Err != nil || out[1].Computed != 30 {
		t.Fatalf("a job that computes all: %+v", out[1])
	}
}

// A job that fails alone leaves nothing that others would share.
func TestTheFirstOfAJobFails(t *testing.T) {
	e := newTiny(t, oneThread(t), "f32", Options{})
	r := rand.New(rand.NewPCG(5, 21))
	tokens := randomTokens(r, 64)
	cached := e.keep(t, user(tokens[:20]...))
	hog, err := e.pool.Alloc(int(e.pool.Stats().Total - e.pool.Stats().Used))
	if err != nil {
		t.Fatal(err)
	}
	defer e.pool.Free(hog)
	// The first job's item is added before its user finds no room.
	item := plan.Segment{Kind: plan.Item, Tokens: randomTokens(r, 10)}
	first := &plan.Plan{Segments: []plan.Segment{item, {Kind: plan.User, Tokens: tokens, Start: 0}}}
	second := &plan.Plan{Segments: []plan.Segment{{Kind: plan.Preamble, Tokens: randomTokens(r, 4)}, item,
		{Kind: plan.Instruction, Tokens: tokens[:3], Start: 10, Sees: []int32{0, 1}}}}
	second.Segments[1].Sees = nil
	want, err := e.Do(t.Context(), &Job{Plan: second, Hidden: []int{2}})
	if err != nil {
		t.Fatal(err)
	}
	out := make([]Outcome, 2)
	e.Run([]*Job{{Once: true, Plan: first, Segments: From(nil, cached), Hidden: []int{1}},
		{Once: true, Plan: second, Hidden: []int{2}}}, out)
	if !errors.Is(out[0].Err, kv.ErrFull) || out[0].Cached != 0 {
		t.Errorf("the first: %+v", out[0])
	}
	if out[1].Err != nil || out[1].Computed != second.Tokens() || out[1].Shared.Concurrent != 0 {
		t.Fatalf("the second: %+v", out[1])
	}
	sameAnswers(t, "the second", &out[1].Result, want)
}

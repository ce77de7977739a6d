package reuse

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"grebe/engine"
	"grebe/kv"
	"grebe/plan"
	"grebe/schedule"
)

// dryRun answers a job without computing: it keeps the segments that the job wants to keep, and counts tokens.
func (m *machine) dryRun(t *testing.T, job *engine.Job) *engine.Result {
	t.Helper()
	r := &engine.Result{Kept: make([]*kv.Entry, len(job.Plan.Segments))}
	for i := range job.Plan.Segments {
		n, have := len(job.Plan.Segments[i].Tokens), 0
		segment := &job.Segments[i]
		if segment.Entry != nil {
			have = segment.Entry.Len()
		}
		r.Cached, r.Computed = r.Cached+have, r.Computed+n-have
		if !segment.Keep {
			continue
		}
		e, err := m.store.Reserve(kv.LayoutOf(job.Plan.Segments[i].Kind), n, segment.Entry)
		if err != nil {
			t.Fatal(err)
		}
		r.Kept[i] = e
	}
	return r
}

// A cache that starts empty learns from requests of either order which items return. Each user comes once, with 60 of
// 400 items.
func TestAutoFindsItemsFromAColdStart(t *testing.T) {
	m := newMachine(t, 7, nil, "", false)
	m.opt.Load = linear{}
	now := time.Duration(0)
	m.opt.Now = func() time.Duration { return now }
	random := rand.New(rand.NewPCG(1, 2))
	items := make([][]int32, 400)
	for i := range items {
		items[i] = []int32{int32(i % 100), int32(i / 100), 7, 8, 9}
	}
	const requests = 480
	var prompts, cached, itemFirst int // of the last half
	for n := range requests {
		now += 100 * time.Millisecond
		m.opt.Store.Count(now)
		user := make([]int32, 400) // longer than the items together
		for i := range user {
			user[i] = random.Int32N(vocabulary)
		}
		var candidates [][]int32
		for _, i := range random.Perm(len(items))[:60] {
			candidates = append(candidates, items[i])
		}
		v := m.Begin(&Request{UserID: fmt.Sprint(n), User: user, Items: candidates, Policy: schedule.Predicted})
		l, err := m.prompt.Rank(v.Order(), user, candidates)
		if err != nil {
			t.Fatal(err)
		}
		job := &engine.Job{Plan: l.Plan}
		v.Attach(t.Context(), &l, job)
		r := m.dryRun(t, job)
		if n >= requests/2 {
			prompts, cached = prompts+r.Cached+r.Computed, cached+r.Cached
			if v.Order() == plan.ItemFirst {
				itemFirst++
			}
		}
		v.End(&l, r)
	}
	reused := float64(cached) / float64(prompts)
	if itemFirst < 230 || reused < .4 {
		t.Errorf("%d of 240 requests put the items first and %.0f %% of their tokens were reused, want nearly all and "+
			"above 40 %%",
			itemFirst, 100*reused)
	}
}

// A candidate counts once per request, in every order.
func TestCandidatesCountOncePerRequest(t *testing.T) {
	items := [][]int32{{5, 6, 7}, {8, 9}}
	user := []int32{3, 4}
	for _, order := range []string{"user", "item", "blend", "none"} {
		m := newMachine(t, 7, nil, "", false)
		m.opt.Load = linear{}
		request := &Request{User: user, Items: items, Policy: schedule.User}
		switch order {
		case "item":
			request.Policy = schedule.Item
		case "none":
			request.Policy = schedule.None
		}
		if order == "blend" {
			v := m.BeginBlend(request)
			l, err := m.prompt.Rank(plan.Causal, user, items)
			if err != nil {
				t.Fatal(err)
			}
			v.Attach(t.Context(), &l, &engine.Job{Plan: l.Plan}, &Blend{Layers: 1}, (&Blend{}).Budget)
			v.End(&l, nil)
		} else {
			v := m.Begin(request)
			l, err := m.prompt.Rank(v.Order(), user, items)
			if err != nil {
				t.Fatal(err)
			}
			v.Attach(t.Context(), &l, &engine.Job{Plan: l.Plan})
			v.End(&l, nil)
		}
		now := m.opt.Now()
		m.opt.Store.Count(now)
		uses := make([]float32, 2)
		m.opt.Store.Uses([]plan.Key{m.ItemKey(items[0]), m.ItemKey(items[1])}, make([]plan.Tier, 2), now, uses)
		want := float32(1)
		if order == "none" {
			want = 0
		}
		if uses[0] != want || uses[1] != want {
			t.Errorf("%s: candidates were counted %v times, want %v", order, uses, want)
		}
	}
}

package engine

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"grebe/blend"
	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/compute/ref"
	"grebe/kv"
	"grebe/plan"
)

func oneThread(t *testing.T) compute.Device {
	t.Helper()
	dev, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	return dev
}

func user(tokens ...int32) *plan.Plan {
	return &plan.Plan{Segments: []plan.Segment{{Kind: plan.User, Tokens: tokens}}}
}

// packed is a head of some tokens.
func (e *tiny) packed(t *testing.T, tokens ...int32) compute.Linear {
	t.Helper()
	head, err := e.model.(interface {
		Head([]int32) (compute.Linear, error)
	}).Head(tokens)
	if err != nil {
		t.Fatal(err)
	}
	return head
}

// keep computes a plan of one segment and returns its KV.
func (e *tiny) keep(t *testing.T, p *plan.Plan) *kv.Entry {
	t.Helper()
	r, err := e.Do(t.Context(), &Job{Plan: p, Segments: keeping(true)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Kept[0].Release)
	return r.Kept[0]
}

// Jobs that cannot be computed are refused before anything is: at the very bounds.
func TestJobsThatAreRefused(t *testing.T) {
	e := newTiny(t, oneThread(t), "f32", Options{MaxTokens: 20})
	head := e.packed(t, 1, 2, 3)
	cached := e.keep(t, user(1, 2, 3))
	beams, err := NewBeams(e.shape, 2, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer beams.Close()
	beams.First = 1
	two := func(first, second []int32) *plan.Plan {
		return &plan.Plan{Segments: []plan.Segment{{Kind: plan.User, Tokens: first},
			{Kind: plan.Beam, Tokens: second, Start: len(first), Sees: []int32{0}}}}
	}
	three := two([]int32{1}, []int32{2})
	three.Segments = append(three.Segments, three.Segments[1], three.Segments[1])
	scaled := user(1, 2)
	scaled.Segments[0].Scale = 2
	for name, c := range map[string]struct {
		job  Job
		want string // "": it is computed
	}{
		"as many tokens as a batch": {Job{Plan: user(make([]int32, 20)...)}, ""},
		"one more":                  {Job{Plan: user(make([]int32, 21)...)}, "larger than a batch"},
		"room for its logits": {Job{Plan: user(1, 2), Want: []Want{{IDs: ids(4)}, {Head: head}},
			Into: make([]float32, 7)}, ""},
		"too little room": {Job{Plan: user(1, 2), Want: []Want{{IDs: ids(4)}, {Head: head}},
			Into: make([]float32, 6)}, "room for 6"},
		"too much room": {Job{Plan: user(1, 2), Want: []Want{{IDs: ids(4)}}, Into: make([]float32, 5)},
			"room for 5"},
		"the last token of all":      {Job{Plan: user(1, 2), Want: []Want{{IDs: []int32{199}}}}, ""},
		"a token behind it":          {Job{Plan: user(1, 2), Want: []Want{{IDs: []int32{0, 200}}}}, "200"},
		"a token before the first":   {Job{Plan: user(1, 2), Want: []Want{{IDs: []int32{-1}}}}, "-1"},
		"a segment behind the last":  {Job{Plan: user(1, 2), Hidden: []int{1}}, "segment 1 of 1"},
		"a segment before the first": {Job{Plan: user(1, 2), Hidden: []int{-1}}, "segment -1"},
		"an empty segment":           {Job{Plan: user(), Hidden: []int{0}}, "segment 0"},
		"KV for no segment":          {Job{Plan: user(1, 2), Segments: []Segment{}}, "but the job 0"},
		"KV for too many":            {Job{Plan: user(1, 2), Segments: make([]Segment, 2)}, "but the job 2"},
		"all is cached":              {Job{Plan: user(1, 2, 3), Segments: From(cached)}, ""},
		"more is cached":             {Job{Plan: user(1, 2), Segments: From(cached)}, "3 are cached"},
		"an answer that is cached":   {Job{Plan: user(1, 2, 3), Segments: From(cached), Hidden: []int{0}}, "segment 0"},
		"one token more than that":   {Job{Plan: user(1, 2, 3, 4), Segments: From(cached), Hidden: []int{0}}, ""},
		"KV for all, of none":        {Job{Plan: user(1, 2), Segments: make([]Segment, 1), Hidden: []int{0}}, ""},
		"a scale that is kept":       {Job{Plan: scaled, Segments: keeping(true)}, "whole request"},
		"a scale that is cached": {Job{Plan: &plan.Plan{
			Segments: []plan.Segment{{Kind: plan.User, Tokens: []int32{1, 2, 3}, Scale: 2}}},
			Segments: From(cached)}, "whole request"},
		"a beam with room":            {Job{Plan: two([]int32{1}, []int32{2, 3, 4}), Beams: beams}, ""},
		"a beam that is too long":     {Job{Plan: two([]int32{1}, []int32{2, 3, 4, 5}), Beams: beams}, "beam 0 of 4"},
		"a beam too many":             {Job{Plan: three, Beams: beams}, "beam 2"},
		"a search and something else": {Job{Plan: user(1), Search: &Search{}, Hidden: []int{0}}, "something else"},
		"a search and logits":         {Job{Plan: user(1), Search: &Search{}, Want: []Want{{}}}, "something else"},
		"a search and beams":          {Job{Plan: user(1), Search: &Search{}, Beams: beams}, "something else"},
	} {
		_, err := e.Do(t.Context(), &c.job)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if _, checked := e.Check(&c.job); (checked == nil) != (err == nil) {
			t.Errorf("%s: Check says %v", name, checked)
		}
	}
	without, err := New(e.model, oneThread(t), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := without.Do(t.Context(), &Job{Plan: user(1), Segments: keeping(true)}); !errors.Is(err, errNoCache) {
		t.Errorf("kept without a cache: %v", err)
	}
	if _, err := without.Do(t.Context(), &Job{Plan: user(1, 2, 3, 4), Segments: From(cached)}); !errors.Is(err,
		errNoCache) {
		t.Errorf("behind a cached part, without a cache: %v", err)
	}
	if n := without.MaxTokens(); n != 131072 {
		t.Errorf("%d tokens by default", n)
	}
	for range 2 {
		if err := without.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The cost of a job is its tokens that are computed, and the keys that each of them sees.
func TestCostOfAJob(t *testing.T) {
	e := newTiny(t, oneThread(t), "f32", Options{})
	cached := e.keep(t, user(1, 2, 3))
	items := &plan.Plan{Segments: []plan.Segment{
		{Kind: plan.User, Tokens: []int32{1, 2, 3, 4, 5}},
		{Kind: plan.Item, Tokens: []int32{1, 2}, Start: 5, Sees: []int32{0}},
		{Kind: plan.Item, Tokens: []int32{1, 2, 3}, Start: 5, Sees: []int32{0}},
		{Kind: plan.Instruction, Tokens: []int32{9}, Start: 8, Sees: []int32{0, 1, 2}},
	}}
	for name, c := range map[string]struct {
		job  Job
		want Cost
	}{
		"a user":               {Job{Plan: user(1, 2, 3, 4)}, Cost{Rows: 4, Keys: 1 + 2 + 3 + 4}},
		"a user who is cached": {Job{Plan: user(1, 2, 3, 4, 5), Segments: From(cached)}, Cost{Rows: 2, Keys: 4 + 5}},
		"items behind a user":  {Job{Plan: items}, Cost{Rows: 11, Keys: 15 + 2*5 + 3 + 3*5 + 6 + 10 + 1}},
		"beside a cached user": {Job{Plan: items, Segments: From(cached, nil, nil, nil)},
			Cost{Rows: 8, Keys: 4 + 5 + 2*5 + 3 + 3*5 + 6 + 10 + 1}},
		"nothing to be computed": {Job{Plan: user(1, 2, 3), Segments: From(cached)}, Cost{}},
	} {
		if got, err := e.Check(&c.job); err != nil || got != c.want {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, c.want)
		}
	}
	// Rounds of a search compute its beams but for the last: behind the prompt of 5 and what they have so far.
	c := Cost{Rows: 5, Keys: 15}
	(&Search{Limits: compute.Limits{Widths: []int{3, 4, 100}}}).cost(&c, 5, 1000)
	if want := (Cost{Rows: 12, Keys: 15 + 3*6 + 4*7}); c != want {
		t.Errorf("a search: %+v, want %+v", c, want)
	}
	if (&Search{Limits: compute.Limits{Widths: []int{3, 4, 100}}}).cost(&c, 5, 10); c.Rows != 10 {
		t.Errorf("a search of more rows than a batch: %d", c.Rows)
	}
	for want, widths := range map[int][]int{1: {500}, 4: {3, 4, 100}, 7: {7, 2}} {
		if got := (&Search{Limits: compute.Limits{Widths: widths}}).rows(); got != want {
			t.Errorf("widths %v: %d rows, want %d", widths, got, want)
		}
	}
}

// What a blended job costs: its parts save what the budget leaves, in the layers after the choice.
func TestCostOfABlend(t *testing.T) {
	part := func(tokens int, source plan.Source, there bool) Part {
		p := Part{Tokens: tokens, Source: source}
		if there {
			p.Entry = &kv.Entry{}
		}
		return p
	}
	b := &Blend{Parts: []Part{part(100, plan.Block, true), part(50, plan.Block, false), part(40, plan.Prototype, true)},
		Budget: blend.Budget{Items: .2, History: .5}, Layers: 1}
	// 0.8 of 150 and 0.5 of 40 tokens in three of four layers.
	if got := b.expected(300, 4); got != 300-105 {
		t.Errorf("%d rows are expected, want 195", got)
	}
	if first, late := b.shares(300, 195, 4); first != 75./195 || late != 30./195 {
		t.Errorf("first layers %v, late %v; want %v, %v", first, late, 75./195, 30./195)
	}
	if got := b.expected(1, 4); got != 1 {
		t.Errorf("%d rows are expected, want one at least", got)
	}
	for _, c := range []struct {
		b             Blend
		layers, whole int
	}{
		{Blend{}, 4, 1}, {Blend{Layers: 2}, 4, 2}, {Blend{Layers: 3}, 4, 3}, {Blend{Layers: 4}, 4, 3},
		{Blend{Layers: 9}, 2, 1},
		{Blend{Rule: &Rule{Layer: 2}}, 4, 3}, {Blend{Rule: &Rule{Watch: func(int, []float32) {}}}, 4, 4},
	} {
		if got := c.b.whole(c.layers); got != c.whole {
			t.Errorf("%+v of %d layers: %d compute all, want %d", c.b, c.layers, got, c.whole)
		}
	}
	rule := &Rule{}
	for _, c := range []struct {
		a, b *Blend
		want bool
	}{
		{nil, nil, true}, {nil, &Blend{}, true}, {&Blend{}, &Blend{Layers: 2}, true},
		{&Blend{Rule: rule}, &Blend{Rule: rule}, true},
		{&Blend{Rule: rule}, nil, false}, {nil, &Blend{Rule: rule}, false},
		{&Blend{Rule: rule}, &Blend{Rule: &Rule{Layer: 1}}, false},
	} {
		if got := c.a.with(c.b); got != c.want {
			t.Errorf("%+v with %+v: %v", c.a, c.b, got)
		}
	}
	if (&Blend{Importance: &blend.Importance{}}).byAttention() || !(&Blend{}).byAttention() ||
		!(&Blend{Importance: &blend.Importance{}, Parts: []Part{{Source: plan.Prototype}}}).byAttention() {
		t.Error("what tokens are chosen by")
	}
}

// What a blended job costs is what its prompt does, less what its parts save: in keys as in rows.
func TestCheckOfABlend(t *testing.T) {
	e := newTiny(t, oneThread(t), "f32", Options{})
	o := newOrdinary(t, e, rand.New(rand.NewPCG(4, 2)))
	plain, err := e.Check(o.job(nil))
	if err != nil {
		t.Fatal(err)
	}
	b := &Blend{Parts: o.parts(), Budget: blend.Budget{Items: .5}}
	got, err := e.Check(o.job(b))
	if err != nil {
		t.Fatal(err)
	}
	rows := b.expected(plain.Rows, e.shape.Layers)
	first, late := b.shares(plain.Rows, rows, e.shape.Layers)
	if want := (Cost{Rows: rows, Keys: plain.Keys * rows / plain.Rows, First: first, Late: late}); got != want ||
		rows >= plain.Rows {
		t.Errorf("%+v, want %+v; without parts %+v", got, want, plain)
	}
}

// Blends that cannot be are refused.
func TestBlendsThatAreRefused(t *testing.T) {
	e := newTiny(t, oneThread(t), "f32", Options{})
	o := newOrdinary(t, e, rand.New(rand.NewPCG(4, 2)))
	last := len(o.parts()) - 1
	n := len(o.plan.Segments[2].Tokens)
	job := func(change func(j *Job)) *Job {
		j := o.job(&Blend{Parts: o.parts(), Budget: blend.Budget{Items: .5}})
		change(j)
		return j
	}
	for name, c := range map[string]struct {
		change func(j *Job)
		want   string
	}{
		"as it is":                {func(*Job) {}, ""},
		"behind the last segment": {func(j *Job) { j.Blend.Parts[last].Segment = 4 }, "of segment 4"},
		"before the first":        {func(j *Job) { j.Blend.Parts[0].Segment = -1 }, "of segment -1"},
		"of a segment before":     {func(j *Job) { j.Blend.Parts[last].Segment = 1 }, "of segment 1"},
		"no tokens":               {func(j *Job) { j.Blend.Parts[last].Tokens = 0 }, "part"},
		"beyond its segment": {func(j *Job) { j.Blend.Parts[last].At = n - j.Blend.Parts[last].Tokens + 1 },
			"part"},
		"over the part before":   {func(j *Job) { j.Blend.Parts[last].At = 0 }, "part"},
		"of its own":             {func(j *Job) { j.Blend.Parts[last].Source = plan.Computed }, "part"},
		"that is not re-rotated": {func(j *Job) { j.Blend.Parts[last].Source = plan.Cached }, "part"},
		"with too little drift": {
			func(j *Job) { j.Blend.Parts[last].Drift = make([]float32, 1+j.Blend.Parts[last].Tokens) }, "part"},
		"with its drift": {
			func(j *Job) { j.Blend.Parts[last].Drift = make([]float32, j.Blend.Parts[last].Tokens) }, ""},
		"a budget above 1":             {func(j *Job) { j.Blend.Budget.Items = 1.5 }, "budget"},
		"a search":                     {func(j *Job) { j.Want, j.Search = nil, &Search{} }, "search"},
		"a watched job with parts":     {func(j *Job) { j.Blend.Rule = &Rule{Watch: func(int, []float32) {}} }, "watched"},
		"an answer of its tokens":      {func(j *Job) { j.Want[0].Segment = 2 }, "answer"},
		"a state of its tokens":        {func(j *Job) { j.Hidden = []int{2} }, "answer"},
		"KV of it that is kept":        {func(j *Job) { j.Segments = keeping(false, false, true, false) }, "segment 2"},
		"KV that sees it that is kept": {func(j *Job) { j.Segments = keeping(false, false, false, true) }, "segment 3"},
		"KV before it that is kept":    {func(j *Job) { j.Segments = keeping(true, true, false, false) }, ""},
		"more beside than there is":    {func(j *Job) { j.Blend.Beside = 5 }, "5 segments beside"},
		"less than none beside":        {func(j *Job) { j.Blend.Beside = -1 }, "-1 segments"},
		"an answer beside":             {func(j *Job) { j.Blend.Beside = 1 }, "beside the prompt"},
		"parts beside":                 {func(j *Job) { j.Blend.Beside, j.Want = 2, nil }, "beside the prompt"},
	} {
		j := job(c.change)
		r, err := e.Do(t.Context(), j)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if err == nil {
			for _, k := range r.Kept {
				if k != nil {
					k.Release()
				}
			}
		}
	}
}

// Where a segment's KV comes from is said by its entry, or by what replaces its tokens, and by nothing else.
func TestSourceOfASegment(t *testing.T) {
	entry := &kv.Entry{}
	j := &Job{
		Plan:     &plan.Plan{Segments: make([]plan.Segment, 5)},
		Segments: []Segment{{Entry: entry, Tier: plan.Disk}, {Keep: true}, {}, {}, {Entry: entry}},
		Blend: &Blend{Parts: []Part{{Segment: 2, Source: plan.Prototype, Tier: plan.Host},
			{Segment: 3, Source: plan.Block, Tier: plan.Device}}},
		Beams: &Beams{First: 4},
	}
	for i, want := range []plan.Source{plan.Cached, plan.Computed, plan.Prototype, plan.Block, plan.Computed} {
		if got := j.Source(i); got != want {
			t.Errorf("segment %d: source %d, want %d", i, got, want)
		}
		tier := plan.Missing
		if want == plan.Cached {
			tier = plan.Disk
		}
		if n, at := j.Cached(i); n != 0 || at != tier { // the entry is empty
			t.Errorf("segment %d: %d tokens are cached at %v, want none at %v", i, n, at, tier)
		}
	}
	j.Segments, j.Blend = nil, nil
	for i := range j.Plan.Segments {
		if n, at := j.Cached(i); j.Source(i) != plan.Computed || n != 0 || at != plan.Missing {
			t.Errorf("segment %d without KV: source %d, %d tokens at %v", i, j.Source(i), n, at)
		}
	}
}

// A job that is to compute its prompt alone leaves out the segments beside it.
func TestLeaveBeside(t *testing.T) {
	j := &Job{Plan: &plan.Plan{Segments: make([]plan.Segment, 5)}, Blend: &Blend{Beside: 2}, Segments: make([]Segment, 5)}
	whole := j.Plan
	if !j.LeaveBeside() || len(j.Plan.Segments) != 3 || len(j.Segments) != 3 || j.Blend.Beside != 0 ||
		len(whole.Segments) != 5 {
		t.Errorf("%d segments of the plan, %d of the job, %d beside", len(j.Plan.Segments), len(j.Segments), j.Blend.Beside)
	}
	if j.LeaveBeside() || (&Job{}).LeaveBeside() {
		t.Error("there is nothing beside")
	}
	j = &Job{Plan: &plan.Plan{Segments: make([]plan.Segment, 5)}, Blend: &Blend{Beside: 1}}
	if !j.LeaveBeside() || j.Segments != nil || len(j.Plan.Segments) != 4 {
		t.Errorf("without KV: %+v", j)
	}
}

// Logits that a job has room for are those that it gets otherwise: of heads and of single tokens, few rows and many.
func TestLogitsInTheJobsMemory(t *testing.T) {
	e := newTiny(t, oneThread(t), "f32", Options{})
	one, two := e.packed(t, 1, 2, 3), e.packed(t, 9, 8)
	r := rand.New(rand.NewPCG(1, 7))
	p := &plan.Plan{Segments: []plan.Segment{{Kind: plan.User, Tokens: randomTokens(r, 10)}}}
	for range 40 {
		p.Segments = append(p.Segments, plan.Segment{Kind: plan.Item, Tokens: randomTokens(r, 1+r.IntN(3)), Start: 10,
			Sees: []int32{0}})
	}
	for name, want := range map[string]func(i int) Want{
		"one head":  func(i int) Want { return Want{Segment: i, Head: one} },
		"two heads": func(i int) Want { return Want{Segment: i, Head: []compute.Linear{one, two}[i%2]} },
		"heads and single": func(i int) Want {
			if i%3 == 0 {
				return Want{Segment: i, IDs: []int32{int32(i), 5}}
			}
			return Want{Segment: i, Head: one}
		},
		"single": func(i int) Want { return Want{Segment: i, IDs: ids(1 + i%4)} },
	} {
		for _, n := range []int{1, 31, 32, 33, 40} {
			j := &Job{Plan: p, Hidden: []int{3, 1}}
			room := 0
			for i := range n {
				j.Want = append(j.Want, want(i+1))
				room += j.Want[i].logits()
			}
			plain, err := e.Do(t.Context(), j)
			if err != nil {
				t.Fatal(err)
			}
			j.Into = make([]float32, room)
			j.Out = &Result{}
			// Another job with the same heads shares the batch.
			other := &Job{Plan: p, Want: []Want{{Segment: 2, Head: one}, {Segment: 4, Head: two}}}
			out := make([]Outcome, 3)
			e.Run([]*Job{other, j, other}, out)
			if out[0].Err != nil || out[1].Err != nil {
				t.Fatal(out[0].Err, out[1].Err)
			}
			if flat := slices.Concat(plain.Logits...); !slices.Equal(flat, j.Into) || out[1].Logits != nil {
				t.Errorf("%s, %d rows: %v…, want %v…", name, n, j.Into[:min(4, len(j.Into))], flat[:min(4, len(flat))])
			}
			if len(out[1].Hidden) != 2 || !slices.Equal(out[1].Hidden[0], plain.Hidden[0]) ||
				!slices.Equal(out[1].Hidden[1], plain.Hidden[1]) ||
				slices.Equal(plain.Hidden[0], plain.Hidden[1]) {
				t.Errorf("%s, %d rows: other states", name, n)
			}
			if !slices.Equal(out[0].Logits[0], out[2].Logits[0]) || !slices.Equal(out[0].Logits[1], out[2].Logits[1]) {
				t.Errorf("%s, %d rows: the others' logits differ", name, n)
			}
			if got, err := j.Deliver(&out[1]); err != nil || got != j.Out {
				t.Errorf("%s: the result is not where the job wants it: %v", name, err)
			}
		}
	}
}

// A job whose KV does not fit is computed all the same, and nothing of it is kept; one that adds to cached KV fails,
// and the others do not.
func TestACacheWithoutRoom(t *testing.T) {
	e := newTiny(t, oneThread(t), "f32", Options{})
	r := rand.New(rand.NewPCG(2, 7))
	p := user(randomTokens(r, 40)...)
	want, err := e.Do(t.Context(), &Job{Plan: p, Hidden: []int{0}})
	if err != nil {
		t.Fatal(err)
	}
	cached := e.keep(t, user(p.Segments[0].Tokens[:20]...))
	free := e.pool.Stats().Total - e.pool.Stats().Used
	hog, err := e.pool.Alloc(int(free))
	if err != nil {
		t.Fatal(err)
	}
	out := make([]Outcome, 3)
	e.Run([]*Job{{Plan: p, Hidden: []int{0}, Segments: keeping(true)}, {Plan: p, Hidden: []int{0}, Segments: From(cached)},
		{Plan: p, Hidden: []int{0}}}, out)
	if out[0].Err != nil || len(out[0].Kept) != 1 || out[0].Kept[0] != nil ||
		!slices.Equal(out[0].Hidden[0], want.Hidden[0]) {
		t.Errorf("a job that wants its KV kept: %v, kept %v", out[0].Err, out[0].Kept)
	}
	if !errors.Is(out[1].Err, kv.ErrFull) || out[1].Kept != nil {
		t.Errorf("a job that adds to cached KV: %v", out[1].Err)
	}
	if out[2].Err != nil || !slices.Equal(out[2].Hidden[0], want.Hidden[0]) || out[2].Computed != 40 ||
		out[2].BatchTokens != 80 {
		t.Errorf("another job: %v, %d computed in a batch of %d", out[2].Err, out[2].Computed, out[2].BatchTokens)
	}
	e.pool.Free(hog)
	got, err := e.Do(t.Context(), &Job{Plan: p, Hidden: []int{0}, Segments: From(cached)})
	if err != nil || got.Cached != 20 || got.Computed != 20 {
		t.Errorf("with room: %v, %+v", err, got)
	}
	if used := e.pool.Stats().Used; used > e.pool.Stats().Total/4 {
		t.Errorf("%d bytes are in use", used)
	}
}

// tallied is a memory that counts its blocks, and may have no room.
type tallied struct {
	compute.Memory
	blocks int
	full   error
	copied int
}

func (c *tallied) Alloc(n int) (compute.Block, error) {
	if c.full != nil {
		return compute.Block{}, c.full
	}
	c.blocks++
	return c.Memory.Alloc(n)
}

func (c *tallied) Free(b compute.Block) { c.blocks--; c.Memory.Free(b) }

func (c *tallied) Copy(moves ...compute.Move) error {
	c.copied += len(moves)
	return c.full
}

// The memory of beams is taken for the first round, kept for later searches of about its size, and freed in the end.
func TestMemoryOfBeams(t *testing.T) {
	e := newTiny(t, oneThread(t), "f32", Options{})
	mem := &tallied{Memory: e.memory}
	s := &beamStore{memory: mem}
	for _, size := range [][2]int{{0, 1}, {1, 0}, {-1, 2}} {
		if _, err := NewBeams(e.shape, size[0], size[1]); err == nil {
			t.Errorf("%d beams of %d tokens", size[0], size[1])
		}
	}
	b, err := NewBeams(e.shape, 4, 3)
	if err != nil || b.Width() != 4 || b.Bytes() != 4*align(e.shape.ChunkBytes(3, false)) {
		t.Fatalf("%d beams in %d bytes, %v", b.Width(), b.Bytes(), err)
	}
	b.Move(1, 2) // nothing is there
	mem.full = errors.New("no room")
	if err := b.ready(s); !errors.Is(err, mem.full) || b.store != nil {
		t.Errorf("no room: %v", err)
	}
	mem.full = nil
	for range 2 {
		if err := b.ready(s); err != nil || mem.blocks != 1 || mem.copied != 0 {
			t.Errorf("%v, %d blocks, %d moves", err, mem.blocks, mem.copied)
		}
	}
	b.Move(1, 2) // nothing is computed yet
	b.Advance()
	b.Move(3, 3)
	if len(b.moves) != 0 {
		t.Errorf("%d moves of nothing", len(b.moves))
	}
	b.Move(1, 2)
	b.Move(0, 3)
	m := b.moves[1]
	if m.Width != b.scale+b.token || m.Rows != 2*e.shape.Layers*e.shape.KVHeads || m.DstStride != e.shape.HeadBytes(3) ||
		m.SrcStride != m.DstStride {
		t.Errorf("a move is %+v", m)
	}
	if err := b.ready(s); err != nil || mem.copied != 2 || len(b.moves) != 0 {
		t.Errorf("%v, %d moves", err, mem.copied)
	}
	b.Move(1, 2)
	mem.full = errors.New("lost")
	if err := b.ready(s); !errors.Is(err, mem.full) {
		t.Errorf("moves that fail: %v", err)
	}
	mem.full = nil
	b.Close()
	b.Close()
	if mem.blocks != 1 || len(s.free) != 1 || s.bytes != b.Bytes() {
		t.Errorf("%d blocks, %d kept with %d bytes", mem.blocks, len(s.free), s.bytes)
	}
	far := &Beams{width: 1, store: &beamStore{memory: &tallied{}}}
	if err := far.ready(s); err == nil {
		t.Error("the KV of beams is on another device, and that is no error")
	}
	s.close()
	if mem.blocks != 0 || s.bytes != 0 {
		t.Errorf("%d blocks are left", mem.blocks)
	}
	late, err := mem.Alloc(512)
	if err != nil {
		t.Fatal(err)
	}
	if s.give(late); mem.blocks != 0 || len(s.free) != 0 {
		t.Error("a block is kept after the end")
	}
}

// Blocks that are kept are given to searches that need at least half of them, the smallest first; those that lie
// longest make room.
func TestKeptMemoryOfBeams(t *testing.T) {
	mem := &tallied{Memory: oneThread(t).Memory()}
	s := &beamStore{memory: mem}
	take := func(n int) compute.Block {
		t.Helper()
		b, err := s.take(n)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	a, b, c := take(1000), take(3000), take(2000)
	s.give(a)
	s.give(b)
	s.give(c)
	if got := take(1500); got.Size != 2000 || s.bytes != 4000 {
		t.Errorf("a block of %d for 1,500 bytes, %d are left", got.Size, s.bytes)
	} else {
		s.give(got)
	}
	if got := take(500); got.Size != 1000 {
		t.Errorf("a block of %d for 500 bytes", got.Size)
	} else {
		s.give(got)
	}
	before := mem.blocks
	if got := take(400); got.Size != 400 || mem.blocks != before+1 {
		t.Errorf("a block of %d for 400 bytes", got.Size)
	} else {
		s.give(got)
	}
	if got := take(3001); got.Size != 3001 {
		t.Errorf("a block of %d for 3,001 bytes", got.Size)
	} else {
		s.give(got)
	}
	s.close()
	s = &beamStore{memory: &tallied{Memory: fakeMemory{}}}
	for i := range 5 {
		s.give(compute.Block{Addr: uint64(i + 1), Size: keptBeams / 4})
	}
	if s.bytes != keptBeams || len(s.free) != 4 || s.free[0].Addr != 2 {
		t.Errorf("%d blocks of %d bytes are kept, from %d on", len(s.free), s.bytes, s.free[0].Addr)
	}
	s.give(compute.Block{Size: keptBeams + 1})
	if len(s.free) != 4 {
		t.Error("a block is kept that is larger than all may be")
	}
}

// fakeMemory frees what it never had.
type fakeMemory struct{ compute.Memory }

func (fakeMemory) Free(compute.Block) {}

// Searches of one kind run together, up to sixteen in groups of about the same size, and no more rows than a batch has;
// others run by themselves.
func TestGroupsOfJobs(t *testing.T) {
	e := &Engine{opt: Options{MaxTokens: 100}}
	tree, other := depth(2), depth(3)
	search := func(tree compute.Tree, widths ...int) *Job {
		return &Job{Search: &Search{Tree: tree, Limits: compute.Limits{Widths: widths}}}
	}
	searches := func(n int) (jobs []*Job) {
		for range n {
			jobs = append(jobs, search(tree, 5, 5))
		}
		return jobs
	}
	first := func(n int) (numbers []int) {
		for i := range n {
			numbers = append(numbers, i)
		}
		return numbers
	}
	rule := &Blend{Rule: &Rule{}}
	for name, c := range map[string]struct {
		jobs []*Job
		rows []int
		want []int // which run with the first
	}{
		"plain":         {[]*Job{{}, {}, {}}, []int{50, 49, 1}, []int{0, 1, 2}},
		"too many rows": {[]*Job{{}, {}, {}}, []int{50, 51, 50}, []int{0, 2}},
		"with a search": {[]*Job{{}, search(tree, 5, 5), {}}, []int{1, 1, 1}, []int{0, 2}},
		"searches":      {[]*Job{search(tree, 5, 5), {}, search(tree, 5, 5)}, []int{1, 1, 1}, []int{0, 2}},
		"another tree":  {[]*Job{search(tree, 5, 5), search(other, 5, 5)}, []int{1, 1}, []int{0}},
		"other widths": {[]*Job{search(tree, 5, 5), search(tree, 10, 6), search(tree, 4, 99)}, []int{1, 1, 1},
			[]int{0, 1, 2}},
		"wide and narrow": {[]*Job{search(tree, 5, 5), search(tree, 11, 5), search(tree, 2, 5)}, []int{1, 1, 1},
			[]int{0}},
		"room for the widest": {[]*Job{search(tree, 30, 5), search(tree, 50, 5), search(tree, 30, 5)}, []int{1, 1, 1},
			[]int{0, 1}},
		"too many beams": {[]*Job{search(tree, 50, 5), search(tree, 50, 5), search(tree, 50, 5)}, []int{1, 1, 1},
			[]int{0, 1}},
		"blends of a rule":   {[]*Job{{Blend: rule}, {}, {Blend: rule}}, []int{1, 1, 1}, []int{0, 2}},
		"nine searches":      {searches(9), make([]int, 9), first(9)},
		"sixteen searches":   {searches(16), make([]int, 16), first(16)},
		"seventeen searches": {searches(17), make([]int, 17), first(9)},
		"many, and a ranking": {append([]*Job{search(tree, 5, 5), {}}, searches(17)...), make([]int, 19),
			[]int{0, 2, 3, 4, 5, 6, 7, 8, 9}},
	} {
		tasks := make([]task, len(c.jobs))
		for i := range tasks {
			tasks[i] = task{job: c.jobs[i], rows: c.rows[i]}
		}
		before := slices.Clone(tasks)
		n := e.group(tasks)
		var got []int
		for _, run := range tasks[:n] {
			got = append(got, slices.IndexFunc(before, func(b task) bool { return b.job == run.job }))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v run together, want %v", name, got, c.want)
		}
	}
}

// Wide searches run in smaller groups than narrow ones.
func TestWideSearchesInAGroup(t *testing.T) {
	for width, want := range map[int]int{1: 16, 128: 16, 256: 16, 257: 15, 500: 8, 512: 8, 1024: 8} {
		if got := most(width); got != want {
			t.Errorf("%d searches of %d beams run together, want %d", got, width, want)
		}
	}
}

// A device that searches finds the same for a job alone, beside others, and with a part of its prompt cached.
func TestSearchesOfADevice(t *testing.T) {
	dev := ref.Searching(oneThread(t))
	e := newTiny(t, dev, "f32", Options{MaxTokens: 200})
	levels := []compute.TreeLevel{
		{Size: 4, Starts: []uint32{0, 3}, Codes: []uint32{0, 2, 3}, Tokens: []int32{10, 11, 12, 13}},
		{Size: 3, Starts: []uint32{0, 2, 3, 5}, Codes: []uint32{0, 1, 2, 0, 2}, Tokens: []int32{20, 21, 22}},
	}
	tree, err := dev.(compute.Trees).Tree(levels, nil)
	if err != nil {
		t.Fatal(err)
	}
	heads := []compute.Linear{e.packed(t, levels[0].Tokens...), e.packed(t, levels[1].Tokens...)}
	r := rand.New(rand.NewPCG(6, 7))
	prompt := randomTokens(r, 12)
	job := func(p *plan.Plan, widths ...int) *Job {
		return &Job{Plan: p, Search: &Search{Tree: tree, Heads: heads, Limits: compute.Limits{Widths: widths},
			Segment: len(p.Segments) - 1, Position: 12}}
	}
	two := &plan.Plan{Segments: []plan.Segment{{Kind: plan.User, Tokens: prompt[:7]},
		{Kind: plan.Instruction, Tokens: prompt[7:], Start: 7, Sees: []int32{0}}}}
	alone := job(two, 3, 5)
	first, err := e.Do(t.Context(), alone)
	if err != nil || first.Computed != 12 || len(alone.Search.Leaves) != 5 {
		t.Fatalf("%v: %d leaves", err, len(alone.Search.Leaves))
	}
	leaves := slices.Clone(alone.Search.Leaves)
	cached := e.keep(t, user(prompt[:7]...))
	jobs := []*Job{job(user(prompt...), 3, 5), {Plan: two, Hidden: []int{1}}, job(two, 3, 5),
		job(user(randomTokens(r, 3)...), 3, 5),
		job(two, 2, 2)}
	jobs[2].Segments = From(cached, nil)
	out := make([]Outcome, len(jobs))
	e.Run(jobs, out)
	for i := range out {
		if out[i].Err != nil {
			t.Fatalf("job %d: %v", i, out[i].Err)
		}
	}
	for _, i := range []int{0, 2} {
		for k, l := range jobs[i].Search.Leaves {
			if l.Node != leaves[k].Node || abs(float32(l.Score-leaves[k].Score)) > 1e-5 {
				t.Errorf("job %d: leaf %d is %+v, want %+v", i, k, l, leaves[k])
			}
		}
	}
	if len(jobs[4].Search.Leaves) != 2 || len(jobs[3].Search.Leaves) != 5 || slices.Equal(jobs[3].Search.Leaves, leaves) ||
		out[2].Cached != 7 || len(out[1].Hidden) != 1 {
		t.Errorf("%d and %d leaves, %d cached", len(jobs[4].Search.Leaves), len(jobs[3].Search.Leaves), out[2].Cached)
	}
	cost, err := e.Check(alone)
	if err != nil || cost.Rows != 12+3 || cost.Keys != 12*13/2+3*13 {
		t.Errorf("the cost of a search is %+v, %v", cost, err)
	}
	bad := job(two, 3, 5)
	bad.Search.Segment = 2
	if _, err := e.Do(t.Context(), bad); err == nil {
		t.Error("a search behind a segment that is not there")
	}
	if _, err := newTiny(t, oneThread(t), "f32", Options{}).Do(t.Context(), job(two, 3, 5)); !errors.Is(err,
		compute.ErrNoSearch) {
		t.Errorf("a device that does not search: %v", err)
	}
}

// failing is a model that fails at a step.
type failing struct {
	Model
	step string
	err  error
}

func (f *failing) at(step string) error {
	if f.step == step {
		return f.err
	}
	return nil
}

func (f *failing) Forward(r compute.Runner, b *compute.Batch, keep []int32) error {
	return errors.Join(f.at("forward"), f.Model.Forward(r, b, keep))
}

func (f *failing) Logits(r compute.Runner, pairs []compute.Pair, out []float32) error {
	return errors.Join(f.at("logits"), f.Model.Logits(r, pairs, out))
}

func (f *failing) Project(r compute.Runner, head compute.Linear, rows []int32, out []float32) error {
	return errors.Join(f.at("project"), f.Model.Project(r, head, rows, out))
}

func (f *failing) Hidden(r compute.Runner, rows []int32, out []float32) error {
	return errors.Join(f.at("hidden"), f.Model.Hidden(r, rows, out))
}

func (f *failing) Incomplete() uint64 { return 0 }

// losing is a device that may be lost, prepares for sizes and works in multiples.
type losing struct {
	compute.Device
	lost error
	open error
}

func (l *losing) Lost() error { return l.lost }

func (l *losing) Open(s compute.Shape, rows int) (compute.Runner, error) {
	if l.open != nil {
		return nil, l.open
	}
	r, err := l.Device.Open(s, rows)
	return sizedRunner{r}, err
}

type sizedRunner struct{ compute.Runner }

func (sizedRunner) Sizes(most int) []int { return []int{1, most} }
func (sizedRunner) Multiple() int        { return 16 }

package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"grebe/blend"
	"grebe/compute"
	"grebe/compute/ref"
	"grebe/kv"
	"grebe/plan"
)

// ordinary is a causal prompt: preamble, user, items as one segment, instruction. Blocks has the items' entries,
// computed behind the preamble alone.
type ordinary struct {
	plan   *plan.Plan
	items  [][]int32
	blocks []*kv.Entry
	at     []int
	base   int // position of the blocks' first token
	start  int // position of the items' segment
}

func newOrdinary(t *testing.T, e *tiny, r *rand.Rand) *ordinary {
	t.Helper()
	o := makeOrdinary(t, e, r)
	t.Cleanup(func() {
		for _, b := range o.blocks {
			b.Release()
		}
	})
	return o
}

// makeOrdinary leaves the blocks to the caller, who releases them.
func makeOrdinary(t *testing.T, e *tiny, r *rand.Rand) *ordinary {
	t.Helper()
	o := &ordinary{base: 3}
	preamble, user := randomTokens(r, o.base), randomTokens(r, 20+r.IntN(60))
	alone := &plan.Plan{Segments: []plan.Segment{{Kind: plan.Preamble, Tokens: preamble}}}
	keep := keeping(false)
	var line []int32
	for range 4 + r.IntN(4) {
		it := randomTokens(r, 1+r.IntN(24))
		o.items, o.at = append(o.items, it), append(o.at, len(line))
		line = append(line, it...)
		alone.Segments = append(alone.Segments, plan.Segment{Kind: plan.Item, Tokens: it, Start: o.base, Sees: []int32{0}})
		keep = append(keep, Segment{Keep: true})
	}
	res, err := e.Do(context.Background(), &Job{Plan: alone, Segments: keep})
	if err != nil {
		t.Fatal(err)
	}
	o.blocks = res.Kept[1:]
	o.start = o.base + len(user)
	o.plan = &plan.Plan{Segments: []plan.Segment{
		{Kind: plan.Preamble, Tokens: preamble},
		{Kind: plan.User, Tokens: user, Start: o.base, Sees: []int32{0}},
		{Kind: plan.Item, Tokens: line, Start: o.start, Sees: []int32{0, 1}},
		{Kind: plan.Instruction, Tokens: randomTokens(r, 4), Start: o.start + len(line), Sees: []int32{0, 1, 2}},
	}}
	return o
}

func (o *ordinary) parts() []Part {
	var out []Part
	for i, at := range o.at {
		p := Part{Segment: 2, At: at, Tokens: len(o.items[i]), Turn: o.start + at - o.base, Source: plan.Block}
		if o.blocks != nil {
			p.Entry = o.blocks[i]
		}
		out = append(out, p)
	}
	return out
}

// tokens are those of the items.
func (o *ordinary) tokens() int { return len(o.plan.Segments[2].Tokens) }

func (o *ordinary) job(b *Blend) *Job {
	return &Job{Plan: o.plan, Want: []Want{{Segment: 3, IDs: ids(200)}}, Blend: b}
}

// distance is the root mean square difference of two answers.
func distance(a, b []float32) float64 {
	sum := 0.0
	for i := range a {
		d := float64(a[i] - b[i])
		sum += d * d
	}
	return math.Sqrt(sum / float64(len(a)))
}

// With all tokens repaired a blended prompt is the prompt; with none it is near it, and in between nearer.
func TestBlend(t *testing.T) {
	devices := cpuDevices(t)
	devices["ref"] = ref.New()
	for name, dev := range devices {
		for _, dtype := range []string{"f32", "bf16"} {
			t.Run(name+" "+dtype, func(t *testing.T) {
				e := newTiny(t, dev, dtype, Options{})
				r := rand.New(rand.NewPCG(4, 2))
				for round := range 3 {
					o := newOrdinary(t, e, r)
					full, err := e.Do(context.Background(), o.job(nil))
					if err != nil {
						t.Fatal(err)
					}
					want := full.Logits[0]
					same, err := e.Do(context.Background(), o.job(&Blend{Parts: o.parts(), Budget: blend.Budget{Items: 1}}))
					if err != nil {
						t.Fatal(err)
					}
					if d := distance(same.Logits[0], want); d > 1e-6 || same.Computed != o.plan.Tokens() {
						t.Fatalf("round %d: repaired whole, %d of %d tokens computed, the answer is off by %g", round, same.Computed,
							o.plan.Tokens(), d)
					}
					half, err := e.Do(context.Background(), o.job(&Blend{Parts: o.parts(), Budget: blend.Budget{Items: 0.5}}))
					if err != nil {
						t.Fatal(err)
					}
					none, err := e.Do(context.Background(), o.job(&Blend{Parts: o.parts()}))
					if err != nil {
						t.Fatal(err)
					}
					items := len(o.plan.Segments[2].Tokens)
					if none.Computed != o.plan.Tokens()-items || none.Blended != items || sum(none.Reused) != items ||
						sum(half.Reused) != items/2 {
						t.Errorf("round %d: with no repair %d computed, reused %v of %d; with half %v", round, none.Computed, none.Reused,
							items, half.Reused)
					}
					if a, b := distance(half.Logits[0], want), distance(none.Logits[0], want); a == 0 || b == 0 || a > 1.2*b {
						t.Errorf("round %d: off by %g with half of the tokens repaired, by %g with none", round, a, b)
					}
				}
			})
		}
	}
}

func sum(n []int) (all int) {
	for _, v := range n {
		all += v
	}
	return all
}

// A blended job and others in one batch yield what each yields alone; a part whose entry does not come is computed.
func TestBlendInABatch(t *testing.T) {
	dev := ref.New()
	e := newTiny(t, dev, "f32", Options{})
	r := rand.New(rand.NewPCG(5, 5))
	o, other := newOrdinary(t, e, r), newOrdinary(t, e, r)
	budget := blend.Budget{Items: 0.3, Window: 6}
	late := o.parts()
	for i := range late {
		late[i].Entry = nil
	}
	load := newBrought()
	for i, block := range o.blocks {
		if i != 1 {
			load.bring(i, block)
		}
	}
	load.end()
	blendLate := &Blend{Parts: late, Budget: budget, Load: load}
	jobs := []*Job{o.job(&Blend{Parts: o.parts(), Budget: budget}), other.job(nil),
		other.job(&Blend{Parts: other.parts()}), o.job(blendLate)}
	out := make([]Outcome, len(jobs))
	e.Run(jobs, out)
	for i, j := range jobs {
		if out[i].Err != nil {
			t.Fatal(out[i].Err)
		}
		if i == 3 {
			continue
		}
		alone, err := e.Do(context.Background(), j)
		if err != nil {
			t.Fatal(err)
		}
		if d := distance(out[i].Logits[0], alone.Logits[0]); d > 1e-6 || alone.Computed != out[i].Computed {
			t.Errorf("job %d: off by %g in a batch, %d tokens computed instead of %d", i, d, out[i].Computed, alone.Computed)
		}
	}
	if out[3].Reused[1] != 0 || out[3].Computed <= out[0].Computed {
		t.Errorf("without one block %d tokens computed, with all %d; reused %v", out[3].Computed, out[0].Computed,
			out[3].Reused)
	}
}

func TestBlendRefuses(t *testing.T) {
	e := newTiny(t, ref.New(), "f32", Options{})
	o := newOrdinary(t, e, rand.New(rand.NewPCG(6, 6)))
	for want, change := range map[string]func(j *Job){
		"is of segment 9":               func(j *Job) { j.Blend.Parts[0].Segment = 9 },
		"part 1 is tokens":              func(j *Job) { j.Blend.Parts[1].At = 0 },
		"whose KV is cached or is":      func(j *Job) { j.Segments = keeping(false, false, true, false) },
		"not between 0 and 1":           func(j *Job) { j.Blend.Budget.Items = 2 },
		"but parts replace its tokens":  func(j *Job) { j.Want[0].Segment = 2 },
		"are not in one chunk":          func(j *Job) { j.Blend.Parts[0].First = 1000 },
		"a search does not blend":       func(j *Job) { j.Beams = &Beams{} },
		"part 0 is tokens 0 to":         func(j *Job) { j.Blend.Parts[0].Source = plan.Computed },
		"outside the vocabulary of 200": func(j *Job) { j.Want[0].IDs = []int32{200} },
	} {
		j := o.job(&Blend{Parts: o.parts()})
		change(j)
		if _, err := e.Do(context.Background(), j); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
	if c, err := e.Check(o.job(&Blend{Parts: o.parts()})); err != nil || c.Rows >= o.plan.Tokens() {
		t.Errorf("a blended job of %d tokens counts as %d rows, %v", o.plan.Tokens(), c.Rows, err)
	}
}

// Another rule sees the layer it asks for, and chooses.
func TestBlendByAnotherRule(t *testing.T) {
	e := newTiny(t, ref.New(), "f32", Options{})
	o := newOrdinary(t, e, rand.New(rand.NewPCG(8, 6)))
	rows := 0
	rule := &Rule{Score: func(score, received []float32, from []plan.Source, segments []compute.Segment) {
		rows = len(score)
		begins := make([]bool, len(score))
		for _, at := range o.at {
			begins[segments[2].First+at] = true
		}
		blend.ByPlace(score, from, begins)
	}}
	res, err := e.Do(context.Background(), o.job(&Blend{Parts: o.parts(), Budget: blend.Budget{Items: 0.2}, Rule: rule}))
	if err != nil {
		t.Fatal(err)
	}
	if rows != o.plan.Tokens() {
		t.Errorf("the rule saw %d rows of %d", rows, o.plan.Tokens())
	}
	for i, n := range res.Reused {
		if n == len(o.items[i]) && len(o.items[i]) > 5 {
			t.Errorf("nothing of item %d, of %d tokens, was computed: %v", i, n, fmt.Sprint(res.Reused))
		}
	}
}

// What is computed beside a prompt changes nothing of it: not which tokens are repaired, nor the answer. It may be
// left.
func TestBesideAPrompt(t *testing.T) {
	e := newTiny(t, ref.New(), "f32", Options{})
	r := rand.New(rand.NewPCG(8, 2))
	for range 4 {
		o := newOrdinary(t, e, r)
		blended := func() *Job {
			return o.job(&Blend{Parts: o.parts(), Budget: blend.Budget{Items: 0.2, Window: 12}})
		}
		alone, err := e.Do(context.Background(), blended())
		if err != nil {
			t.Fatal(err)
		}
		job := blended()
		more := &plan.Plan{Segments: append([]plan.Segment(nil), o.plan.Segments...)}
		for range 3 {
			more.Segments = append(more.Segments, plan.Segment{
				Kind: plan.Item, Tokens: randomTokens(r, 20), Start: o.base, Sees: []int32{0}})
		}
		job.Plan, job.Blend.Beside, job.Segments = more, 3, make([]Segment, len(more.Segments))
		job.Segments[5].Keep = true
		both, err := e.Do(context.Background(), job)
		if err != nil {
			t.Fatal(err)
		}
		both.Kept[5].Release()
		if fmt.Sprint(both.Reused) != fmt.Sprint(alone.Reused) || distance(both.Logits[0], alone.Logits[0]) > 1e-6 {
			t.Errorf("with segments beside it %v tokens of parts are reused, alone %v; the answer is off by %g",
				both.Reused, alone.Reused, distance(both.Logits[0], alone.Logits[0]))
		}
		if !job.LeaveBeside() || job.LeaveBeside() {
			t.Error("what is beside the prompt can be left once")
		}
		if left, err := e.Do(context.Background(), job); err != nil || left.Computed != alone.Computed {
			t.Errorf("left: %v computed, %v; want %d", left, err, alone.Computed)
		}
	}
}

// Nothing that depends on what stands in for tokens can be kept.
func TestBlendKeepsExactOnly(t *testing.T) {
	e := newTiny(t, ref.New(), "f32", Options{})
	o := newOrdinary(t, e, rand.New(rand.NewPCG(9, 2)))
	job := o.job(&Blend{Parts: o.parts()})
	job.Segments = keeping(false, false, false, true)
	if _, err := e.Do(context.Background(), job); err == nil ||
		!strings.Contains(err.Error(), "sees tokens that parts replace") {
		t.Errorf("the instruction behind blended items can be kept: %v", err)
	}
}

// Where the device works in multiples of rows, a few are left out or added: the least important ones, and never one
// that has to be computed; the most important of the others. What is said to be computed is what was.
func TestBlendInMultiples(t *testing.T) {
	const multiple = 8
	plain, rounds := newTiny(t, ref.New(), "f32", Options{}), newTiny(t, ref.New(), "f32", Options{Multiple: multiple})
	r := rand.New(rand.NewPCG(8, 1))
	fewer, more := 0, 0
	for range 12 {
		var jobs, same, whole []*Job
		var want []*ordinary
		for range 2 { // in one batch
			a := newOrdinary(t, plain, r)
			b := &ordinary{plan: a.plan, items: a.items, at: a.at, base: a.base, start: a.start, blocks: blocksOf(t, rounds, a)}
			most := blend.Budget{Items: 0.9}
			jobs, same = append(jobs, b.job(&Blend{Parts: b.parts(), Budget: most})),
				append(same, a.job(&Blend{Parts: a.parts(), Budget: most}))
			whole = append(whole, b.job(&Blend{Parts: b.parts(), Budget: blend.Budget{Items: 1}}))
			want = append(want, a)
		}
		got, plainly, all := make([]Outcome, 2), make([]Outcome, 2), make([]Outcome, 2)
		rounds.Run(jobs, got)
		plain.Run(same, plainly)
		rounds.Run(whole, all)
		for i := range got {
			if err := errors.Join(got[i].Err, plainly[i].Err, all[i].Err); err != nil {
				t.Fatal(err)
			}
			n := want[i].plan.Tokens()
			if all[i].Computed != n || got[i].Computed+sum(got[i].Reused) != n {
				t.Fatalf("of %d tokens %d were computed at budget 1, and %d computed and %v reused at 0.9", n, all[i].Computed,
					got[i].Computed,
					got[i].Reused)
			}
			optional := plainly[i].Computed - (n - len(want[i].plan.Segments[2].Tokens))
			change := blend.Round(plainly[i].Computed, optional, n-plainly[i].Computed, multiple)
			if change < 0 {
				fewer++
			} else if change > 0 {
				more++
			}
			if got[i].Computed != plainly[i].Computed+change {
				t.Errorf("%d rows were computed, want %d and %+d", got[i].Computed, plainly[i].Computed, change)
			}
			alone, err := rounds.Do(t.Context(), jobs[i])
			if err != nil {
				t.Fatal(err)
			}
			if d := distance(alone.Logits[0], got[i].Logits[0]); alone.Computed != got[i].Computed || d != 0 {
				t.Errorf("alone %d rows are computed, beside another %d, and the answers differ by %g", alone.Computed,
					got[i].Computed, d)
			}
			if got[i].Computed == plainly[i].Computed && distance(got[i].Logits[0], plainly[i].Logits[0]) != 0 {
				t.Error("the same rows were computed, and the answers differ")
			}
		}
	}
	if fewer == 0 || more == 0 {
		t.Errorf("rows were left out %d times and added %d times", fewer, more)
	}
}

// blocksOf computes the items of o by another engine.
func blocksOf(t *testing.T, e *tiny, o *ordinary) []*kv.Entry {
	t.Helper()
	alone, keep := &plan.Plan{Segments: o.plan.Segments[:1:1]}, keeping(false)
	for _, it := range o.items {
		alone.Segments = append(alone.Segments, plan.Segment{Kind: plan.Item, Tokens: it, Start: o.base, Sees: []int32{0}})
		keep = append(keep, Segment{Keep: true})
	}
	res, err := e.Do(t.Context(), &Job{Plan: alone, Segments: keep})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, b := range res.Kept[1:] {
			b.Release()
		}
	})
	return res.Kept[1:]
}

// counted is memory whose allocations are counted.
type counted struct {
	compute.Memory
	allocs int
}

func (c *counted) Alloc(n int) (compute.Block, error) {
	c.allocs++
	return c.Memory.Alloc(n)
}

// Batches that need much scratch and batches that need little take turns in the same memory; what is not needed for
// long is given back.
func TestScratchInTurns(t *testing.T) {
	mem := &counted{Memory: ref.New().Memory()}
	shape := compute.Shape{Layers: 4, Hidden: 8, Heads: 1, KVHeads: 1, HeadDim: 8, KV: compute.F32}
	e := &Engine{memory: mem, shape: shape}
	p := &pass{}
	defer p.free()
	reserve := func(tokens int) {
		t.Helper()
		p.tasks = []task{{job: &Job{Plan: &plan.Plan{Segments: []plan.Segment{{Tokens: make([]int32, tokens)}}}}}}
		if err := p.reserveScratch(e); err != nil {
			t.Fatal(err)
		}
		if need := shape.ChunkBytes(tokens, true); p.scratch.Size < need {
			t.Fatalf("%d bytes of scratch, %d are needed", p.scratch.Size, need)
		}
	}
	large := 3 * keptScratch / shape.ChunkBytes(1, true)
	for range 2 * scratchUnused {
		reserve(large)
		reserve(10)
	}
	if mem.allocs != 1 {
		t.Errorf("scratch was made %d times for batches that take turns", mem.allocs)
	}
	for range scratchUnused {
		reserve(10)
	}
	if p.scratch.Size > keptScratch || mem.allocs != 2 {
		t.Errorf("%d bytes of scratch after many small batches, made %d times", p.scratch.Size, mem.allocs)
	}
}

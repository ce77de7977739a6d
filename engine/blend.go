package engine

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"grebe/blend"
	"grebe/compute"
	"grebe/kv"
	"grebe/model"
	"grebe/plan"
)

// Blend lets KV from anywhere stand in for tokens of a job's plan: blocks of items, prototypes. The first layers
// compute all tokens; then those that the budget allows, and all that have no part, go on. It is the one way
// in which a result is not what the plan means: near it, and nearer the larger the budget; with budgets of 1 it is
// equal.
type Blend struct {
	Parts  []Part // by segment and place, ascending
	Budget blend.Budget
	// Beside is the number of the plan's last segments that no part of the prompt sees: they are computed whole, and
	// do not count for the budget's window, nor for scores.
	Beside int
	// Drift is the weight of what Part.Drift says beside the attention that a token receives.
	Drift float32
	// Load is nil, or brings the Entries of parts that have none yet while the first layers compute. A batch waits for it
	// when rows are chosen, as Patience and First say (Wait). Whoever has a queue sets them before the job takes its
	// place.
	Load            Load
	Patience, First time.Duration
	// Layers is how many layers compute all tokens before the choice, which goes by the attention in the last of them; at
	// least 1, RcLLM's, and at least one layer is left. A batch takes the most of its jobs'.
	Layers int
	// Importance is nil, or says which tokens of blocks are computed again instead of the attention that they receive;
	// prototypes go by attention and drift all the same.
	Importance *blend.Importance
	// Rule is nil for attention, or importance; others are there to be compared with.
	Rule *Rule
}

// Rule scores tokens for blend.Chooser in another way than by attention received.
type Rule struct {
	Layer    int  // the last layer that computes all tokens
	Received bool // the rule wants to know the attention received in that layer
	// Score sets the scores of the job's rows. Segments are those of the job's plan in the batch.
	Score func(score, received []float32, from []plan.Source, segments []compute.Segment)
	// Watch, instead of all that, has the job compute everything, and is told of the attention that its rows received in
	// each layer. Nobody else is in the batch, and nothing stands in for anything, so that what is kept is exact.
	Watch func(layer int, received []float32)
}

// Part is a run of a segment's tokens whose KV is in an entry, at other positions.
type Part struct {
	Segment, At, Tokens int
	Entry               *kv.Entry   // the caller keeps its reference until Do returns
	First               int         // its first token in the entry; all of them are in one chunk
	Turn                int         // new position − position in the entry
	Source              plan.Source // Block or Prototype
	Tier                plan.Tier   // where its KV was found, for whoever counts that
	Drift               []float32   // nil, or one per token: how far it is from what stands in for it, 0 to 1
}

// checkBlend validates a job's parts.
func (e *Engine) checkBlend(j *Job) error {
	b := j.Blend
	if b == nil {
		return nil
	}
	if _, ok := e.model.(model.Blender); !ok {
		return errors.New("engine: the model does not blend")
	}
	if j.Search != nil || j.Beams != nil {
		return errors.New("engine: a search does not blend")
	}
	if b.Rule != nil && b.Rule.Watch != nil && len(b.Parts) > 0 {
		return errors.New("engine: a job with parts cannot be watched")
	}
	if err := b.Budget.Check(); err != nil {
		return fmt.Errorf("engine: budget: %w", err)
	}
	if err := j.checkBeside(); err != nil {
		return err
	}
	segment, end := -1, 0
	for i := range b.Parts {
		p := &b.Parts[i]
		if p.Segment < 0 || p.Segment >= len(j.Plan.Segments) || p.Segment < segment {
			return fmt.Errorf("engine: part %d is of segment %d, after %d of %d", i, p.Segment, segment, len(j.Plan.Segments))
		}
		if p.Segment > segment {
			segment, end = p.Segment, 0
			if j.cached(segment) != nil || j.keeps(segment) {
				return fmt.Errorf("engine: parts replace tokens of segment %d, whose KV is cached or is to be kept", segment)
			}
		}
		n := len(j.Plan.Segments[segment].Tokens)
		if p.Tokens < 1 || p.At < end || p.At > n-p.Tokens || !p.Source.Rotated() ||
			p.Drift != nil && len(p.Drift) != p.Tokens {
			return fmt.Errorf("engine: part %d is tokens %d to %d of segment %d with %d", i, p.At, p.At+p.Tokens, segment, n)
		}
		end = p.At + p.Tokens
	}
	if err := j.checkExact(); err != nil {
		return err
	}
	for _, s := range j.answering() {
		if j.Source(s).Rotated() {
			return fmt.Errorf("engine: segment %d has an answer, but parts replace its tokens", s)
		}
	}
	return nil
}

// LeaveBeside has a job compute its prompt alone, and reports whether it was to compute more.
func (j *Job) LeaveBeside() bool {
	if j.Blend == nil || j.Blend.Beside == 0 {
		return false
	}
	n := len(j.Plan.Segments) - j.Blend.Beside
	j.Plan, j.Blend.Beside = &plan.Plan{Segments: j.Plan.Segments[:n]}, 0
	if j.Segments != nil {
		j.Segments = j.Segments[:n]
	}
	return true
}

// checkBeside makes sure that nothing of the prompt sees what is computed beside it, and that nothing stands in for
// that.
func (j *Job) checkBeside() error {
	n := len(j.Plan.Segments)
	if j.Blend.Beside < 0 || j.Blend.Beside > n {
		return fmt.Errorf("engine: %d segments beside a prompt, of %d", j.Blend.Beside, n)
	}
	for i := n - j.Blend.Beside; i < n; i++ {
		if j.Source(i).Rotated() || slices.Contains(j.answering(), i) {
			return fmt.Errorf("engine: segment %d is beside the prompt, but has an answer or parts", i)
		}
	}
	return nil
}

// checkExact refuses to keep KV that depends on what parts stand in for: what is kept is exact.
func (j *Job) checkExact() error {
	near := make([]bool, len(j.Plan.Segments))
	for i := range near {
		near[i] = j.Source(i).Rotated()
		for _, s := range j.Plan.Segments[i].Sees {
			near[i] = near[i] || near[s]
		}
		if near[i] && j.keeps(i) {
			return fmt.Errorf("engine: the KV of segment %d is to be kept, but it sees tokens that parts replace", i)
		}
	}
	return nil
}

// answering returns the segments whose last token answers.
func (j *Job) answering() []int {
	out := append([]int(nil), j.Hidden...)
	for i := range j.Want {
		out = append(out, j.Want[i].Segment)
	}
	return out
}

// expected returns about how many of n rows a blended job computes, layers counted.
func (b *Blend) expected(n, layers int) int {
	return max(1, n-int(b.saved(layers, func(*Part) bool { return true })))
}

// saved returns about how many rows parts save, layers counted: those of which which says so.
func (b *Blend) saved(layers int, which func(*Part) bool) float64 {
	saved := 0.0
	for i := range b.Parts {
		p := &b.Parts[i]
		if !which(p) {
			continue
		}
		saved += (1 - b.Budget.Share(p.Source)) * float64(p.Tokens)
	}
	return saved * float64(layers-b.whole(layers)) / float64(layers)
}

// shares returns Cost.First and Cost.Late of a job with n rows, of which so many are expected to be computed, layers
// counted.
func (b *Blend) shares(n, expected, layers int) (first, late float64) {
	first = float64(n*b.whole(layers)) / float64(layers)
	late = b.saved(layers, func(p *Part) bool { return p.Entry == nil })
	return first / float64(expected), late / float64(expected)
}

// whole returns how many of a model's layers compute all tokens.
func (b *Blend) whole(layers int) int {
	if b.Rule != nil && b.Rule.Watch != nil {
		return layers
	}
	if b.Rule != nil {
		return 1 + b.Rule.Layer
	}
	return max(1, min(b.Layers, layers-1))
}

// with reports whether a job that blends so, or nil, may share a batch: all rows are chosen after the same layer.
func (b *Blend) with(other *Blend) bool {
	var one, two *Rule
	if b != nil {
		one = b.Rule
	}
	if other != nil {
		two = other.Rule
	}
	return one == two
}

// blending is a pass's memory of what stands in for rows.
type blending struct {
	parts   []compute.Part
	from    []plan.Source // of all rows of the batch
	score   []float32
	drift   []float32
	chunks  []compute.Chunk
	entry   *kv.Entry // whose chunks these are
	chosen  []int32
	chooser blend.Chooser
}

// blends returns the first task whose job blends.
func (p *pass) blends() *task {
	for i := range p.tasks {
		if t := &p.tasks[i]; t.out.Err == nil && t.job.Blend != nil {
			return t
		}
	}
	return nil
}

// repair says how a model of so many layers goes through the batch.
func (p *pass) repair(first *task, layers int) *model.Repair {
	r := &model.Repair{Load: p.load, Choose: p.choose}
	if rule := first.job.Blend.Rule; rule != nil {
		r.Layer, r.Received, r.Watch = rule.Layer, rule.Received, rule.Watch
		return r
	}
	for i := range p.tasks {
		if b := p.tasks[i].job.Blend; b != nil {
			r.Layer, r.Received = max(r.Layer, b.whole(layers)-1), r.Received || b.byAttention()
		}
	}
	return r
}

// byAttention reports whether tokens are chosen by the attention that they receive.
func (b *Blend) byAttention() bool {
	return b.Importance == nil || slices.ContainsFunc(b.Parts, func(p Part) bool { return p.Source == plan.Prototype })
}

// take has KV that is read for the tasks replace that of their rows. They wait together, beside first layers that are
// still computed.
func (p *pass) take() {
	var waited, free time.Duration
	for i := range p.tasks {
		t := &p.tasks[i]
		b := t.job.Blend
		if t.out.Err != nil || b == nil || b.Load == nil {
			continue
		}
		w := Wait{Patience: b.Patience, Waited: waited}
		if p.starts {
			w.First = b.First
		}
		free = max(free, w.First)
		waited += b.Load.Take(b.Parts, w)
	}
	p.waited += max(0, waited-free)
}

// load collects what stands in for the tasks' rows.
func (p *pass) load() ([]compute.Part, error) {
	m := &p.blend
	m.parts, m.entry = m.parts[:0], nil
	p.take()
	for i := range p.tasks {
		t := &p.tasks[i]
		b := t.job.Blend
		if t.out.Err != nil || b == nil {
			continue
		}
		for k := range b.Parts {
			part := &b.Parts[k]
			if part.Entry == nil {
				t.out.Late += part.Tokens
				continue
			}
			chunk, at, err := m.locate(part)
			if err != nil {
				return nil, err
			}
			m.parts = append(m.parts, compute.Part{
				Segment: t.base + part.Segment, At: part.At, Tokens: part.Tokens, From: chunk, First: at, Turn: part.Turn,
			})
		}
	}
	m.look(p)
	return m.parts, nil
}

// locate finds the chunk of a part's tokens, and the first of them there.
func (m *blending) locate(p *Part) (compute.Chunk, int, error) {
	if p.Entry != m.entry { // parts of one entry come together
		m.chunks, m.entry = p.Entry.AppendChunks(m.chunks[:0]), p.Entry
	}
	first := p.First
	for _, c := range m.chunks {
		if first < c.Tokens {
			if p.Tokens > c.Tokens-first {
				break
			}
			return c, first, nil
		}
		first -= c.Tokens
	}
	return compute.Chunk{}, 0, fmt.Errorf("tokens %d to %d are not in one chunk of an entry of %d", p.First,
		p.First+p.Tokens, p.Entry.Len())
}

// choose returns the rows that go on, and notes what the others were taken from.
func (p *pass) choose(received []float32) []int32 {
	m := &p.blend
	m.chosen = m.chosen[:0]
	for i := range p.tasks {
		t := &p.tasks[i]
		if t.out.Err != nil {
			continue
		}
		first, end, all := p.span(t)
		if t.job.Blend == nil {
			m.whole(first, all)
			continue
		}
		var got []float32
		if received != nil {
			got = received[first:end]
		}
		before := len(m.chosen)
		m.chosen = m.chooseOf(p, t, got)
		t.account(m.chosen[before:], first)
		m.whole(end, all)
	}
	return m.chosen
}

// look notes what rows may come from.
func (m *blending) look(p *pass) {
	m.from = resized(m.from, len(p.batch.Tokens))
	clear(m.from)
	for i := range p.tasks {
		t := &p.tasks[i]
		if t.out.Err != nil || t.job.Blend == nil {
			continue
		}
		segments := p.segments(t)
		for k := range t.job.Blend.Parts {
			part := &t.job.Blend.Parts[k]
			if part.Entry == nil {
				continue
			}
			at := segments[part.Segment].First + part.At
			for row := at; row < at+part.Tokens; row++ {
				m.from[row] = part.Source
			}
		}
	}
}

// segments returns those of a task in the batch.
func (p *pass) segments(t *task) []compute.Segment {
	return p.batch.Segments[t.base : t.base+len(t.job.Plan.Segments)]
}

// span returns the rows of a task's segments: the first one, the end of the prompt's, and that of all.
func (p *pass) span(t *task) (first, end, all int) {
	segments := p.segments(t)
	if len(segments) == 0 {
		return 0, 0, 0
	}
	last := &segments[len(segments)-1]
	first, all = segments[0].First, last.First+last.Rows()
	end = all
	if b := t.job.Blend; b != nil && b.Beside > 0 {
		end = segments[len(segments)-b.Beside].First
	}
	return first, end, all
}

// whole has all of some rows go on.
func (m *blending) whole(first, end int) {
	for row := first; row < end; row++ {
		m.chosen = append(m.chosen, int32(row))
	}
}

// chooseOf appends the rows of one task. It is rounded by itself, whoever shares the batch.
func (m *blending) chooseOf(p *pass, t *task, received []float32) []int32 {
	b := t.job.Blend
	first, end, _ := p.span(t)
	segments, n := p.segments(t), end-first
	segments = segments[:len(segments)-b.Beside]
	m.score, m.drift = resized(m.score, n), resized(m.drift, n)
	clear(m.drift)
	for i := range b.Parts {
		if part := &b.Parts[i]; part.Entry != nil {
			copy(m.drift[segments[part.Segment].First-first+part.At:], part.Drift)
		}
	}
	from := m.from[first:end]
	switch {
	case b.Rule != nil:
		b.Rule.Score(m.score, received, from, segments)
	case received == nil:
		clear(m.score)
	default:
		blend.ByAttention(m.score, received, m.drift, b.Drift)
	}
	if b.Rule == nil && b.Importance != nil {
		b.Importance.Score(m.score, p.batch.Tokens[first:end], from)
	}
	all, optional, spare := blend.Count(from, b.Budget)
	more := blend.Round(all, optional, spare, p.multiple)
	return m.chooser.ChooseRounded(m.chosen, int32(first), from, m.score, b.Budget, more)
}

// account notes how many tokens of each part were reused. rows, ascending, are those that are computed.
func (t *task) account(rows []int32, first int) {
	r, b := &t.out.Result, t.job.Blend
	r.Reused = make([]int, len(b.Parts))
	at, segment := first, 0 // the segment's first row
	for i := range b.Parts {
		p := &b.Parts[i]
		for ; segment < p.Segment; segment++ {
			at += len(t.job.Plan.Segments[segment].Tokens) - t.job.done(segment)
		}
		if p.Entry == nil {
			continue
		}
		r.Reused[i] = p.Tokens
		from, to := int32(at+p.At), int32(at+p.At+p.Tokens)
		for len(rows) > 0 && rows[0] < from {
			rows = rows[1:]
		}
		for ; len(rows) > 0 && rows[0] < to; rows = rows[1:] {
			r.Reused[i]--
		}
		r.Computed -= r.Reused[i]
		r.Blended += p.Tokens
	}
}

func resized[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/4)
	}
	return s[:n]
}

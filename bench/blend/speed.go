package blend

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"grebe/bench/report"
	"grebe/bench/weights"
	"grebe/blend"
	"grebe/compute"
	"grebe/engine"
	"grebe/kv"
	"grebe/model"
	"grebe/plan"
	"grebe/prompt"
)

// SpeedOptions say what MeasureSpeed measures. Zero values stand for defaults.
type SpeedOptions struct {
	Device   compute.Device // taken over
	Shape    string         // of Shapes; qwen3-0.6b
	Prompts  []Prompt
	Budgets  []float64 // for items and history alike; 0.3
	Repeats  int       // 9
	Requests int       // of the queue; 2,000
	Multiple int       // as in QualityOptions
	Layers   int       // that compute all tokens; blend.WholeLayers
	Seed     uint64
}

// Prompt is how a prompt is made up: tokens of the preamble, which every cache has, of the history, of the items and
// of the question.
type Prompt struct{ Preamble, History, Items, Each, Question int }

// prompts are as long as the paper's and made up alike: 2.2 to 3.0 thousand tokens, 66 to 82 % of items, 11 to 26 % of
// history, 207 of a preamble.
var prompts = []Prompt{
	{Preamble: 207, History: 520, Items: 17, Each: 87, Question: 20},
	{Preamble: 207, History: 400, Items: 24, Each: 76, Question: 20},
	{Preamble: 207, History: 330, Items: 20, Each: 124, Question: 20},
}

func (p *Prompt) tokens() int { return p.Preamble + p.History + p.Items*p.Each + p.Question }

// Shapes are those that random weights can have.
var Shapes = map[string]compute.Shape{
	"tiny":       {Layers: 4, Hidden: 256, Heads: 4, KVHeads: 2, HeadDim: 64, Inter: 768},
	"qwen3-0.6b": {Layers: 28, Hidden: 1024, Heads: 16, KVHeads: 8, HeadDim: 128, Inter: 3072},
	"qwen3-8b":   {Layers: 36, Hidden: 4096, Heads: 32, KVHeads: 8, HeadDim: 128, Inter: 12288},
}

// Speed is how much sooner blended prompts answer.
type Speed struct {
	Date   string      `json:"date"`
	Device string      `json:"device"`
	Shape  string      `json:"shape"`
	Lines  []SpeedLine `json:"lines"`
}

// SpeedLine is one prompt at one budget, medians in milliseconds of runs in turns. The baseline has the preamble
// cached, as a prefix cache would, and computes the rest.
type SpeedLine struct {
	Prompt   Prompt  `json:"prompt"`
	Tokens   int     `json:"tokens"`
	Budget   float64 `json:"budget"`
	Full     float64 `json:"full_ms"` // the same engine with the preamble cached
	Blend    float64 `json:"blend_ms"`
	Computed [2]int  `json:"computed"` // tokens, full and blended
	Ratio    float64 `json:"ratio"`    // of the times, median of the repeats' own
	Allowed  float64 `json:"allowed"`  // of the tokens computed
	Reached  float64 `json:"reached"`  // ratio over allowed
	// The same with the layers that compute all tokens counted as such.
	LayersAllow   float64 `json:"layers_allow"`
	LayersReached float64 `json:"layers_reached"`
	// At 80 % of the baseline's capacity, Poisson arrivals, one after the other: P99 of the wait and the time.
	P99   [2]float64 `json:"p99_ms"` // full, blended
	P99By float64    `json:"p99_ratio"`
}

// MeasureSpeed times prompts of random weights, which are the same ones in all layers: a layer's are larger than
// caches, so times are those of as many different ones.
func MeasureSpeed(ctx context.Context, o SpeedOptions) (*Speed, error) {
	if o.Shape == "" {
		o.Shape = "qwen3-0.6b"
	}
	if len(o.Prompts) == 0 {
		o.Prompts = prompts
	}
	if len(o.Budgets) == 0 {
		o.Budgets = []float64{0.3}
	}
	if o.Repeats <= 0 {
		o.Repeats = 9
	}
	if o.Requests <= 0 {
		o.Requests = 2000
	}
	s, err := newRandom(o.Device, o.Shape, o.Seed, o.Prompts, 1, engine.Options{MaxTokens: 8192, Multiple: o.Multiple})
	if err != nil {
		return nil, err
	}
	defer s.close()
	out := &Speed{Date: time.Now().UTC().Format(time.DateOnly), Device: o.Device.Name(), Shape: o.Shape}
	for _, p := range o.Prompts {
		for _, budget := range o.Budgets {
			line, err := s.time(ctx, &o, p, budget)
			if err != nil {
				return out, err
			}
			out.Lines = append(out.Lines, line)
		}
	}
	return out, nil
}

const randomVocab = 4096

// newRandom makes a system of random weights with room for some prompts of each kind.
func newRandom(d compute.Device, name string, seed uint64, kinds []Prompt, each int,
	opt engine.Options) (*system, error) {
	shape, ok := Shapes[name]
	if !ok {
		return nil, fmt.Errorf("bench blend: no shape %q", name)
	}
	m, err := randomModel(d, shape, seed)
	if err != nil {
		return nil, err
	}
	b, err := prompt.New(prompt.Config{
		Preamble:    prompt.Text{Tokens: ints(seed, prompts[0].Preamble)},
		Instruction: prompt.Text{Tokens: ints(seed+1, prompts[0].Question)},
	}, nil, randomVocab)
	if err != nil {
		return nil, err
	}
	return newSystem(d, m, b, roomFor(kinds, each, m.Shape()), opt)
}

// roomFor has room for the blocks and histories of some prompts of each kind, and as much again.
func roomFor(kinds []Prompt, each int, shape compute.Shape) int64 {
	n := 0
	for i := range kinds {
		n += 2 * each * kinds[i].tokens()
	}
	return int64(n)*int64(shape.ChunkBytes(1, false)) + 64<<20
}

// time measures a prompt with and without blending, in turns.
func (s *system) time(ctx context.Context, o *SpeedOptions, p Prompt, budget float64) (line SpeedLine, err error) {
	q, err := s.question(ctx, o.Seed, p)
	if err != nil {
		return line, err
	}
	defer q.release()
	jobs := [2]*engine.Job{q.job(nil, 0), q.job(&blend.Budget{Items: budget, History: budget}, o.Layers)}
	line = SpeedLine{Prompt: p, Tokens: q.laid.layout.Plan.Tokens(), Budget: budget}
	var times [2][]float64
	warm := 3 // a GPU prepares what it sees again; passes that take long are those of a CPU
	for round := 0; round < o.Repeats+warm; round++ {
		for i, j := range jobs {
			r, err := s.engine.Do(ctx, j)
			if err != nil {
				return line, err
			}
			if line.Computed[i] = r.Computed; round == 1 && r.Compute > time.Second {
				warm = 1
			}
			if round >= warm {
				times[i] = append(times[i], r.Compute.Seconds()*1000)
			}
		}
	}
	line.Full, line.Blend = report.Median(times[0]), report.Median(times[1])
	var by []float64
	for i := range times[0] {
		by = append(by, times[0][i]/times[1][i])
	}
	line.Ratio, line.Allowed = report.Median(by), float64(line.Computed[0])/float64(line.Computed[1])
	line.Reached = line.Ratio / line.Allowed
	line.LayersAllow = inLayers(line.Computed, s.model.Shape().Layers, cmp.Or(o.Layers, blend.WholeLayers))
	line.LayersReached = line.Ratio / line.LayersAllow
	for i := range times {
		line.P99[i] = queue(times[i], report.Median(times[0])/0.8, o.Requests, o.Seed)
	}
	line.P99By = line.P99[0] / line.P99[1]
	return line, nil
}

// inLayers returns how many times fewer tokens are computed, summed over layers, of which the first, whole many,
// compute all.
func inLayers(computed [2]int, layers, whole int) float64 {
	whole = min(whole, layers-1)
	return float64(layers*computed[0]) / float64(whole*computed[0]+(layers-whole)*computed[1])
}

// question is a prompt of random tokens with all that stands in for them.
type question struct {
	laid          *laid
	parts         []engine.Part
	segments      []engine.Segment // the preamble is cached
	head, history *kv.Entry
}

// question lays out a prompt. What it asks for MUST be released.
func (s *system) question(ctx context.Context, seed uint64, p Prompt) (*question, error) {
	user := ints(seed+2, p.History)
	items, ids := make([][]int32, p.Items), make([]string, p.Items)
	for i := range items {
		items[i] = ints(seed+3+uint64(i), p.Each)
		ids[i] = fmt.Sprint(seed, "/", p.Each, "/", i)
	}
	if err := s.compute(ctx, ids, items); err != nil {
		return nil, err
	}
	l, err := s.prompt.Rank(plan.Causal, user, items)
	if err != nil {
		return nil, err
	}
	q := &question{laid: &laid{layout: l, items: ids, identifiers: []int32{1, 2, 3},
		lengths: slices.Repeat([]int{p.Each}, p.Items)}}
	if q.head, q.history, err = s.history(ctx, user); err != nil {
		return nil, err
	}
	q.parts = append(s.historyParts(&l, q.history, len(user)), s.parts(q.laid)...)
	q.segments = make([]engine.Segment, len(l.Plan.Segments))
	q.segments[0].Entry = q.head
	return q, nil
}

func (q *question) release() {
	q.head.Release()
	q.history.Release()
}

// job computes the prompt behind its preamble; with a budget, blended behind layers that compute all tokens.
func (q *question) job(budget *blend.Budget, layers int) *engine.Job {
	var b *engine.Blend
	if budget != nil {
		b = &engine.Blend{Parts: q.parts, Budget: *budget, Layers: cmp.Or(layers, blend.WholeLayers)}
	}
	j := q.laid.job(b)
	j.Segments = q.segments
	return j
}

// history computes what stands for prototypes: KV of as many tokens, of other tokens' histories.
func (s *system) history(ctx context.Context, user []int32) (head, history *kv.Entry, err error) {
	other := slices.Clone(user)
	for i := range other {
		other[i] = (other[i] + 7) % randomVocab
	}
	pre := s.prompt.Preamble()
	r, err := s.engine.Do(ctx, &engine.Job{Plan: &plan.Plan{Segments: []plan.Segment{
		{Kind: plan.Preamble, Tokens: pre}, {Kind: plan.User, Tokens: other, Start: len(pre), Sees: []int32{0}},
	}}, Segments: []engine.Segment{{Keep: true}, {Keep: true}}})
	if err != nil {
		return nil, nil, err
	}
	if r.Kept[0] == nil || r.Kept[1] == nil {
		return nil, nil, kv.ErrFull
	}
	return r.Kept[0], r.Kept[1], nil
}

// historyParts lets single tokens of an entry, in random order, stand in for those of the user.
func (s *system) historyParts(l *prompt.Layout, e *kv.Entry, n int) []engine.Part {
	r := rand.New(rand.NewPCG(1, 9))
	order := r.Perm(n)
	var out []engine.Part
	for at, from := range order {
		out = append(out, engine.Part{Segment: l.User, At: at, Tokens: 1, Entry: e, First: from, Turn: at - from,
			Source: plan.Prototype})
	}
	return out
}

// queue returns the P99 of requests that arrive at random, one every so many milliseconds on average, and are served
// one after the other in times drawn from those measured.
func queue(times []float64, every float64, requests int, seed uint64) float64 {
	r := rand.New(rand.NewPCG(seed, 77))
	free, now := 0.0, 0.0
	var took []float64
	for range requests {
		now += r.ExpFloat64() * every
		free = max(free, now) + times[r.IntN(len(times))]
		took = append(took, free-now)
	}
	slices.Sort(took)
	return report.Percentile(took, 99)
}

func ints(seed uint64, n int) []int32 {
	r := rand.New(rand.NewPCG(seed, 5))
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(r.IntN(randomVocab))
	}
	return out
}

// randomModel packs one layer of random weights, which all layers share.
func randomModel(d compute.Device, s compute.Shape, seed uint64) (model.Blender, error) {
	return weights.Decoder(d, s, weights.Options{Vocab: randomVocab, Positions: 32768, Norms: true, Shared: true,
		Seed: seed})
}

// JSON writes the report.
func (s *Speed) JSON(w io.Writer) error {
	return report.JSON(w, s)
}

// Text writes a table.
func (s *Speed) Text(w io.Writer) error {
	fmt.Fprintf(w, "%s, %s\n%s's shape, random weights, bf16; the preamble is cached in both\n\n", s.Date, s.Device,
		s.Shape)
	fmt.Fprintf(w, "%7s %8s %8s %7s  %9s %9s  %6s %8s %8s %7s %8s  %10s %10s %6s\n",
		"tokens", "history", "items", "budget", "full ms", "blend ms", "ratio", "allowed", "reached", "layers", "reached",
		"P99 full",
		"P99 blend", "ratio")
	for _, l := range s.Lines {
		_, err := fmt.Fprintf(w, "%7d %8d %8d %7.2f  %9.2f %9.2f  %6.2f %8.2f %7.0f%% %7.2f %7.0f%%  %10.1f %10.1f %6.2f\n",
			l.Tokens,
			l.Prompt.History, l.Prompt.Items*l.Prompt.Each,
			l.Budget, l.Full, l.Blend, l.Ratio, l.Allowed, 100*l.Reached, l.LayersAllow, 100*l.LayersReached, l.P99[0], l.P99[1],
			l.P99By)
		if err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w, "\nallowed: fewer rows that go on; layers: fewer rows, summed over all layers")
	return err
}

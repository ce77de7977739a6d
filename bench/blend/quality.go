package blend

import (
	"context"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"grebe/bench/report"
	"grebe/blend"
	"grebe/compute"
	"grebe/engine"
	"grebe/eval"
	"grebe/model"
	"grebe/plan"
	"grebe/prompt"
)

// QualityOptions say what Quality measures. Zero values stand for defaults.
type QualityOptions struct {
	Device   compute.Device // taken over
	Model    model.Model    // taken over
	More     []Copy         // taken over: the same model on further devices, which share the questions
	Prompt   *prompt.Builder
	Data     *eval.Data
	Budgets  []float64 // 0 to 1
	Rules    []string
	NoOrders bool // leave out prompts with the user and with the items first
	Window   int
	Multiple int // of rows that budgets are rounded to, see engine.Options; 0: the device's
	Seed     uint64
	History  History // nil: histories are computed
	// Importance is what the rule learned goes by.
	Importance *blend.Importance
	Progress   func(done, total int)
}

// Copy is a model on a device.
type Copy struct {
	Device compute.Device
	Model  model.Model
}

// History finds prototypes for a user's tokens, which begin at a position. Several may ask at a time.
type History func(tokens []int32, start int) (parts []engine.Part, release func())

// Quality is what blending does to rankings.
type Quality struct {
	Date      string  `json:"date"`
	Device    string  `json:"device"`
	Data      string  `json:"data"`
	Users     int     `json:"users"`
	Tokens    float64 `json:"tokens"`  // of a prompt, mean
	Items     float64 `json:"items"`   // of its candidates
	History   float64 `json:"history"` // of its user
	Prototype float64 `json:"prototype"`
	Lines     []Line  `json:"lines"`
	Pairs     []Pair  `json:"pairs"` // of the first rule with each other, by budget
}

// Line is one way, over all users.
type Line struct {
	Rule    string        `json:"rule"` // full, user-first, item-first, none, or one of Rules
	Budget  float64       `json:"budget"`
	NDCG    eval.Estimate `json:"ndcg10"`
	Share   eval.Estimate `json:"of_full"` // its NDCG@10 over that of full computation, of the same users
	Hit     [3]float64    `json:"hit"`     // @1, 5, 10
	Error   float64       `json:"error"`   // of logits: root mean square over their standard deviation
	Top     float64       `json:"top"`     // share of full computation's ten best that are among the ten best
	Compute float64       `json:"computed"`
}

// Pair compares two rules at one budget, user by user. Intervals are of the differences: they are narrower than those
// of either.
type Pair struct {
	Rule   string        `json:"rule"`
	Than   string        `json:"than"`
	Budget float64       `json:"budget"`
	NDCG   eval.Estimate `json:"of_full"` // how much more of full computation's NDCG@10 Rule has
	Error  eval.Estimate `json:"error"`   // how much larger its error is
}

// way is how a prompt is computed, and what came out for each user.
type way struct {
	rule   string
	budget float64
	ndcg   []float64
	users  []outcome
}

type outcome struct {
	hit      [3]float64
	err, top float64
	tokens   int
}

// MeasureQuality asks every question in all ways. Of the true probabilities, where they are known, metrics are in
// expectation; else of what the user took.
func MeasureQuality(ctx context.Context, o QualityOptions) (q *Quality, err error) {
	if len(o.Budgets) == 0 {
		o.Budgets = []float64{0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1}
	}
	if len(o.Rules) == 0 {
		o.Rules = Rules
	}
	n := len(o.Data.Questions)
	ways := []*way{{rule: "full", budget: 1}}
	if !o.NoOrders {
		ways = append(ways, &way{rule: "user-first", budget: 1}, &way{rule: "item-first", budget: 1})
	}
	ways = append(ways, &way{rule: "none"})
	for _, r := range o.Rules {
		for _, b := range o.Budgets {
			ways = append(ways, &way{rule: r, budget: b})
		}
	}
	for _, w := range ways {
		w.ndcg, w.users = make([]float64, n), make([]outcome, n)
	}
	q = &Quality{Date: time.Now().UTC().Format(time.DateOnly), Device: o.Device.Name(), Data: o.Data.Name, Users: n}
	if more := len(o.More); more > 0 {
		q.Device += fmt.Sprintf(", %d at a time", more+1)
	}
	if err := o.askAll(ctx, ways, q); err != nil {
		return nil, err
	}
	for _, w := range ways {
		q.Lines = append(q.Lines, w.line(ways[0], o.Seed))
	}
	q.Pairs = pairs(ways, o.Rules, o.Seed)
	each := float64(n)
	q.Tokens, q.Items, q.History, q.Prototype = q.Tokens/each, q.Items/each, q.History/each, q.Prototype/each
	return q, nil
}

// askAll has the copies of the model share the questions.
func (o *QualityOptions) askAll(ctx context.Context, ways []*way, q *Quality) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var mu sync.Mutex // of q, next and done
	next, done := 0, 0
	take := func() int {
		mu.Lock()
		defer mu.Unlock()
		next++
		return next - 1
	}
	finish := func(c counts) {
		mu.Lock()
		defer mu.Unlock()
		q.Tokens, q.Items, q.History, q.Prototype = q.Tokens+c.tokens, q.Items+c.items, q.History+c.history,
			q.Prototype+c.prototype
		if done++; o.Progress != nil {
			o.Progress(done, len(o.Data.Questions))
		}
	}
	var wg sync.WaitGroup
	for _, c := range append([]Copy{{o.Device, o.Model}}, o.More...) {
		wg.Go(func() {
			s, err := newSystem(c.Device, c.Model, o.Prompt, 2<<30, engine.Options{MaxTokens: 16384, Multiple: o.Multiple})
			if err != nil {
				stop(err)
				return
			}
			defer s.close()
			for i := take(); i < len(o.Data.Questions) && ctx.Err() == nil; i = take() {
				c, err := s.ask(ctx, o, i, ways)
				if err != nil {
					stop(fmt.Errorf("bench blend: user %s: %w", o.Data.Questions[i].User, err))
					return
				}
				finish(c)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// line sums up a way, beside full computation.
func (w *way) line(full *way, seed uint64) Line {
	n := float64(len(w.users))
	l := Line{Rule: w.rule, Budget: w.budget, NDCG: eval.Mean(w.ndcg, seed), Share: eval.Ratio(w.ndcg, full.ndcg, seed)}
	for _, u := range w.users {
		l.Error, l.Top, l.Compute = l.Error+u.err/n, l.Top+u.top/n, l.Compute+float64(u.tokens)/n
		for k := range l.Hit {
			l.Hit[k] += u.hit[k] / n
		}
	}
	return l
}

// pairs compares the first rule with the others. The first way is full computation.
func pairs(ways []*way, rules []string, seed uint64) (out []Pair) {
	for _, than := range rules[1:] {
		for _, w := range ways {
			for _, other := range ways {
				if w.rule == rules[0] && other.rule == than && other.budget == w.budget {
					out = append(out, w.pair(other, ways[0], seed))
				}
			}
		}
	}
	return out
}

// pair compares a way with another of the same budget.
func (w *way) pair(than, full *way, seed uint64) Pair {
	more, larger := make([]float64, len(w.ndcg)), make([]float64, len(w.ndcg))
	for i := range more {
		more[i], larger[i] = w.ndcg[i]-than.ndcg[i], w.users[i].err-than.users[i].err
	}
	return Pair{
		Rule: w.rule, Than: than.rule, Budget: w.budget, NDCG: eval.Ratio(more, full.ndcg, seed),
		Error: eval.Mean(larger, seed),
	}
}

// counts are the tokens of a prompt.
type counts struct{ tokens, items, history, prototype float64 }

// ask asks one question in all ways.
func (s *system) ask(ctx context.Context, o *QualityOptions, number int, ways []*way) (c counts, err error) {
	question := &o.Data.Questions[number]
	p, err := s.lay(ctx, o.Data, question)
	if err != nil {
		return c, err
	}
	l := &p.layout
	user := &l.Plan.Segments[l.User]
	c = counts{tokens: float64(l.Plan.Tokens()), items: float64(len(l.Plan.Segments[l.Items].Tokens)),
		history: float64(len(user.Tokens))}
	parts := s.parts(p)
	if o.History != nil {
		found, release := o.History(user.Tokens, user.Start)
		defer release()
		for i := range found {
			found[i].Segment = l.User
			c.prototype += float64(found[i].Tokens)
		}
		parts = append(found, parts...)
	}
	var full []float32
	for _, w := range ways {
		logits, computed, err := s.answer(ctx, o, w, p, parts)
		if err != nil {
			return c, fmt.Errorf("%s at %v: %w", w.rule, w.budget, err)
		}
		if full == nil {
			full = logits
		}
		w.note(number, question, logits, full)
		w.users[number].tokens = computed
	}
	return c, nil
}

// answer computes a prompt in one way.
func (s *system) answer(ctx context.Context, o *QualityOptions, w *way, p *laid,
	parts []engine.Part) ([]float32, int, error) {
	job := p.job(nil)
	switch w.rule {
	case "full":
	case "user-first", "item-first":
		l := &p.layout
		var items [][]int32
		line := l.Plan.Segments[l.Items].Tokens
		for i, at := range l.ItemAt {
			items = append(items, line[at:at+p.lengths[i]])
		}
		order := map[string]plan.Order{"user-first": plan.UserFirst, "item-first": plan.ItemFirst}[w.rule]
		other, err := s.prompt.Rank(order, l.Plan.Segments[l.User].Tokens, items)
		if err != nil {
			return nil, 0, err
		}
		job.Plan, job.Want[0].Segment = other.Plan, other.Answers
	default:
		job.Blend = &engine.Blend{
			Parts: parts, Budget: blend.Budget{Items: w.budget, History: w.budget, Window: o.Window}, Drift: blend.DriftWeight,
			Layers: blend.WholeLayers, Rule: s.rule(w.rule, parts),
		}
		if w.rule == "learned" {
			job.Blend.Importance = o.Importance
		}
	}
	r, err := s.engine.Do(ctx, job)
	if err != nil {
		return nil, 0, err
	}
	return r.Logits[0], r.Computed, nil
}

// note adds a question's metrics.
func (w *way) note(number int, q *eval.Question, logits, full []float32) {
	u := &w.users[number]
	order := ranked(logits)
	p := make([]float64, len(order))
	total := 0.0
	for i, c := range order {
		if len(q.Probabilities) > 0 {
			p[i] = q.Probabilities[c]
		} else if q.Candidates[c] == q.Chosen {
			p[i] = 1
		}
		total += p[i]
	}
	for i := range p {
		p[i] /= total
	}
	w.ndcg[number] = eval.Expected(p, 10).NDCG
	for k, n := range []int{1, 5, 10} {
		u.hit[k] = eval.Expected(p, n).Hit
	}
	best := map[int]bool{}
	k := min(10, len(order))
	for _, c := range ranked(full)[:k] {
		best[c] = true
	}
	for _, c := range order[:k] {
		if best[c] {
			u.top += 1 / float64(k)
		}
	}
	u.err = distance(logits, full)
}

// distance is the root mean square difference of logits, whose mean does not matter, over their spread; 0 where there
// is none.
func distance(a, b []float32) float64 {
	var shift, mean float64
	n := float64(len(a))
	for i := range a {
		shift += float64(a[i]-b[i]) / n
		mean += float64(b[i]) / n
	}
	var off, spread float64
	for i := range a {
		off += sq(float64(a[i]-b[i]) - shift)
		spread += sq(float64(b[i]) - mean)
	}
	if off == 0 {
		return 0 // of one candidate, or of logits that are all the same, too
	}
	return math.Sqrt(off / spread)
}

func sq(x float64) float64 { return x * x }

// JSON writes the report.
func (q *Quality) JSON(w io.Writer) error {
	return report.JSON(w, q)
}

// Text writes a table.
func (q *Quality) Text(out io.Writer) error {
	fmt.Fprintf(out, "%s, %s\n%s; %d users; prompts of %.0f tokens, %.0f of items, %.0f of history (%.0f with a "+
		"prototype)\n\n",
		q.Date, q.Device, q.Data, q.Users, q.Tokens, q.Items, q.History, q.Prototype)
	w := report.Table(out)
	fmt.Fprintln(w, "rule\tbudget\tcomputed\tNDCG@10\tof full\tHR@1\tHR@5\tHR@10\terror\tsame ten\t")
	for _, l := range q.Lines {
		fmt.Fprintf(w, "%s\t%.2f\t%.0f\t%.4f\t%.3f [%.3f, %.3f]\t%.3f\t%.3f\t%.3f\t%.3f\t%.2f\t\n",
			l.Rule, l.Budget, l.Compute, l.NDCG.Value, l.Share.Value, l.Share.Low, l.Share.High, l.Hit[0], l.Hit[1], l.Hit[2],
			l.Error, l.Top)
	}
	if err := w.Flush(); err != nil || len(q.Pairs) == 0 {
		return err
	}
	fmt.Fprintln(out, "\nDifferences, user by user:")
	fmt.Fprintln(w, "rule\tthan\tbudget\tof full\terror\t")
	for _, p := range q.Pairs {
		fmt.Fprintf(w, "%s\t%s\t%.2f\t%+.4f [%+.4f, %+.4f]\t%+.4f [%+.4f, %+.4f]\t\n",
			p.Rule, p.Than, p.Budget, p.NDCG.Value, p.NDCG.Low, p.NDCG.High, p.Error.Value, p.Error.Low, p.Error.High)
	}
	return w.Flush()
}

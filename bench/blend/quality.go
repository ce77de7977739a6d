package blend

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"text/tabwriter"
	"time"

	"grebe/bench/eval"
	"grebe/blend"
	"grebe/compute"
	"grebe/engine"
	"grebe/model"
	"grebe/prompt"
)

// QualityOptions say what Quality measures. Zero values stand for defaults.
type QualityOptions struct {
	Device   compute.Device // taken over
	Model    model.Model    // taken over
	Prompt   *prompt.Builder
	Data     *eval.Data
	Budgets  []float64 // 0 to 1
	Rules    []string
	Window   int
	Multiple int // of rows that budgets are rounded down to, see engine.Options; 0: the device's
	Seed     uint64
	History  History // nil: histories are computed
	Progress func(done, total int)
}

// History finds prototypes for a user's tokens, which begin at a position.
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

// way is how a prompt is computed.
type way struct {
	rule   string
	budget float64
	ndcg   []float64
	hit    [3]float64
	err    float64
	top    float64
	tokens int
}

// MeasureQuality asks every question in all ways. Of the true probabilities, where they are known, metrics are in expectation;
// else of what the user took.
func MeasureQuality(ctx context.Context, o QualityOptions) (q *Quality, err error) {
	if len(o.Budgets) == 0 {
		o.Budgets = []float64{0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1}
	}
	if len(o.Rules) == 0 {
		o.Rules = Rules
	}
	s, err := newSystem(o.Device, o.Model, o.Prompt, 2<<30, engine.Options{MaxTokens: 16384, Multiple: o.Multiple})
	if err != nil {
		return nil, err
	}
	defer s.close()
	ways := []*way{{rule: "full", budget: 1}, {rule: "user-first", budget: 1}, {rule: "item-first", budget: 1}, {rule: "none"}}
	for _, r := range o.Rules {
		for _, b := range o.Budgets {
			ways = append(ways, &way{rule: r, budget: b})
		}
	}
	q = &Quality{Date: time.Now().UTC().Format(time.DateOnly), Device: o.Device.Name(), Data: o.Data.Name, Users: len(o.Data.Questions)}
	for i := range o.Data.Questions {
		if err := s.ask(ctx, &o, &o.Data.Questions[i], ways, q); err != nil {
			return nil, fmt.Errorf("bench blend: user %s: %w", o.Data.Questions[i].User, err)
		}
		if o.Progress != nil {
			o.Progress(i+1, len(o.Data.Questions))
		}
	}
	n := float64(len(o.Data.Questions))
	for _, w := range ways {
		l := Line{Rule: w.rule, Budget: w.budget, NDCG: eval.Mean(w.ndcg, o.Seed), Share: eval.Ratio(w.ndcg, ways[0].ndcg, o.Seed),
			Error: w.err / n, Top: w.top / n, Compute: float64(w.tokens) / n}
		for k := range l.Hit {
			l.Hit[k] = w.hit[k] / n
		}
		q.Lines = append(q.Lines, l)
	}
	q.Tokens, q.Items, q.History, q.Prototype = q.Tokens/n, q.Items/n, q.History/n, q.Prototype/n
	return q, nil
}

// ask asks one question in all ways.
func (s *system) ask(ctx context.Context, o *QualityOptions, question *eval.Question, ways []*way, q *Quality) error {
	p, err := s.lay(ctx, o.Data, question)
	if err != nil {
		return err
	}
	l := &p.layout
	user := &l.Plan.Segments[l.User]
	q.Tokens += float64(l.Plan.Tokens())
	q.Items += float64(len(l.Plan.Segments[l.Items].Tokens))
	q.History += float64(len(user.Tokens))
	parts := s.parts(p)
	if o.History != nil {
		found, release := o.History(user.Tokens, user.Start)
		defer release()
		for i := range found {
			found[i].Segment = l.User
			q.Prototype += float64(found[i].Tokens)
		}
		parts = append(found, parts...)
	}
	var full []float32
	for _, w := range ways {
		logits, computed, err := s.answer(ctx, o, w, p, parts)
		if err != nil {
			return fmt.Errorf("%s at %v: %w", w.rule, w.budget, err)
		}
		if full == nil {
			full = logits
		}
		w.note(question, logits, full)
		w.tokens += computed
	}
	return nil
}

// answer computes a prompt in one way.
func (s *system) answer(ctx context.Context, o *QualityOptions, w *way, p *laid, parts []engine.Part) ([]float32, int, error) {
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
		order := map[string]prompt.Order{"user-first": prompt.UserFirst, "item-first": prompt.ItemFirst}[w.rule]
		other, err := s.prompt.Rank(order, l.Plan.Segments[l.User].Tokens, items)
		if err != nil {
			return nil, 0, err
		}
		job.Plan, job.Want[0].Segment = other.Plan, other.Answers
	default:
		job.Blend = &engine.Blend{
			Parts: parts, Budget: blend.Budget{Items: w.budget, History: w.budget, Window: o.Window}, Drift: blend.DriftWeight, Rule: s.rule(w.rule, parts),
		}
	}
	r, err := s.engine.Do(ctx, job)
	if err != nil {
		return nil, 0, err
	}
	return r.Logits[0], r.Computed, nil
}

// note adds a question's metrics.
func (w *way) note(q *eval.Question, logits, full []float32) {
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
	w.ndcg = append(w.ndcg, eval.Expected(p, 10).NDCG)
	for k, n := range []int{1, 5, 10} {
		w.hit[k] += eval.Expected(p, n).Hit
	}
	best := map[int]bool{}
	k := min(10, len(order))
	for _, c := range ranked(full)[:k] {
		best[c] = true
	}
	for _, c := range order[:k] {
		if best[c] {
			w.top += 1 / float64(k)
		}
	}
	w.err += distance(logits, full)
}

// distance is the root mean square difference of logits, whose mean does not matter, over their spread.
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
	return math.Sqrt(off / spread)
}

func sq(x float64) float64 { return x * x }

// JSON writes the report.
func (q *Quality) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(q)
}

// Text writes a table.
func (q *Quality) Text(out io.Writer) error {
	fmt.Fprintf(out, "%s, %s\n%s; %d users; prompts of %.0f tokens, %.0f of items, %.0f of history (%.0f with a prototype)\n\n",
		q.Date, q.Device, q.Data, q.Users, q.Tokens, q.Items, q.History, q.Prototype)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "rule\tbudget\tcomputed\tNDCG@10\tof full\tHR@1\tHR@5\tHR@10\terror\tsame ten\t")
	for _, l := range q.Lines {
		fmt.Fprintf(w, "%s\t%.2f\t%.0f\t%.4f\t%.3f [%.3f, %.3f]\t%.3f\t%.3f\t%.3f\t%.3f\t%.2f\t\n",
			l.Rule, l.Budget, l.Compute, l.NDCG.Value, l.Share.Value, l.Share.Low, l.Share.High, l.Hit[0], l.Hit[1], l.Hit[2], l.Error, l.Top)
	}
	return w.Flush()
}

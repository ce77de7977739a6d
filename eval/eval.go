// Package eval measures how good rankings and recommendations are. It compares them with simple baselines and, where
// the process that made the data is known, with the best possible answers.
//
// A Question is a user, a list of candidates of which the user takes one, and the item that the user takes next from
// the whole catalog. A Way answers questions through a server, in process: a model with the user first, with the items
// first, with the order that auto chooses, pointwise, or by beam search. All ways get the same questions.
//
// Metrics are those of the papers: Recall, MRR, NDCG and HIT at k. Intervals are of 95 %, by bootstrap over users from
// a fixed seed. Questions of shop have the true probabilities of their candidates. For these, NDCG is also given in
// expectation over what the user takes, without the luck of one draw. The share of the optimum is a ratio of these.
package eval

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	grebev1 "grebe/api/grebe/v1"
)

// Asker answers requests, as the server does.
type Asker interface {
	Rank(context.Context, *grebev1.RankRequest) (*grebev1.RankResponse, error)
	Recommend(context.Context, *grebev1.RecommendRequest) (*grebev1.RecommendResponse, error)
}

// Way is one way to answer.
type Way struct {
	Name   string
	Model  string // of the server
	Prefix string // of rankings: user, item, auto or blend
	// Budget is how much of a blended prompt is computed again; nil: what the model's configuration says.
	Budget *grebev1.Budget
	// Generate asks for items of the whole catalog instead.
	Generate bool
	// FirstIdentifier, when positive, is the token that stands for the first candidate of a list, the
	// next one for the second: for catalogs whose items have no identifiers.
	FirstIdentifier int32
}

// Options say how to measure. Zero values stand for defaults.
type Options struct {
	Ways     []Way
	Width    int // of beams; 64
	Seed     uint64
	Parallel int                   // requests at a time, which the server may compute together; 1
	Passes   int                   // how often all is asked; the last answers are measured, those of warm caches; 1
	Bare     bool                  // without intervals, which take long where there are many users
	Progress func(done, total int) // called after each request
}

const (
	// DeadlineMs is that of the requests, which a server must allow: what is measured is not how fast they are.
	DeadlineMs = 900_000
	generated  = 20 // items asked for in generation
	headline   = 10 // the cut that comparisons are about
)

var cuts = []int{5, 10, 20}

// Run asks all questions in all ways. The server must have the data's items in its catalog.
func Run(ctx context.Context, d *Data, a Asker, o Options) (*Report, error) {
	if o.Width <= 0 {
		o.Width = 64
	}
	o.Parallel, o.Passes = max(o.Parallel, 1), max(o.Passes, 1)
	r := newReport(d)
	e := &evaluation{data: d, asker: a, options: &o, total: len(o.Ways) * len(d.Questions) * o.Passes}
	rank := e.rankBaselines()
	recommend := e.recommendBaselines()
	for i := range o.Ways {
		w := &o.Ways[i]
		into := &rank
		if w.Generate {
			into = &recommend
		}
		var res result
		for range o.Passes {
			var err error
			if res, err = e.answers(ctx, w); err != nil {
				return nil, err
			}
		}
		*into = append(*into, res)
	}
	r.UserTokens, r.ItemTokens, r.AutoUserFirst = e.usage.userTokens(), e.usage.itemTokens(), e.usage.userFirst()
	r.Unreal, r.Short = e.unreal, e.short
	by := bootstrap{o.Seed, resamples}
	if o.Bare {
		by.samples = 0
	}
	r.fill(d, rank, recommend, by)
	return r, nil
}

// result is the answers of one way: for each question, candidates or items, best first.
type result struct {
	way     string
	model   bool // a model's, not a baseline's
	lists   [][]string
	scores  [][]float64 // of rankings: of each candidate, in the question's order
	seconds float64
	tooLong int // prompts that the model has no room for: their answers are empty
	tokens  int // of the prompts
	cached  int // of these, those whose KV was there
}

// answers asks all questions in one way.
func (e *evaluation) answers(ctx context.Context, w *Way) (result, error) {
	start := time.Now()
	res := result{way: w.Name, model: true, lists: make([][]string, len(e.data.Questions)),
		scores: make([][]float64, len(e.data.Questions))}
	ask := e.rank
	if w.Generate {
		ask = e.recommend
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var wg sync.WaitGroup
	var next atomic.Int64
	for range e.options.Parallel {
		wg.Go(func() {
			for ctx.Err() == nil {
				k := int(next.Add(1)) - 1
				if k >= len(e.data.Questions) {
					return
				}
				q := &e.data.Questions[k]
				if err := ask(ctx, w, q, &res, k); err != nil {
					stop(fmt.Errorf("eval: %s: user %s: %w", w.Name, q.User, err)) // the first one counts
				}
			}
		})
	}
	wg.Wait()
	res.seconds = time.Since(start).Seconds()
	return res, context.Cause(ctx)
}

// tooLong reports whether an error says that the model has no room for a prompt.
func tooLong(err error) bool {
	coded, ok := errors.AsType[interface {
		error
		Code() string
	}](err)
	return ok && coded.Code() == "too_large"
}

type evaluation struct {
	data    *Data
	asker   Asker
	options *Options
	done    int
	total   int

	mu     sync.Mutex // guards what follows, done, and the result that is being filled
	usage  usage
	unreal int // items that came back and are not in the catalog
	short  int // recommendations with fewer items than asked for
}

// usage sums what rankings say of their prompts.
type usage struct{ requests, user, item, candidates, auto, autoUser int }

func (u *usage) userTokens() float64 { return float64(u.user) / float64(max(u.requests, 1)) }
func (u *usage) itemTokens() float64 { return float64(u.item) / float64(max(u.candidates, 1)) }
func (u *usage) userFirst() float64  { return float64(u.autoUser) / float64(max(u.auto, 1)) }

// take notes an answer under the lock; note adds what it says beside.
func (e *evaluation) take(res *result, k int, list []string, err error, note func()) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case tooLong(err):
		res.tooLong++
	case err != nil:
		return err
	default:
		res.lists[k] = list
		note()
	}
	e.done++
	if e.options.Progress != nil {
		e.options.Progress(e.done, e.total)
	}
	return nil
}

// Request is a question as a ranking.
func (d *Data) Request(w *Way, q *Question) *grebev1.RankRequest {
	req := &grebev1.RankRequest{Model: w.Model, User: d.users[q.User], Prefix: w.Prefix, Budget: w.Budget,
		DeadlineMs: DeadlineMs}
	for i, id := range q.Candidates {
		c := &grebev1.Item{Id: id}
		if w.FirstIdentifier > 0 {
			it := d.items[id]
			identifier := w.FirstIdentifier + int32(i)
			c = &grebev1.Item{Id: id, Text: it.Text, Tokens: it.Tokens, Attributes: it.Attributes, Identifier: &identifier}
		}
		req.Candidates = append(req.Candidates, c)
	}
	return req
}

func (e *evaluation) rank(ctx context.Context, w *Way, q *Question, res *result, k int) error {
	resp, err := e.asker.Rank(ctx, e.data.Request(w, q))
	var list []string
	scores := make([]float64, len(q.Candidates))
	for _, x := range resp.GetResults() {
		list = append(list, q.Candidates[x.Index])
		scores[x.Index] = float64(x.Logit)
	}
	return e.take(res, k, list, err, func() {
		res.scores[k] = scores
		u := resp.Usage
		res.tokens, res.cached = res.tokens+int(u.PromptTokens), res.cached+int(u.CachedTokens)
		e.usage.requests++
		e.usage.candidates += len(q.Candidates)
		e.usage.user += int(u.UserTokens)
		e.usage.item += int(u.ItemTokens)
		if w.Prefix == "auto" {
			e.usage.auto++
			if resp.Prefix == "user" {
				e.usage.autoUser++
			}
		}
	})
}

func (e *evaluation) recommend(ctx context.Context, w *Way, q *Question, res *result, k int) error {
	resp, err := e.asker.Recommend(ctx, &grebev1.RecommendRequest{
		Model: w.Model, User: e.data.users[q.User], N: generated, BeamWidth: int32(e.options.Width), ExcludeSeen: true,
		DeadlineMs: DeadlineMs,
	})
	var list []string
	for _, x := range resp.GetResults() {
		list = append(list, x.Id)
	}
	return e.take(res, k, list, err, func() {
		if u := resp.Usage; u != nil {
			res.tokens, res.cached = res.tokens+int(u.PromptTokens), res.cached+int(u.CachedTokens)
		}
		if len(list) < generated {
			e.short++
		}
		for _, id := range list {
			if e.data.items[id] == nil {
				e.unreal++
			}
		}
	})
}

// rankBaselines orders the candidates without a model.
func (e *evaluation) rankBaselines() []result {
	popular, recent, best := result{way: "popularity"}, result{way: "most recent category"}, result{way: "optimum"}
	for i := range e.data.Questions {
		q := &e.data.Questions[i]
		popular.lists = append(popular.lists, e.data.byPopularity(q.Candidates))
		recent.lists = append(recent.lists, e.data.byRecency(q.Candidates, q.User))
		best.lists = append(best.lists, byProbability(q))
	}
	if !e.data.Known() {
		return []result{popular, recent}
	}
	return []result{popular, recent, best}
}

// recommendBaselines lists items of the whole catalog without a model.
func (e *evaluation) recommendBaselines() []result {
	if !slices.ContainsFunc(e.data.Questions, func(q Question) bool { return q.Next != "" }) {
		return nil
	}
	popular, recent, best := result{way: "popularity"}, result{way: "most recent category"}, result{way: "optimum"}
	shelves := e.data.shelves()
	for i := range e.data.Questions {
		q := &e.data.Questions[i]
		popular.lists = append(popular.lists, shelves.first(e.data.users[q.User].History, nil))
		recent.lists = append(recent.lists, shelves.first(e.data.users[q.User].History, e.data.category))
		list := make([]string, len(q.Best))
		for k, b := range q.Best {
			list[k] = b.ID
		}
		best.lists = append(best.lists, list)
	}
	if !e.data.Known() {
		return []result{popular, recent}
	}
	return []result{popular, recent, best}
}

// byProbability orders candidates as the optimum does.
func byProbability(q *Question) []string {
	if len(q.Probabilities) == 0 {
		return nil
	}
	at := make([]int, len(q.Candidates))
	for i := range at {
		at[i] = i
	}
	slices.SortStableFunc(at, func(a, b int) int { return cmp.Compare(q.Probabilities[b], q.Probabilities[a]) })
	out := make([]string, len(at))
	for i, k := range at {
		out[i] = q.Candidates[k]
	}
	return out
}

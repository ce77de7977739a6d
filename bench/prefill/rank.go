package prefill

import (
	"context"
	"fmt"
	"strings"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/bench/report"
	"grebe/engine"
	"grebe/internal/toybpe"
	"grebe/model/tokenizer"
	"grebe/prompt"
	"grebe/serve"
)

// The ranking that is measured.
const (
	userTokens = 1000
	candidates = 100
	itemTokens = 10
)

// Rank is the latency of a ranking in one format and order, by stage: medians in milliseconds. The
// request goes through the server's own code, with no network before it.
type Rank struct {
	Format   string  `json:"format"`
	Prefix   string  `json:"prefix"`
	Tokens   int     `json:"prompt_tokens"`
	PromptMS float64 `json:"prompt_ms"` // texts to tokens to plan
	QueueMS  float64 `json:"queue_ms"`
	Compute  float64 `json:"compute_ms"`
	ScoreMS  float64 `json:"score_ms"` // logits to scores, in order
	TotalMS  float64 `json:"total_ms"`
	Repeats  int     `json:"repeats"`
}

// rank measures rankings, formats and orders in turns.
func rank(ctx context.Context, o *Options, subjects []*subject) ([]Rank, error) {
	tok, words, err := vocabulary()
	if err != nil {
		return nil, err
	}
	builder, err := prompt.New(prompt.Config{Instruction: prompt.Text{Text: words[0]}}, tok, o.Spec.Vocab)
	if err != nil {
		return nil, err
	}
	var runs []*ranking
	for _, s := range subjects {
		for _, prefix := range []string{"user", "item"} {
			r, err := newRanking(s, builder, prefix, words)
			if err != nil {
				return nil, err
			}
			runs = append(runs, r)
		}
	}
	for range max(3, o.Repeats/2) {
		for _, r := range runs {
			if err := r.run(ctx); err != nil {
				return nil, err
			}
			rest()
		}
	}
	out := make([]Rank, len(runs))
	for i, r := range runs {
		out[i] = r.summary()
	}
	return out, nil
}

// vocabulary returns a tokenizer and words that are one token each, with a space before them.
func vocabulary() (*tokenizer.Tokenizer, []string, error) {
	const stems = "bird lake reed nest wing dive feather water shore marsh grebe heron"
	data, err := toybpe.Train([]string{strings.Repeat(" "+stems, 50)}, 200).TokenizerJSON(nil)
	if err != nil {
		return nil, nil, err
	}
	tok, err := tokenizer.Parse(data)
	if err != nil {
		return nil, nil, err
	}
	var words []string
	for _, w := range strings.Fields(stems) {
		if len(tok.Encode(" "+w)) != 1 {
			return nil, nil, fmt.Errorf("%q is not one token", w)
		}
		words = append(words, " "+w)
	}
	return tok, words, nil
}

// text joins n words, the first of them chosen by seed: n tokens.
func text(words []string, n, seed int) *string {
	var b strings.Builder
	for i := range n {
		b.WriteString(words[(i*i+seed)%len(words)])
	}
	s := b.String()
	return &s
}

// ranking is one request, repeated. It stands between server and engine to see when each begins.
type ranking struct {
	subject *subject
	server  *serve.Service
	request *grebev1.RankRequest

	enter, leave                           time.Time
	result                                 *engine.Result
	tokens                                 int
	prompt, queue, compute, score, overall []float64
}

func newRanking(s *subject, b *prompt.Builder, prefix string, words []string) (*ranking, error) {
	r := &ranking{subject: s, request: &grebev1.RankRequest{
		User: &grebev1.User{Text: text(words, userTokens, 1)}, Prefix: prefix, TopK: 10, DeadlineMs: 60_000,
	}}
	for i := range candidates {
		identifier := int32(i)
		r.request.Candidates = append(r.request.Candidates,
			&grebev1.Item{Text: text(words, itemTokens, i), Identifier: &identifier})
	}
	var err error
	r.server, err = serve.New(serve.Config{Models: []serve.Model{{
		Name: "bench", Runner: r, Prompt: b, Vocab: s.model.Vocab(), Positions: s.model.MaxPositions(),
	}}})
	return r, err
}

// Do hands the server's job to the engine and notes the time on both sides.
func (r *ranking) Do(ctx context.Context, j *engine.Job) (*engine.Result, error) {
	r.enter = time.Now()
	res, err := r.subject.engine.Do(ctx, j)
	r.leave, r.result = time.Now(), res
	return res, err
}

func (r *ranking) run(ctx context.Context) error {
	start := time.Now()
	resp, err := r.server.Rank(ctx, r.request)
	if err != nil {
		return err
	}
	end := time.Now()
	r.tokens = int(resp.Usage.PromptTokens)
	r.prompt = append(r.prompt, milliseconds(r.enter.Sub(start)))
	r.queue = append(r.queue, milliseconds(r.result.Queue))
	r.compute = append(r.compute, milliseconds(r.result.Compute))
	r.score = append(r.score, milliseconds(end.Sub(r.leave)))
	r.overall = append(r.overall, milliseconds(end.Sub(start)))
	return nil
}

func (r *ranking) summary() Rank {
	return Rank{
		Format: r.subject.format.String(), Prefix: r.request.Prefix, Tokens: r.tokens,
		PromptMS: report.Median(r.prompt), QueueMS: report.Median(r.queue), Compute: report.Median(r.compute),
		ScoreMS: report.Median(r.score), TotalMS: report.Median(r.overall), Repeats: len(r.overall),
	}
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1000 }

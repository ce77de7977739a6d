package serve

import (
	"context"
	"math"
	"time"

	grebev1 "grebe/api/grebe/v1"
	"grebe/dispatch"
	"grebe/engine"
	"grebe/plan"
	"grebe/prompt"
)

// maxAnswers bounds the logits of one request: 64 MiB, and twice as much in the engine.
const maxAnswers = 16 << 20

// Score returns, for each item, the probabilities of the label tokens after the query and the item, as SGLang does.
// With ApplySoftmax they are normalised over the labels, otherwise over the vocabulary.
//
// Query and item are tokenised separately, while SGLang tokenises the joined text. Only requests with tokens instead
// of texts are sure to get the same scores. The model's preamble and instruction, if any, surround query and item.
func (s *Service) Score(ctx context.Context, req *grebev1.ScoreRequest) (*grebev1.ScoreResponse, error) {
	return routed(ctx, s, "score", s.compatibleModel(req.Model), 0, req, noSizes, s.scoreHere)
}

func (s *Service) scoreHere(ctx context.Context, req *grebev1.ScoreRequest) (*grebev1.ScoreResponse, error) {
	return on(s, "score", s.compatibleModel(req.Model), 0, func(c *call) (*grebev1.ScoreResponse, error) {
		return entered(ctx, c, dispatch.Single, len(req.Items), func(ctx context.Context) (*grebev1.ScoreResponse, error) {
			return s.score(ctx, c, req)
		})
	})
}

func (s *Service) score(ctx context.Context, c *call, req *grebev1.ScoreRequest) (*grebev1.ScoreResponse, error) {
	if err := checkCount("items", len(req.Items)); err != nil {
		return nil, err
	}
	if len(req.LabelTokenIds) == 0 {
		return nil, Errorf(InvalidArgument, "label_token_ids", "is missing")
	}
	if err := c.checkTokens(path{"label_token_ids", -1}, "", req.LabelTokenIds); err != nil {
		return nil, err
	}
	ids := req.LabelTokenIds
	if !req.ApplySoftmax {
		ids = c.model.wholeVocabulary()
	}
	if n := len(ids) * len(req.Items); n > maxAnswers {
		return nil, Errorf(TooLarge, "items", "%d logits for each of %d items: at most %d items, or set apply_softmax",
			len(ids), len(req.Items), maxAnswers/len(ids))
	}
	l, err := c.scoreLayout(ctx, req)
	if err != nil {
		return nil, err
	}
	job := &engine.Job{Plan: l.Plan, Want: make([]engine.Want, len(req.Items))}
	for i := range job.Want {
		segment := answering(l.Plan, l.Answers+i)
		if segment < 0 {
			return nil, Errorf(InvalidArgument, path{"items", i}.String(), "query and item have no tokens")
		}
		job.Want[i] = engine.Want{Segment: segment, IDs: ids}
	}
	res, err := s.doUnnamed(ctx, c, &l, job)
	if err != nil {
		return nil, err
	}
	resp := &grebev1.ScoreResponse{Object: "scoring", Model: c.model.Name, Usage: compatibleUsage(l.Plan, res.Cached)}
	for _, logits := range res.Logits {
		resp.Scores = append(resp.Scores, &grebev1.Scores{Values: labelScores(logits, req)})
	}
	return resp, nil
}

// doUnnamed runs a job with cached KV of its prompt, which belongs to no user.
func (s *Service) doUnnamed(ctx context.Context, c *call, l *prompt.Layout, job *engine.Job) (*engine.Result, error) {
	cache := c.model.Cache
	if cache == nil {
		res, err := s.do(ctx, c, job)
		if err == nil {
			s.metrics.prompted(c.op, res.Computed, &grebev1.Sources{})
		}
		return res, err
	}
	visit := cache.Unnamed(l)
	var res *engine.Result
	defer func() { visit.EndUnnamed(l, res) }() // also after an error
	visit.Attach(ctx, l, job)
	var err error
	if res, err = s.do(ctx, c, job); err == nil {
		s.metrics.prompted(c.op, res.Computed, sources(res.Tiers(job)))
	}
	if c.badKV {
		visit.Discard(l)
	}
	return res, err
}

// labelScores returns the scores of one item's labels. logits are the labels' with ApplySoftmax, else the
// vocabulary's.
func labelScores(logits []float32, req *grebev1.ScoreRequest) []float64 {
	if req.ApplySoftmax {
		return softmax(logits)
	}
	total := logSumExp(logits)
	out := make([]float64, len(req.LabelTokenIds))
	for i, id := range req.LabelTokenIds {
		out[i] = math.Exp(float64(logits[id]) - total)
	}
	return out
}

// wholeVocabulary lists all tokens of a model.
func (m *Model) wholeVocabulary() []int32 {
	ids := make([]int32, m.Vocab)
	for i := range ids {
		ids[i] = int32(i)
	}
	return ids
}

func (c *call) scoreLayout(ctx context.Context, req *grebev1.ScoreRequest) (prompt.Layout, error) {
	if req.Query == nil {
		return prompt.Layout{}, Errorf(InvalidArgument, "query", "is missing")
	}
	query, err := c.input(path{"query", -1}, req.Query)
	if err != nil {
		return prompt.Layout{}, err
	}
	items := make([][]int32, len(req.Items))
	for i, in := range req.Items {
		if err := c.alive(ctx); err != nil {
			return prompt.Layout{}, err
		}
		if items[i], err = c.input(path{"items", i}, in); err != nil {
			return prompt.Layout{}, err
		}
	}
	return c.model.Prompt.Score(query, items, req.ItemFirst), nil
}

// input returns the tokens of an Input.
func (c *call) input(field path, in *grebev1.Input) ([]int32, error) {
	if in.GetTokens() != nil {
		return in.Tokens, c.checkTokens(field, "", in.Tokens)
	}
	if n := len(in.GetText()); n > maxText {
		return nil, Errorf(TooLarge, field.String(), "%d bytes, at most %d", n, maxText)
	}
	ids, err := c.model.Prompt.Encode(in.GetText())
	if err != nil {
		return nil, Errorf(Unprocessable, field.String(), "%v", err)
	}
	return ids, nil
}

// answering returns the segment whose last token answers for segment i. That is i or, if i is empty, the last segment
// with tokens that i sees; −1 if there is none.
func answering(p *plan.Plan, i int) int {
	if len(p.Segments[i].Tokens) > 0 {
		return i
	}
	sees := p.Segments[i].Sees
	for k := len(sees) - 1; k >= 0; k-- {
		if len(p.Segments[sees[k]].Tokens) > 0 {
			return int(sees[k])
		}
	}
	return -1
}

// alive returns an error once the client is gone or the deadline has passed.
func (c *call) alive(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return AsError(err)
	}
	if time.Since(c.start) > c.deadline {
		return AsError(context.DeadlineExceeded)
	}
	return nil
}

// ListModels lists the models in the form of OpenAI's API.
func (s *Service) ListModels(context.Context, *grebev1.ListModelsRequest) (*grebev1.ListModelsResponse, error) {
	resp := &grebev1.ListModelsResponse{Object: "list"}
	for _, sl := range s.served {
		resp.Data = append(resp.Data, s.describeModel(sl))
	}
	return resp, nil
}

// Model describes a model.
func (s *Service) Model(name string) (*grebev1.Model, error) {
	sl, err := s.slot(name)
	if err != nil {
		return nil, err
	}
	return s.describeModel(sl), nil
}

// describeModel describes the checkpoint that serves, and the progress of a reload.
func (s *Service) describeModel(sl *slot) *grebev1.Model {
	sl.mu.Lock()
	m, r := sl.now, sl.reload
	sl.mu.Unlock()
	out := &grebev1.Model{
		Id: m.Name, Object: "model", Created: m.loaded.Unix(), OwnedBy: "grebe", Architecture: m.Architecture,
		Dtype: m.DType, Scoring: m.scoresBy(), VocabSize: int32(min(m.Vocab, math.MaxInt32)),
		MaxModelLen: int32(m.Positions), Version: m.Version,
	}
	if r != nil {
		out.Reload = r.describe()
	}
	if s.cfg.Cluster != nil {
		out.Rollout = s.cfg.Cluster.Rollout(m.Name)
	}
	return out
}

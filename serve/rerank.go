package serve

import (
	"context"

	grebev1 "grebe/api/grebe/v1"
	"grebe/dispatch"
	"grebe/internal/wire"
	"grebe/prompt"
	"grebe/schedule"
)

// Rerank orders documents by their relevance to a query. The query uses the model's query template, each document is
// an item's text, and scoring is pointwise.
func (s *Service) Rerank(ctx context.Context, req *grebev1.RerankRequest) (*grebev1.RerankResponse, error) {
	return routed(ctx, s, "rerank", s.judge(req.Model), 0, req, noSizes, s.rerankHere)
}

func (s *Service) rerankHere(ctx context.Context, req *grebev1.RerankRequest) (*grebev1.RerankResponse, error) {
	return on(s, "rerank", s.judge(req.Model), 0, func(c *call) (*grebev1.RerankResponse, error) {
		return entered(ctx, c, dispatch.Single, len(req.Documents),
			func(ctx context.Context) (*grebev1.RerankResponse, error) {
				return s.rerank(ctx, c, req)
			})
	})
}

func (s *Service) rerank(ctx context.Context, c *call, req *grebev1.RerankRequest) (*grebev1.RerankResponse, error) {
	if req.TopN < 0 {
		return nil, Errorf(InvalidArgument, "top_n", "%d is negative", req.TopN)
	}
	if err := checkCount("documents", len(req.Documents)); err != nil {
		return nil, err
	}
	r, err := s.relevance(ctx, c, query{req.Query, "query"}, func(yield func(path, string) bool) {
		for i, d := range req.Documents {
			if !yield(path{"documents", i}, d) {
				return
			}
		}
	})
	if err != nil {
		return nil, err
	}
	id, err := requestID("")
	if err != nil {
		return nil, err
	}
	resp := &grebev1.RerankResponse{Object: "list", Id: id, Model: c.model.Name,
		Usage: compatibleUsage(r.layout.Plan, r.result.Cached)}
	for _, i := range r.best(int(req.TopN)) {
		rel := &grebev1.Relevance{Index: int32(i), RelevanceScore: r.scores[i]}
		if req.ReturnDocuments == nil || *req.ReturnDocuments {
			rel.Document = &req.Documents[i]
		}
		resp.Results = append(resp.Results, rel)
	}
	return resp, nil
}

// judge returns the model for reranking. If the client names none, it is the only model that scores pointwise.
func (s *Service) judge(name string) string {
	if name = s.compatibleModel(name); name != "" {
		return name
	}
	only := ""
	for _, sl := range s.served {
		if sl.serving().scoresBy() != Pointwise.String() {
			continue
		}
		if only != "" {
			return ""
		}
		only = sl.name
	}
	return only
}

// query is the text that documents are compared with, and its field in the request.
type query struct {
	text  string
	field string
}

// relevance scores documents, each with its field in the request.
func (s *Service) relevance(ctx context.Context, c *call, q query,
	docs func(yield func(path, string) bool)) (*ranking, error) {
	if c.model.Scoring.Kind != Pointwise {
		return nil, Errorf(Unprocessable, "model", "%q scores by identifier: reranking needs a model that scores pointwise",
			c.model.Name)
	}
	if q.text == "" {
		return nil, Errorf(InvalidArgument, q.field, "is missing")
	}
	if len(q.text) > maxText {
		return nil, Errorf(TooLarge, q.field, "%d bytes, at most %d", len(q.text), maxText)
	}
	user, err := c.model.Prompt.QueryTokens(q.text)
	if err != nil {
		return nil, promptError(q.field, err)
	}
	w := &work{call: c, policy: schedule.User, user: user}
	for field, d := range docs {
		if err := c.alive(ctx); err != nil {
			return nil, err
		}
		ids, err := c.document(field, d)
		if err != nil {
			return nil, err
		}
		w.items = append(w.items, ids)
	}
	return s.rankPointwise(ctx, w)
}

// document returns the tokens of a document. It has at least one.
func (c *call) document(field path, text string) ([]int32, error) {
	if len(text) > maxText {
		return nil, Errorf(TooLarge, field.String(), "%d bytes, at most %d", len(text), maxText)
	}
	ids, err := c.model.Prompt.ItemTokens(&prompt.Item{Text: text, Identifier: -1})
	if err != nil {
		return nil, promptError(field.String(), err)
	}
	if len(ids) == 0 {
		return nil, Errorf(InvalidArgument, field.String(), "has no tokens")
	}
	return ids, nil
}

// ScorePairs scores second texts by their relevance to first ones, as vLLM does. There is one first text for all
// second texts, or one for each. Pairs with the same first text are computed together.
func (s *Service) ScorePairs(ctx context.Context, req *wire.Pairs) (*wire.PairScores, error) {
	return on(s, "score", s.judge(req.Model), 0, func(c *call) (*wire.PairScores, error) {
		return entered(ctx, c, dispatch.Rounds, len(req.Second), func(ctx context.Context) (*wire.PairScores, error) {
			return s.pairs(ctx, c, req)
		})
	})
}

func (s *Service) pairs(ctx context.Context, c *call, req *wire.Pairs) (*wire.PairScores, error) {
	if err := checkCount("text_1", len(req.First)); err != nil {
		return nil, err
	}
	if err := checkCount("text_2", len(req.Second)); err != nil {
		return nil, err
	}
	if n := len(req.First); n != 1 && n != len(req.Second) {
		return nil, Errorf(InvalidArgument, "text_1", "%d texts for %d of text_2: give one, or as many", n, len(req.Second))
	}
	id, err := requestID("")
	if err != nil {
		return nil, err
	}
	resp := &wire.PairScores{ID: id, Model: c.model.Name, Created: c.start.Unix(),
		Scores: make([]float64, len(req.Second)),
		Usage:  &grebev1.CompatibleUsage{}}
	if len(req.First) == 1 {
		all := make([]int, len(req.Second))
		for i := range all {
			all[i] = i
		}
		return resp, s.scoreGroup(ctx, c, query{req.First[0], "text_1"}, req.Second, all, resp)
	}
	groups := map[string][]int{} // indices of second texts by first text
	for i, first := range req.First {
		groups[first] = append(groups[first], i)
	}
	for i, first := range req.First {
		if group := groups[first]; group[0] == i {
			if err := s.scoreGroup(ctx, c, query{first, path{"text_1", i}.String()}, req.Second, group, resp); err != nil {
				return nil, err
			}
		}
	}
	return resp, nil
}

// scoreGroup scores the texts of one group and adds their usage.
func (s *Service) scoreGroup(ctx context.Context, c *call, q query, texts []string, group []int,
	resp *wire.PairScores) error {
	r, err := s.relevance(ctx, c, q, func(yield func(path, string) bool) {
		for _, i := range group {
			if !yield(path{"text_2", i}, texts[i]) {
				return
			}
		}
	})
	if err != nil {
		return err
	}
	for k, i := range group {
		resp.Scores[i] = r.scores[k]
	}
	used := compatibleUsage(r.layout.Plan, r.result.Cached)
	resp.Usage.PromptTokens += used.PromptTokens
	resp.Usage.TotalTokens += used.TotalTokens
	resp.Usage.CachedTokens += used.CachedTokens
	resp.Usage.PromptTokensDetails = &grebev1.PromptDetails{CachedTokens: resp.Usage.CachedTokens}
	return nil
}

package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"math"
	"slices"
	"time"
	"unicode"

	grebev1 "grebe/api/grebe/v1"
	"grebe/engine"
	"grebe/prompt"
)

// Rank orders candidates for a user.
func (s *Server) Rank(ctx context.Context, req *grebev1.RankRequest) (*grebev1.RankResponse, error) {
	c, err := s.begin("rank", req.Model, req.DeadlineMs)
	if err != nil {
		return nil, err
	}
	id, err := requestID(req.RequestId)
	if err != nil {
		return nil, err
	}
	prefix, order, err := prefixOrder(req.Prefix)
	if err != nil {
		return nil, err
	}
	if err := checkCount("candidates", len(req.Candidates)); err != nil {
		return nil, err
	}
	if req.TopK < 0 {
		return nil, errorf(invalidArgument, "top_k", "%d is negative", req.TopK)
	}
	user, err := s.user(c, req.User)
	if err != nil {
		return nil, err
	}
	items := make([]*prompt.Item, len(req.Candidates))
	for i, m := range req.Candidates {
		if items[i], err = s.candidate(c, i, m); err != nil {
			return nil, err
		}
	}
	r, err := s.rankItems(ctx, c, order, user, items)
	if err != nil {
		return nil, err
	}
	s.metrics.prefix.WithLabelValues(prefix).Inc()
	resp := &grebev1.RankResponse{
		Model: c.model.Name, RequestId: id, Prefix: prefix, Node: s.cfg.Node,
		Usage: usage(r.layout.Plan, r.result),
		TimingMs: &grebev1.Timing{
			Queue: milliseconds(r.result.Queue), Compute: milliseconds(r.result.Compute),
		},
	}
	for _, i := range r.best(int(req.TopK)) {
		resp.Results = append(resp.Results, &grebev1.Ranked{
			Index: int32(i), Id: items[i].ID, Score: r.scores[i], Logit: r.logits[i],
		})
	}
	resp.TimingMs.Total = milliseconds(time.Since(c.start))
	return resp, nil
}

// ranking is what came out of a job: a logit and a score for each item.
type ranking struct {
	layout prompt.Layout
	result *engine.Result
	logits []float32
	scores []float64
}

// best returns the items' indices, best first, ties in input order; n of them, or all when n is 0.
func (r *ranking) best(n int) []int {
	idx := make([]int, len(r.logits))
	for i := range idx {
		idx[i] = i
	}
	slices.SortStableFunc(idx, func(a, b int) int { return cmp.Compare(r.logits[b], r.logits[a]) })
	if n > 0 && n < len(idx) {
		idx = idx[:n]
	}
	return idx
}

// rankItems lays out the prompt by the model's way of scoring, runs it and scores the items.
func (s *Server) rankItems(ctx context.Context, c *call, order prompt.Order, user []int32, items []*prompt.Item) (*ranking, error) {
	var identifiers []int32
	if c.model.Scoring.Kind == Identifier {
		var err error
		if identifiers, err = c.identifiers(items); err != nil {
			return nil, err
		}
	}
	tokens := make([][]int32, len(items))
	for i, it := range items {
		err := c.alive(ctx)
		if err != nil {
			return nil, err
		}
		if tokens[i], err = c.itemTokens(i, it); err != nil {
			return nil, err
		}
	}
	if identifiers != nil {
		return s.rankByIdentifier(ctx, c, order, user, tokens, identifiers)
	}
	return s.rankPointwise(ctx, c, order, user, tokens)
}

// identifiers returns the items' identifiers, which must be there and differ.
func (c *call) identifiers(items []*prompt.Item) ([]int32, error) {
	ids := make([]int32, len(items))
	first := make(map[int32]int, len(items))
	for i, it := range items {
		id := it.Identifier
		if id < 0 {
			return nil, errorf(unprocessable, path{"candidates", i}.String()+".identifier", "is missing: model %q scores by identifier", c.model.Name)
		}
		if int(id) >= c.model.Vocab {
			return nil, errorf(unprocessable, path{"candidates", i}.String()+".identifier", "%d is outside the vocabulary of %d", id, c.model.Vocab)
		}
		if j, dup := first[id]; dup {
			return nil, errorf(unprocessable, path{"candidates", i}.String()+".identifier", "%d is the identifier of candidates[%d] too", id, j)
		}
		first[id], ids[i] = i, id
	}
	return ids, nil
}

// rankByIdentifier asks once for the logits of all identifiers; scores are their softmax.
func (s *Server) rankByIdentifier(ctx context.Context, c *call, order prompt.Order, user []int32, tokens [][]int32, identifiers []int32) (*ranking, error) {
	l, err := c.model.Prompt.Rank(order, user, tokens)
	if err != nil {
		return nil, layoutError(err)
	}
	res, err := s.do(ctx, c, &engine.Job{Plan: l.Plan, Want: []engine.Want{{Segment: l.Answers, IDs: identifiers}}})
	if err != nil {
		return nil, err
	}
	return &ranking{layout: l, result: res, logits: res.Logits[0], scores: softmax(res.Logits[0])}, nil
}

// rankPointwise asks for yes and no at each item's discriminant. The logit is their difference, the
// score the probability of yes against no.
func (s *Server) rankPointwise(ctx context.Context, c *call, order prompt.Order, user []int32, tokens [][]int32) (*ranking, error) {
	l, err := c.model.Prompt.Pointwise(order, user, tokens)
	if err != nil {
		return nil, layoutError(err)
	}
	ids := []int32{c.model.Scoring.Yes, c.model.Scoring.No}
	job := &engine.Job{Plan: l.Plan, Want: make([]engine.Want, len(tokens))}
	for i := range job.Want {
		job.Want[i] = engine.Want{Segment: l.Answers + i, IDs: ids}
	}
	res, err := s.do(ctx, c, job)
	if err != nil {
		return nil, err
	}
	r := &ranking{layout: l, result: res, logits: make([]float32, len(tokens)), scores: make([]float64, len(tokens))}
	for i, yn := range res.Logits {
		r.logits[i] = yn[0] - yn[1]
		r.scores[i] = softmax(yn)[0]
	}
	return r, nil
}

// softmax returns the probabilities that finite logits stand for.
func softmax(logits []float32) []float64 {
	out := make([]float64, len(logits))
	total := logSumExp(logits)
	for i, l := range logits {
		out[i] = math.Exp(float64(l) - total)
	}
	return out
}

// logSumExp returns log Σ exp(logits).
func logSumExp(logits []float32) float64 {
	top := float64(slices.Max(logits))
	sum := 0.0
	for _, l := range logits {
		sum += math.Exp(float64(l) - top)
	}
	return top + math.Log(sum)
}

// prefixOrder reads the prefix a request asks for, and returns the one that is used.
func prefixOrder(prefix string) (string, prompt.Order, error) {
	switch prefix {
	case "", "auto", "user":
		return "user", prompt.UserFirst, nil
	case "item":
		return "item", prompt.ItemFirst, nil
	case "none":
		return "none", prompt.UserFirst, nil
	case "blend":
		return "", 0, errorf(unprocessable, "prefix", "blend is not supported by this model yet")
	}
	return "", 0, errorf(invalidArgument, "prefix", "%s: want auto, user, item, none or blend", quoted(prefix))
}

// requestID checks a client's id of a request, or makes one.
func requestID(id string) (string, error) {
	if id == "" {
		var b [8]byte
		rand.Read(b[:]) // never fails
		return hex.EncodeToString(b[:]), nil
	}
	if len(id) > 128 {
		return "", errorf(invalidArgument, "request_id", "%d bytes, at most 128", len(id))
	}
	for _, r := range id {
		if !unicode.IsPrint(r) {
			return "", errorf(invalidArgument, "request_id", "has a character that is not printable")
		}
	}
	return id, nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

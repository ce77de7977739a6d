package serve

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	grebev1 "grebe/api/grebe/v1"
	"grebe/internal/wire"
)

// findAndRank generates items and ranks them, each on the node where it is cheapest. The ranking puts the user first
// unless the request says otherwise, so the KV of the user that the search left is reused.
func (s *Service) findAndRank(ctx context.Context, req *grebev1.RecommendRequest) (*grebev1.RecommendResponse, error) {
	n := int(req.N)
	orDefault(&n, defaultResults)
	if err := checkRange("n", n, 1, wire.MaxResults); err != nil {
		return nil, err
	}
	if err := checkRange("rank.candidates", int(req.Rank.Candidates), 0, wire.MaxResults); err != nil {
		return nil, err
	}
	model := req.Rank.Model
	orDefault(&model, req.Model)
	if _, err := s.slot(model); err != nil {
		return nil, inRank(err)
	}
	start, deadline := time.Now(), s.SLO()
	if req.DeadlineMs > 0 {
		deadline = time.Duration(req.DeadlineMs) * time.Millisecond
	}
	search := proto.CloneOf(req)
	search.Rank, search.N = nil, max(int32(n), req.Rank.Candidates)
	resp, err := s.find(ctx, search)
	if err != nil || resp.Fallback != "" || len(resp.Results) == 0 {
		if err == nil {
			cut(resp, n)
		}
		return resp, err
	}
	left := (deadline - time.Since(start)).Milliseconds()
	if left < 1 {
		return nil, AsError(context.DeadlineExceeded)
	}
	rank := &grebev1.RankRequest{Model: model, User: req.User, Prefix: req.Rank.Prefix, DeadlineMs: int32(left),
		RequestId: resp.RequestId}
	orDefault(&rank.Prefix, "user")
	for _, x := range resp.Results {
		rank.Candidates = append(rank.Candidates, &grebev1.Item{Id: x.Id})
	}
	ranked, err := s.Rank(ctx, rank)
	if err != nil {
		return nil, inRank(err)
	}
	found := resp.Results
	resp.Results = make([]*grebev1.Recommended, len(ranked.Results))
	for i, x := range ranked.Results {
		resp.Results[i] = found[x.Index]
		resp.Results[i].RankScore = &x.Score
	}
	resp.Ranked = &grebev1.RankedBy{Model: ranked.Model, Prefix: ranked.Prefix, Usage: ranked.Usage,
		TimingMs:   ranked.TimingMs,
		Candidates: int32(len(found))}
	resp.Notes = append(resp.Notes, ranked.Notes...)
	cut(resp, n)
	resp.TimingMs.Total = milliseconds(time.Since(start))
	return resp, nil
}

// cut leaves n results of a response that has as many or more candidates.
func cut(resp *grebev1.RecommendResponse, n int) {
	resp.Results = resp.Results[:min(n, len(resp.Results))]
	if resp.Short = len(resp.Results) < n; !resp.Short {
		resp.ShortReason = ""
	}
}

// inRank names the fields of a ranking's error as the request for recommendations has them.
func inRank(err error) error {
	var e *Error
	if !errors.As(err, &e) {
		return err
	}
	switch {
	case e.field == "model" || e.field == "prefix":
		return Errorf(e.code, "rank."+e.field, "%s", e.problem)
	case strings.HasPrefix(e.field, "candidates[") && strings.HasSuffix(e.field, "].id"):
		return Errorf(Unavailable, "", "an item that was found is gone before it was ranked: ask again")
	case strings.HasPrefix(e.field, "candidates["):
		return Errorf(Unprocessable, "rank", "an item that was found cannot be ranked: %s", e.problem)
	}
	return err
}

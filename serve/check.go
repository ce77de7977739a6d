package serve

import (
	"context"
	"fmt"
	"time"

	grebev1 "grebe/api/grebe/v1"
)

// Check ranks made-up items with every model, before clients send requests. It returns an error if a model fails or
// its scores are not finite. It caches and counts nothing. A model of events refuses made-up items: it is
// checked when it is measured.
func (s *Service) Check(ctx context.Context) error {
	for _, sl := range s.served {
		now := sl.serving()
		c := &call{op: "probe", start: time.Now(), deadline: time.Minute, model: now}
		tokens, made := madeUp(now)
		_, err := s.rank(ctx, c, &grebev1.RankRequest{User: &grebev1.User{Tokens: tokens}, Candidates: made, Prefix: "none"})
		if err := ownFault(err); err != nil {
			return fmt.Errorf("model %s does not answer: %w", sl.name, err)
		}
	}
	return ctx.Err()
}

// madeUp returns tokens spread over a model's vocabulary, and items of one of them each.
func madeUp(c *checkpoint) ([]int32, []*grebev1.Item) {
	tokens := make([]int32, min(probes, c.Vocab))
	items := make([]*grebev1.Item, len(tokens))
	for i := range tokens {
		tokens[i] = int32(i * (c.Vocab / len(tokens)))
		items[i] = &grebev1.Item{Tokens: tokens[i : i+1], Identifier: &tokens[i]}
	}
	return tokens, items
}

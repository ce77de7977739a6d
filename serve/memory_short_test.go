package serve

import (
	"context"
	"fmt"
	"strings"
	"testing"

	grebev1 "grebe/api/grebe/v1"
	"grebe/engine"
)

// full is a device without memory for a job.
type full struct{}

func (full) Do(context.Context, *engine.Job) (*engine.Result, error) {
	return nil, fmt.Errorf("engine: %w: 7 bytes", engine.ErrNoMemory)
}

// A request for which the device has no memory is unavailable, with a note that says what to do.
func TestNoMemoryOnTheDevice(t *testing.T) {
	s := newFake(t, func(c *Config) { c.Models[0].Runner = full{} })
	_, err := s.Rank(t.Context(), &grebev1.RankRequest{Model: "id", User: &grebev1.User{Tokens: []int32{1}},
		Candidates: []*grebev1.Item{{Tokens: []int32{2}, Identifier: new(int32(1))}}})
	e := AsError(err)
	if e.code != Unavailable || !strings.Contains(e.problem, "no memory left") {
		t.Errorf("%v: %v", e.code, err)
	}
}

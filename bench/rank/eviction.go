package rank

import (
	"context"
	"fmt"

	"grebe/schedule"
)

// EvictionOptions say what Eviction counts. Zero values stand for defaults.
type EvictionOptions struct {
	Workload string    // games, beauty, books or industry; books
	Requests int       // of which the first half is not counted; 20000
	Shares   []float64 // of the users' tokens that fit beside all items; 0.02, 0.05, 0.1
	Policies []string  // of package evict; lru, laru, default
	Dir      string    // folder of the checkpoint
}

func (o *EvictionOptions) setDefaults() {
	if o.Workload == "" {
		o.Workload = "books"
	}
	if o.Requests <= 0 {
		o.Requests = 20000
	}
	if len(o.Shares) == 0 {
		o.Shares = []float64{.02, .05, .1}
	}
	if len(o.Policies) == 0 {
		o.Policies = []string{"lru", "laru", "default"}
	}
}

// Eviction is what one policy of eviction computed where users are reused.
type Eviction struct {
	Workload string  `json:"workload"`
	Share    float64 `json:"share"` // of the users' tokens that fits
	Policy   string  `json:"policy"`
	Prompt   int     `json:"prompt_tokens"`
	Computed int     `json:"computed_tokens"`
	Models   int64   `json:"models"` // trained in the background
	RMS      float64 `json:"prediction_rms"`
}

// CountEvictions sends the same stream of rankings, one after the other, through servers that differ in who leaves
// the cache, at equal memory, and counts the tokens that would be computed in the second half; nothing is computed.
// Models are trained in the background as in a server, so what they have seen differs a little between runs.
func CountEvictions(ctx context.Context, o EvictionOptions, each func(*Eviction)) ([]Eviction, error) {
	o.setDefaults()
	ro := Options{Requests: o.Requests, Model: "tiny", Dir: o.Dir, Memory: -1}
	if err := ro.setDefaults(); err != nil {
		return nil, err
	}
	sys, err := open(&ro)
	if err != nil {
		return nil, err
	}
	defer sys.close()
	spec, _, err := ro.spec(o.Workload)
	if err != nil {
		return nil, err
	}
	src, err := newSource(spec, sys.model.Vocab())
	if err != nil {
		return nil, err
	}
	var out []Eviction
	for _, share := range o.Shares {
		for _, policy := range o.Policies {
			e, err := sys.countEvictions(ctx, src, share, policy, o.Requests)
			if err != nil {
				return out, fmt.Errorf("%s at %v: %w", policy, share, err)
			}
			e.Workload = o.Workload
			out = append(out, *e)
			each(e)
		}
	}
	return out, nil
}

func (s *system) countEvictions(ctx context.Context, src *source, share float64, policy string,
	requests int) (*Eviction, error) {
	times := s.flops()
	memory := newBudget(src.w, &s.shape, share)
	users := memory.users * int64(s.shape.ChunkBytes(1, false))
	v, err := s.newVariant(ctx, schedule.User, src, users, &times)
	if err != nil {
		return nil, err
	}
	defer v.close()
	if err := v.store.SetPolicy(policy); err != nil {
		return nil, err
	}
	if err := v.store.Predict(); err != nil {
		return nil, err
	}
	var before tally
	for i := range requests {
		if i == requests/2 {
			before = v.tally()
		}
		if err := v.do(ctx, i); err != nil {
			return nil, err
		}
	}
	did, f := v.tally().minus(before), v.store.Forecasts()
	return &Eviction{Share: share, Policy: policy, Prompt: did.prompt, Computed: did.computed, Models: f.Models,
		RMS: f.RMS}, nil
}

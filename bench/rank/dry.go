package rank

import (
	"context"
	"errors"

	"grebe/engine"
	"grebe/kv"
	"grebe/schedule"
)

// dry is an engine that computes nothing: it counts, and keeps the room that KV would take. What is
// reused, evicted and computed is as in a run by one client; times are a model's.
type dry struct {
	store *kv.Store
	model schedule.PrefillModel
	work  float64 // milliseconds that the jobs so far would take by the model; jobs come one at a time
}

// Backlog is none: requests come one after the other.
func (d *dry) Backlog() (float64, int) { return 0, 0 }

// Model is the prefill-time model that was given.
func (d *dry) Model() schedule.PrefillModel { return d.model }

// Do answers with zeros.
func (d *dry) Do(_ context.Context, j *engine.Job) (*engine.Result, error) {
	r := &engine.Result{Kept: make([]*kv.Entry, len(j.Plan.Segments))}
	keys := 0
	for i := range j.Plan.Segments {
		tokens, have := len(j.Plan.Segments[i].Tokens), 0
		var segment engine.Segment
		if j.Segments != nil {
			segment = j.Segments[i]
		}
		if segment.Entry != nil {
			have = segment.Entry.Len()
		}
		r.Cached += have
		r.Computed += tokens - have
		seen := 0
		for _, k := range j.Plan.Segments[i].Sees {
			seen += len(j.Plan.Segments[k].Tokens)
		}
		keys += (tokens-have)*seen + (tokens*(tokens+1)-have*(have+1))/2
		if !segment.Keep {
			continue
		}
		e, err := d.store.Reserve(kv.LayoutOf(j.Plan.Segments[i].Kind), tokens, segment.Entry)
		if errors.Is(err, kv.ErrFull) {
			continue
		}
		if err != nil {
			return nil, err
		}
		r.Kept[i] = e
	}
	d.work += d.model.Predict(r.Computed, keys, 1)
	for _, w := range j.Want {
		r.Logits = append(r.Logits, make([]float32, len(w.IDs)))
	}
	return r, nil
}

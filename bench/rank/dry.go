package rank

import (
	"context"
	"encoding/binary"
	"errors"

	"grebe/engine"
	"grebe/kv"
	"grebe/plan"
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
	same := equals(j)
	for i := range j.Plan.Segments {
		tokens, have := len(j.Plan.Segments[i].Tokens), 0
		var segment engine.Segment
		if j.Segments != nil {
			segment = j.Segments[i]
		}
		if segment.Entry != nil {
			have = segment.Entry.Len()
		}
		if same != nil && same[i] != i && have < tokens {
			if e := r.Kept[same[i]]; !segment.Keep || e != nil { // computed with its equal, and kept with it
				if r.Cached += tokens; segment.Keep {
					e.Retain()
					r.Kept[i] = e
				}
				continue
			}
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

// equals says which segment of a job is computed in the place of each, as the engine's jobs with Once have it: the
// first that has the same kind, tokens, place and view. It is nil where each is computed.
func equals(j *engine.Job) []int {
	if !j.Once {
		return nil
	}
	type meaning struct {
		kind         plan.Kind
		start        int
		tokens, sees string
	}
	same, first := make([]int, len(j.Plan.Segments)), map[meaning]int{}
	var text []byte
	for i := range same {
		s := &j.Plan.Segments[i]
		m := meaning{kind: s.Kind, start: s.Start}
		text = text[:0]
		for _, t := range s.Tokens {
			text = binary.LittleEndian.AppendUint32(text, uint32(t))
		}
		m.tokens, text = string(text), text[:0]
		for _, k := range s.Sees {
			text = binary.LittleEndian.AppendUint32(text, uint32(same[k]))
		}
		m.sees = string(text)
		if k, ok := first[m]; ok {
			same[i] = k
			continue
		}
		same[i], first[m] = i, i
	}
	return same
}

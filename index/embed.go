package index

import (
	"context"
	"errors"
	"fmt"
	"time"

	"grebe/engine"
	"grebe/prompt"
	"grebe/serve"
)

const (
	// embedTokens is the most tokens of items that are computed together.
	embedTokens = 4096
	// embedWithin is the deadline of a batch. Without one it would have that of a request, which a slow machine misses.
	embedWithin = 10 * time.Minute
)

// Embed returns a model's hidden state at the last token of each item, which stands behind the model's lead-in, one
// after the other, with the number of values of each. progress is called with the number of items that are done.
func Embed(ctx context.Context, m *serve.Model, items []*prompt.Item, progress func(done int)) ([]float32, int, error) {
	if !m.ReadsTexts() {
		return nil, 0, errors.New("a model of events does not read items' texts")
	}
	var rows []float32
	dims := 0
	for from := 0; from < len(items); {
		var batch [][]int32
		for tokens, i := 0, from; i < len(items); i++ {
			t, err := m.Prompt.ItemTokens(items[i])
			if err == nil && len(t) == 0 {
				err = errors.New("no tokens")
			}
			if err != nil {
				return nil, 0, fmt.Errorf("item %q: %w", items[i].ID, err)
			}
			if tokens += len(t); tokens > embedTokens && len(batch) > 0 {
				break
			}
			batch = append(batch, t)
		}
		l := m.Prompt.ItemsAlone(batch)
		job := &engine.Job{Plan: l.Plan, Hidden: make([]int, len(batch))}
		for i := range batch {
			job.Hidden[i] = l.Items + i
		}
		within, cancel := context.WithTimeout(ctx, embedWithin)
		r, err := m.Runner.Do(within, job)
		cancel()
		if err != nil {
			return nil, 0, fmt.Errorf("items %q to %q: %w", items[from].ID, items[from+len(batch)-1].ID, err)
		}
		for _, h := range r.Hidden {
			rows, dims = append(rows, h...), len(h)
		}
		from += len(batch)
		progress(from)
	}
	return rows, dims, nil
}

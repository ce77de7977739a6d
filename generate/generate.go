// Package generate recommends: from a user's prompt to items of the catalog, by beam search over their
// semantic IDs (xGR).
//
// The prompt is computed once; cached parts of it are reused. Each level of the IDs is then a round: one row per
// beam goes through the model, and package beam chooses continuations that are real items. All beams share the
// prompt's KV. Their own tokens, width × depth of them, are stored apart and moved in place between rounds.
//
// Rounds of different requests share batches, and the selection of one request runs while a round of another computes.
// While a request's own round computes, the next tokens of its beams are looked up and a new filter is evaluated.
// Rounds allocate no memory once there were rounds of their size.
//
// A Generator is safe for concurrent use.
package generate

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"grebe/catalog/filter"
	"grebe/compute"
	"grebe/engine"
	"grebe/plan"
	"grebe/prompt"
	"grebe/reuse"
)

var (
	// ErrNoCodes means that no item of the catalog has codes that the model has.
	ErrNoCodes = errors.New("the catalog has no item with codes of this model")
	// ErrEmpty means that the prompt has no tokens.
	ErrEmpty = errors.New("the prompt is empty: the user has no tokens, and the model no generate_instruction")
)

// Generator recommends items with one model.
type Generator struct {
	Prompt *prompt.Builder
	Do     reuse.Do
	Cache  *reuse.Cache // nil: no KV is kept between requests
	Shape  compute.Shape
	// Widths limits the beams of each round, for requests that are wider. Rounds beyond its length are not limited.
	Widths []int

	snapshot atomic.Pointer[Snapshot]
	view     atomic.Pointer[View]
	runs     sync.Pool // of *run
}

// Snapshot returns the items that new requests generate; nil before the first Use.
func (g *Generator) Snapshot() *Snapshot { return g.snapshot.Load() }

// Use makes new requests generate the items of s. Requests in flight keep their snapshot.
func (g *Generator) Use(s *Snapshot) {
	g.view.Store(nil)
	g.snapshot.Store(s)
}

// View returns the items as the model sees them; nil: as the catalog has them.
func (g *Generator) View() *View { return g.view.Load() }

// stay makes new requests generate the items of an activated version.
func (g *Generator) stay(v *View) {
	g.view.Store(v)
	g.snapshot.Store(v.snap)
}

// Request is a request for recommendations.
type Request struct {
	UserID  string
	User    []int32
	N       int
	Width   int
	TopK    int // 0: Width
	Exclude []string
	Filter  filter.Filter
	Rules   Rules
	// Whole says that User is the whole prompt, without preamble and instruction.
	Whole bool
	// OnePerPath returns only the first of the items with the same codes.
	OnePerPath bool
	// Free turns the constraint off, to measure what it costs: any code may follow any other, and paths that are not
	// items are dropped at the end. Exclude, Filter and Rules must then be empty.
	Free bool
	// Explain fills Result.Origins.
	Explain bool
	// Widen allows a second search with more beams, up to 4,096, if the first found fewer items than are eligible, or cut
	// paths that might have been sampled.
	// The second search is wider than Width, TopK and Generator.Widths allow.
	Widen bool

	whole bool // ignore Generator.Widths
}

// Item is a recommended item.
type Item struct {
	ID    string
	Codes []int32
	Score float64 // log-probability of its path, with Boost added
	Boost float64
}

// Result is the result of a request.
type Result struct {
	Items            []Item
	Short            bool // fewer than N came back
	Beam             bool // if Short: more are eligible, but the search kept too few paths
	Cut              bool // of a request with rules: a path was cut that might have changed the items
	Version          string
	Layout           prompt.Layout
	Computed, Cached int                // tokens, over all rounds
	Prompt           int                // tokens of Computed in the prompt, which is the first round
	Tiers            [plan.NumTiers]int // Cached, by tier
	Shared           engine.Shared      // tokens of Cached that were computed for another search at the same time
	Origins          []Origin           // of the segments of Layout's plan, if Explain; nil if nothing was computed
	Fetch            time.Duration
	Queue, Compute   time.Duration
	BatchTokens      int // of the prompt's batch
	Rows             int // beams computed, over all rounds
	Paths, Valid     int // paths that the last round kept, and how many are items: all, unless Free
}

// Origin is where the KV of a segment came from.
type Origin struct {
	Cached int // tokens of the segment that were not computed for the request
	Tier   plan.Tier
}

// Layout lays out the prompt of a request. shared is false if the prompt does not begin with the model's preamble.
func (g *Generator) Layout(r *Request) (l prompt.Layout, shared bool) {
	if r.Whole {
		return g.Prompt.Complete(r.User)
	}
	return g.Prompt.Generate(r.User), true
}

// maxWidth bounds the width of a second search.
const maxWidth = 4096

// Recommend generates items for a request.
func (g *Generator) Recommend(ctx context.Context, request *Request) (*Result, error) {
	snap := g.snapshot.Load()
	if snap == nil || snap.index == nil {
		return nil, ErrNoCodes
	}
	out, err := g.once(ctx, snap, request)
	if err != nil || !request.Widen || !out.Beam && !(out.Cut && request.Rules.Temperature > 0) {
		return out, err
	}
	wide := *request
	wide.Width, wide.TopK, wide.whole = min(max(request.N, 4*request.Width), maxWidth), 0, true
	wide.Width = max(wide.Width, request.Width)
	more, err := g.once(ctx, snap, &wide)
	if err != nil {
		return nil, err
	}
	// The usage of the prompt is that of the first search.
	more.Layout, more.Prompt, more.Cached, more.Tiers, more.Shared, more.Origins = out.Layout, out.Prompt, out.Cached,
		out.Tiers, out.Shared, out.Origins
	more.Computed += out.Computed
	more.Rows += out.Rows
	more.Fetch, more.Queue, more.Compute = more.Fetch+out.Fetch, more.Queue+out.Queue, more.Compute+out.Compute
	return more, nil
}

// once runs one search.
func (g *Generator) once(ctx context.Context, snap *Snapshot, request *Request) (*Result, error) {
	r, _ := g.runs.Get().(*run)
	if r == nil {
		r = &run{}
		r.meanwhile = r.prepare
	}
	defer r.close()
	r.g, r.snap, r.request = g, snap, request
	out := &Result{Version: snap.Version}
	if err := r.all(ctx, out); err != nil {
		return nil, err
	}
	out.Paths, out.Valid = r.search.Reached()
	r.results, out.Short = r.search.Results(r.results[:0], request.N)
	if request.Rules.none() {
		out.Beam = out.Short && !request.Free && r.search.Eligible(len(r.results)+1) > len(r.results)
	} else {
		out.Cut = !r.search.Certain()
		out.Beam = out.Short && out.Cut
	}
	for _, item := range r.results {
		out.Items = append(out.Items, Item{snap.table.ID(item.Item), slices.Clone(item.Codes), item.Score, item.Boost})
	}
	return out, nil
}

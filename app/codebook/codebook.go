// Package codebook makes the semantic IDs of a catalog's items on the CPU: it reads items and embeddings, runs package
// codes, and writes items with codes and the codebook. Work runs on one Machine, which its owner MUST Free.
package codebook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"

	"grebe/codes"
	"grebe/ingest"
	"grebe/internal/durable"
)

// Make makes codes for the items of a file.
type Make struct {
	Items      ingest.ItemFile
	Out        string // items with codes, NDJSON; "": none is written
	Codebook   string // where the codebook is, or is written to
	Fresh      bool   // make a new codebook even if there is one
	Options    codes.Options
	Levels     int   // of a new codebook whose Options have no Sizes; default those of Model, or 3
	Model      []int // codes of each level that the model of these items has; nil: not known
	Collisions bool  // items may share codes
	Threads    int
	// Misfit is called before the work with the sizes of the codebook's levels, if Model has not all of these codes.
	Misfit func(sizes []int)
	// Rows returns the embeddings of items, given their places in the file, one after the other.
	Rows func(ctx context.Context, items *Items, places []int) (rows []float32, dims int, err error)
}

// Result says what was made.
type Result struct {
	*codes.Report
	Kept  int `json:"kept"`  // items that had codes in the codebook
	Added int `json:"added"` // items that got codes
	Moved int `json:"moved"` // of them: items that did not get their nearest path, because another item has it
}

// Run makes the codes. Items of an existing codebook keep theirs.
func (m *Make) Run(ctx context.Context) (result *Result, err error) {
	items, err := ReadItems(ctx, m.Items)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, items.Close()) }()
	old, err := m.old()
	if err != nil {
		return nil, err
	}
	known := map[string]int{}
	if old != nil {
		for i, id := range old.IDs {
			known[id] = i
		}
	}
	var places []int
	for i, id := range items.IDs {
		if _, ok := known[id]; !ok {
			places = append(places, i)
		}
	}
	if sizes := m.sizes(len(places), old); m.Model != nil && !fit(sizes, m.Model) && m.Misfit != nil {
		m.Misfit(sizes)
	}
	made, result, err := m.add(ctx, items, places, old)
	if err != nil {
		return nil, err
	}
	if err := durable.WriteFile(m.Codebook, made.Write); err != nil {
		return nil, err
	}
	if m.Out == "" {
		return result, nil
	}
	for i := range made.IDs {
		known[made.IDs[i]] = i
	}
	levels := len(made.Levels)
	return result, durable.WriteFile(m.Out, func(w io.Writer) error {
		return items.write(ctx, w, func(id string) []int32 { return made.Paths[known[id]*levels:][:levels] })
	})
}

// old returns the codebook that is there; nil if a new one is to be made.
func (m *Make) old() (*codes.Saved, error) {
	if m.Fresh {
		return nil, nil
	}
	data, err := os.ReadFile(m.Codebook)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	old, err := codes.Read(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.Codebook, err)
	}
	if s := m.Options.Sizes; s != nil && !slices.Equal(s, old.Sizes()) {
		return nil, fmt.Errorf("%s has levels of %v codes, not %v: leave the sizes out, or make a new codebook with --fresh",
			m.Codebook, old.Sizes(), s)
	}
	return old, nil
}

// sizes returns how many codes each level has: those of an old codebook, or of a new one for n items.
func (m *Make) sizes(n int, old *codes.Saved) []int {
	switch {
	case old != nil:
		return old.Sizes()
	case m.Options.Sizes != nil:
		return m.Options.Sizes
	case m.Model == nil || m.Levels > 0 && m.Levels != len(m.Model) || slices.Min(m.Model) < 1:
		return codes.Sizes(n, cmp.Or(m.Levels, 3))
	}
	sizes := slices.Clone(m.Model)
	for l, few := range codes.Sizes(n, len(sizes)) {
		if sizes[l] > min(n, codes.MaxSize) { // a level cannot have more codes than items
			sizes[l] = few
		}
	}
	return sizes
}

// fit reports whether a model has all codes of levels with these sizes.
func fit(sizes, model []int) bool {
	if len(sizes) != len(model) {
		return false
	}
	for l := range sizes {
		if sizes[l] > model[l] {
			return false
		}
	}
	return true
}

// add gives codes to the items at places. Those of an old codebook keep theirs.
func (m *Make) add(ctx context.Context, items *Items, places []int, old *codes.Saved) (*codes.Saved, *Result, error) {
	made := &codes.Saved{}
	if old != nil {
		*made = *old
	}
	result := &Result{Kept: len(items.IDs) - len(places), Added: len(places)}
	if len(places) == 0 {
		result.Report = made.Describe(nil, made.Paths, 0)
		return made, result, nil
	}
	rows, dims, err := m.Rows(ctx, items, places)
	if err == nil && len(rows) != len(places)*dims {
		err = fmt.Errorf("%d values for %d items of %d dimensions", len(rows), len(places), dims)
	}
	if err != nil {
		return nil, nil, err
	}
	if at := slices.IndexFunc(rows, notFinite); at >= 0 {
		i := places[at/dims]
		return nil, nil, fmt.Errorf("the embedding of item %q (row %d) has a value that is not finite: %v in column %d",
			items.IDs[i], i, rows[at], at%dims)
	}
	machine, err := NewMachine(m.Threads)
	if err != nil {
		return nil, nil, err
	}
	defer machine.Free()
	spread := codes.Spread(rows, dims)
	paths, err := m.paths(ctx, machine, rows, dims, made)
	if err == nil && !m.Collisions {
		result.Moved, err = made.Resolve(machine, rows, paths, made.Paths)
	}
	if err != nil {
		return nil, nil, err
	}
	made.Paths = append(slices.Clip(made.Paths), paths...)
	made.IDs = slices.Clip(made.IDs)
	for _, i := range places {
		made.IDs = append(made.IDs, items.IDs[i])
	}
	result.Report = made.Describe(rows, made.Paths, spread)
	return made, result, nil
}

func notFinite(v float32) bool { return v != v || math.IsInf(float64(v), 0) }

// paths returns those of rows: of the codebook that is there, or of a new one.
func (m *Make) paths(
	ctx context.Context, machine *Machine, rows []float32, dims int, made *codes.Saved,
) ([]int32, error) {
	if made.Levels != nil {
		return made.Encode(machine, rows, dims)
	}
	o := m.Options
	o.Sizes = m.sizes(len(rows)/dims, nil)
	step := o.Step
	o.Step = func(p codes.Progress) error {
		if step != nil {
			if err := step(p); err != nil {
				return err
			}
		}
		return ctx.Err()
	}
	book, paths, err := codes.Train(machine, rows, dims, o)
	if err != nil {
		return nil, err
	}
	made.Book = *book
	return paths, nil
}

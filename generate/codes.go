package generate

import (
	"fmt"
	"hash/maphash"
	"strings"

	"grebe/catalog/history"
	"grebe/internal/human"
	"grebe/prompt"
)

// maxExamples bounds the items with unusable codes that a message names.
const maxExamples = 3

// unusable names the first items of a version whose codes the model does not have.
func (x *indexer) unusable(v *history.Version) (examples []string) {
	t := v.Table()
	t.Paths(v.Live(), func(slot uint32, codes []int32) {
		if len(examples) < maxExamples && len(codes) > 0 && !x.has(codes) {
			_, err := x.prompt.CodeTokens(codes)
			examples = append(examples, example(t.ID(slot), err))
		}
	})
	return examples
}

func example(id string, err error) string { return fmt.Sprintf("%.64q: %v", id, err) }

// Codes is a model for a Forecast.
type Codes struct {
	Name   string
	Prompt *prompt.Builder
	Items  int // items that it can generate now
}

// Forecast predicts how changes of items affect the items that each model can generate. It is not safe for concurrent
// use.
type Forecast struct {
	models []Impact
	rules  []*prompt.Builder
	find   func(id string) (*prompt.Item, bool)
	seed   maphash.Seed
	after  map[uint64]uint64 // by the hash of an id: the models that can generate it after the changes, one bit each
}

// Impact is the effect of changes on one model.
type Impact struct {
	Model    string   `json:"model"`
	Before   int      `json:"items_before"` // items that it can generate
	After    int      `json:"items_after"`
	Unusable int      `json:"unusable"` // lines with codes that the model does not have
	Examples []string `json:"examples,omitempty"`
}

// maxForecast bounds the models of a Forecast.
const maxForecast = 64

// NewForecast returns a Forecast without changes. find returns the present form of an item. Models beyond the first
// 64 are ignored.
func NewForecast(find func(id string) (*prompt.Item, bool), models ...Codes) *Forecast {
	f := &Forecast{find: find, seed: maphash.MakeSeed(), after: map[uint64]uint64{}}
	for _, m := range models[:min(len(models), maxForecast)] {
		f.models = append(f.models, Impact{Model: m.Name, Before: m.Items, After: m.Items})
		f.rules = append(f.rules, m.Prompt)
	}
	return f
}

// usable returns the models that have the codes, as a bit mask.
func (f *Forecast) usable(codes []int32) (mask uint64) {
	if len(codes) == 0 {
		return 0
	}
	for i, b := range f.rules {
		if _, err := b.CodeTokens(codes); err == nil {
			mask |= 1 << i
		}
	}
	return mask
}

// Put adds the change that puts an item.
func (f *Forecast) Put(id string, codes []int32) {
	mask := f.usable(codes)
	for i := range f.models {
		if m := &f.models[i]; len(codes) > 0 && mask>>i&1 == 0 {
			if m.Unusable++; len(m.Examples) < maxExamples {
				_, err := f.rules[i].CodeTokens(codes)
				m.Examples = append(m.Examples, example(id, err))
			}
		}
	}
	f.change(id, mask)
}

// Delete adds the change that deletes an item.
func (f *Forecast) Delete(id string) { f.change(id, 0) }

func (f *Forecast) change(id string, mask uint64) {
	key := maphash.String(f.seed, id)
	before, known := f.after[key]
	if !known {
		if it, ok := f.find(id); ok {
			before = f.usable(it.Codes)
		}
	}
	f.after[key] = mask
	for i := range f.models {
		f.models[i].After += int(mask>>i&1) - int(before>>i&1)
	}
}

// Impacts returns the effect of the changes on each model.
func (f *Forecast) Impacts() []Impact { return f.models }

// Halves reports whether the model would lose more than half of its items.
func (m *Impact) Halves() bool { return 2*m.After < m.Before }

// Warning describes the items that the model cannot generate, or returns "" if there are none.
func (m *Impact) Warning() string {
	if m.Unusable == 0 {
		return ""
	}
	them := "them"
	if m.Unusable == 1 {
		them = "it"
	}
	return fmt.Sprintf("model %q does not have the codes of %s and never generates %s: %s", m.Model,
		human.Count(m.Unusable, "item"), them, strings.Join(m.Examples, "; "))
}

// Models returns the models that the Keeper makes snapshots for, with the number of items that each can generate.
func (k *Keeper) Models() []Codes {
	var out []Codes
	for _, t := range k.following() {
		out = append(out, Codes{Name: t.Name, Prompt: t.Generator.Prompt, Items: int(t.latest.Load())})
	}
	return out
}

package generate

import (
	"fmt"
	"hash/maphash"
	"strings"

	"grebe/catalog/history"
	"grebe/prompt"
)

// maxExamples bounds how many items with unusable codes are named.
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

// Codes is a model whose codes items are checked against.
type Codes struct {
	Name   string
	Prompt *prompt.Builder
	Items  int // that it can generate now
}

// Forecast says what some changes of items would leave each model to generate. It is for one goroutine.
type Forecast struct {
	models []Impact
	rules  []*prompt.Builder
	find   func(id string) (*prompt.Item, bool)
	seed   maphash.Seed
	after  map[uint64]uint64 // by the hash of an id: the models that can generate it after the changes so far, a bit each
}

// Impact is what changes would do to a model.
type Impact struct {
	Model    string   `json:"model"`
	Before   int      `json:"items_before"` // that it can generate
	After    int      `json:"items_after"`
	Unusable int      `json:"unusable"` // lines with codes that the model does not have
	Examples []string `json:"examples,omitempty"`
}

// maxForecast bounds the models of a Forecast.
const maxForecast = 64

// NewForecast begins a forecast. find returns items as they are. Models beyond the first 64 are left out.
func NewForecast(find func(id string) (*prompt.Item, bool), models ...Codes) *Forecast {
	f := &Forecast{find: find, seed: maphash.MakeSeed(), after: map[uint64]uint64{}}
	for _, m := range models[:min(len(models), maxForecast)] {
		f.models = append(f.models, Impact{Model: m.Name, Before: m.Items, After: m.Items})
		f.rules = append(f.rules, m.Prompt)
	}
	return f
}

// usable returns the models that have the codes.
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

// Put takes in that an item is added or replaced.
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

// Delete takes in that an item is removed.
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

// Impacts returns what the changes so far do to each model.
func (f *Forecast) Impacts() []Impact { return f.models }

// Halves reports whether a model would be left with fewer than half of its items.
func (m *Impact) Halves() bool { return 2*m.After < m.Before }

// Warning says which of n items the model cannot generate; "" if it can generate all that have codes.
func (m *Impact) Warning() string {
	if m.Unusable == 0 {
		return ""
	}
	return fmt.Sprintf("model %q does not have the codes of %d items and never generates them: %s", m.Model, m.Unusable, strings.Join(m.Examples, "; "))
}

// Models returns the models that follow the catalog, with how many items of its latest version each can generate.
func (k *Keeper) Models() []Codes {
	var out []Codes
	for _, t := range k.following() {
		out = append(out, Codes{Name: t.Name, Prompt: t.Generator.Prompt, Items: int(t.latest.Load())})
	}
	return out
}

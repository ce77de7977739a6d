package hstu

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"grebe/internal/readfile"
)

// ItemsFile lists the ids of a checkpoint's items.
const ItemsFile = "items.json"

// Vocabulary says which token stands for which row. With A kinds of actions (the sets of action types, and
// the candidate as the last) the events of item i are the tokens i·A … i·A+A−1. Behind those of all items
// come the contextual features: for each slot the absent one, then its rows. A model with content features has these
// numbers as the first of each row's content, and hashes as tokens (Identity).
type Vocabulary struct {
	cfg   *Config
	names []string         // of items by row; nil: unknown
	rows  map[string]int32 // of items by name
	slots []slot
	size  int
}

// slot is a contextual row.
type slot struct {
	feature int
	first   int // token of the absent one
}

// maxItemsFile bounds the file of items' ids.
const maxItemsFile = 4 << 30

func newVocabulary(cfg *Config, dir string) (Vocabulary, error) {
	v := Vocabulary{cfg: cfg, size: cfg.Items * cfg.actions()}
	for i, f := range cfg.Features {
		for range f.MaxLength {
			v.slots = append(v.slots, slot{i, v.size})
			v.size += f.Rows + 1
		}
	}
	path := filepath.Join(dir, ItemsFile)
	raw, err := readfile.Regular(path, maxItemsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return v, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &v.names)
	}
	if err == nil && len(v.names) != cfg.Items {
		err = fmt.Errorf("%d ids for %d items", len(v.names), cfg.Items)
	}
	if err != nil {
		return v, fmt.Errorf("%s: %w", path, err)
	}
	v.rows = make(map[string]int32, len(v.names))
	for i, name := range v.names {
		if _, twice := v.rows[name]; twice {
			return v, fmt.Errorf("%s: %q is listed twice", path, name)
		}
		v.rows[name] = int32(i)
	}
	return v, nil
}

// Vocab returns the number of tokens: all numbers of 31 bits where they are hashes (Identity).
func (v *Vocabulary) Vocab() int {
	if v.Featured() {
		return 1 << 31
	}
	return v.size
}

// Named reports whether the checkpoint names its items; else an item's row is its identifier.
func (v *Vocabulary) Named() bool { return v.names != nil }

// Row returns the row of an item by its id.
func (v *Vocabulary) Row(id string) (int32, bool) {
	row, ok := v.rows[id]
	return row, ok
}

// Name returns the id of a row's item; "" when it has none.
func (v *Vocabulary) Name(row int32) string {
	if v.names == nil {
		return ""
	}
	return v.names[row]
}

// Items returns the number of items.
func (v *Vocabulary) Items() int { return v.cfg.Items }

// MaxEvents returns how many events a history has at most.
func (v *Vocabulary) MaxEvents() int { return v.cfg.MaxSeqLen - 2 - len(v.slots) }

// Event returns the token of what a user did with the item of a row.
func (v *Vocabulary) Event(row, action int32) int32 {
	set := int32(0)
	for i, w := range v.cfg.ActionWeights {
		if int(action)&w != 0 {
			set |= 1 << i
		}
	}
	return row*int32(v.cfg.actions()) + set
}

// Candidate returns the token of the item of a row as a candidate.
func (v *Vocabulary) Candidate(row int32) int32 {
	a := int32(v.cfg.actions())
	return row*a + a - 1
}

// Context returns the tokens of the contextual rows. features has row numbers by feature name, of which the
// first MaxLength are used; rows is how many events and candidates the request has.
func (v *Vocabulary) Context(features map[string][]int32, rows int) ([]int32, error) {
	if len(v.slots) == 0 {
		return nil, nil
	}
	out := make([]int32, 0, len(v.slots))
	used := make([]int, len(v.cfg.Features))
	for _, s := range v.slots {
		f := &v.cfg.Features[s.feature]
		values, n := features[f.Name], used[s.feature]
		used[s.feature]++
		if n >= len(values) || rows < f.MinRows {
			out = append(out, int32(s.first))
			continue
		}
		if values[n] < 0 || int(values[n]) >= f.Rows {
			return nil, fmt.Errorf("hstu: feature %q is row %d, outside its table of %d", f.Name, values[n], f.Rows)
		}
		out = append(out, int32(s.first)+1+values[n])
	}
	return out, nil
}

// split returns what a token is: the row of an item and of the actions' table, or of the contexts'. Absent
// ones are −1.
func (v *Vocabulary) split(token int32) (item, act, context int32, err error) {
	a := int32(v.cfg.actions())
	events := int32(v.cfg.Items) * a
	switch {
	case token < 0 || int(token) >= v.size:
		return 0, 0, 0, fmt.Errorf("token %d is outside the vocabulary of %d", token, v.size)
	case token >= events:
		return -1, -1, token - events, nil
	case a == 1:
		return token, -1, -1, nil
	}
	return token / a, token % a, -1, nil
}

// Item returns the row of an event's or a candidate's item, −1 when the token is a contextual row.
func (v *Vocabulary) Item(token int32) int32 {
	item, _, _, err := v.split(token)
	if err != nil {
		return -1
	}
	return item
}

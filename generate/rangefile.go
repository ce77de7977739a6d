package generate

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"grebe/catalog/filter"
	"grebe/catalog/history"
)

// rangesFile is the content of ranges.json: the attributes that requests had ranges of. The next start orders their
// values before it serves. It is only a hint: a file that is missing or damaged makes the first request slower.
type rangesFile struct {
	Ranges []rangeOf `json:"ranges"`
}

type rangeOf struct {
	Attribute string `json:"attribute"`
	Kind      string `json:"kind"` // "number" or "time"
}

// maxRangesFile bounds the bytes that are read.
const maxRangesFile = 1 << 20

func (k *Keeper) rangesName() string { return filepath.Join(k.dir, "ranges.json") }

// readRanges returns the attributes that requests of earlier processes had ranges of.
func (k *Keeper) readRanges() []column {
	if k.dir == "" {
		return nil
	}
	f, err := os.Open(k.rangesName())
	if missing(err) {
		return nil
	}
	var stored rangesFile
	if err == nil {
		err = json.NewDecoder(io.LimitReader(f, maxRangesFile)).Decode(&stored)
		_ = f.Close() // it was read
	}
	if err != nil {
		k.log.Warn("the attributes of earlier ranges cannot be read: the first range of each is slower",
			"file", k.rangesName(), "error", err)
		return nil
	}
	var out []column
	for _, r := range stored.Ranges {
		for _, kind := range []filter.Kind{filter.Number, filter.Time} {
			if r.Kind == kind.String() && len(r.Attribute) <= maxNamed && len(out) < maxOrdered {
				out = append(out, column{r.Attribute, kind})
			}
		}
	}
	return out
}

// order makes the snapshot in use ready for ranges of some attributes.
func (t *target) order(columns []column) {
	s := t.Generator.Snapshot()
	if s == nil || s.index == nil {
		return
	}
	for _, of := range columns {
		s.column(of)
	}
}

// saveRanges stores the attributes that requests had ranges of, if there are new ones.
func (k *Keeper) saveRanges() {
	if k.dir == "" {
		return
	}
	k.mu.Lock()
	known, targets := k.ranges, k.targets
	k.mu.Unlock()
	all := slices.Clone(known)
	for _, t := range targets {
		s := t.Generator.Snapshot()
		if s == nil {
			continue
		}
		for _, of := range s.columns() {
			if !slices.Contains(all, of) && len(all) < maxOrdered {
				all = append(all, of)
			}
		}
	}
	if len(all) == len(known) {
		return
	}
	slices.SortFunc(all, func(a, b column) int {
		if c := strings.Compare(a.name, b.name); c != 0 {
			return c
		}
		return int(a.kind) - int(b.kind)
	})
	stored := rangesFile{}
	for _, of := range all {
		stored.Ranges = append(stored.Ranges, rangeOf{of.name, of.kind.String()})
	}
	err := history.WriteFile(k.rangesName(), func(w io.Writer) error { return json.NewEncoder(w).Encode(stored) })
	if err != nil {
		k.log.Warn("the attributes of ranges cannot be stored: after a restart the first range of each is slower",
			"error", err)
		return
	}
	k.mu.Lock()
	k.ranges = all
	k.mu.Unlock()
}

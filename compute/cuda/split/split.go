// Package split chooses how the GPU's attention is cut into units of work: whole tiles of queries, tiles
// whose keys are cut evenly into parts of at most so many keys, or cut so that all blocks end at once. Parts
// keep multiprocessors busy that had no tile; each of them costs time of its own, and so does merging them.
//
// What is best depends on the shape of a batch and on the GPU. A Model predicts a time for each way from
// what the busiest block would have to do (Load): steps, units, parts, and the parts of a tile that are
// merged. Its weights are fitted to times that were measured on the GPU at hand, and Choose takes the way
// with the least predicted time. Without a model, or where a model does not expect to gain more than its
// own error, tiles are cut as a fixed estimate says (Fixed).
//
// The package is pure: it measures nothing. A choice depends on the model and the batch's shape alone.
package split

// Form is a way to cut tiles.
type Form int

// Forms.
const (
	Estimated Form = iota // whole or balanced, whichever fixed costs make out to be faster
	Whole                 // not at all
	Balanced              // where blocks have room left, so that all end at about the same time
	Even                  // every tile into parts of about the same size
)

func (f Form) String() string { return [...]string{"estimated", "whole", "balanced", "even"}[f] }

// Split says how tiles are cut.
type Split struct {
	Form Form `json:"form"`
	// Steps of keys that a part of form Even has at most.
	Steps int `json:"steps,omitempty"`
}

// Fixed is the split that needs no measurements.
var Fixed = Split{Form: Estimated}

// Candidates are what a model chooses from; Fixed is the first.
func Candidates() []Split { return candidates[:] }

var candidates = [...]Split{Fixed, {Form: Whole}, {Form: Balanced},
	{Even, 2}, {Even, 3}, {Even, 4}, {Even, 6}, {Even, 8}, {Even, 12}, {Even, 16}, {Even, 24}}

// MaxParts is the most parts that a tile is cut into.
const MaxParts = 16

// Work is what a batch asks of a layer's attention before it is cut.
type Work struct {
	Counts []int32 // by steps, how many tiles have so many; of one KV head
	Heads  int     // KV heads
	Blocks int     // that work at a time
	Parts  int     // that there is memory for
}

// Totals returns the tiles of all heads, their steps, and the steps of the longest.
func (w *Work) Totals() (tiles, steps, longest int) {
	for s, n := range w.Counts {
		tiles += int(n)
		steps += int(n) * s
		if n > 0 {
			longest = s
		}
	}
	return tiles * w.Heads, steps * w.Heads, longest
}

// margin is what a split has to be faster than Fixed by: a model's predictions are off by about as much.
const margin = 0.03

// crowd tiles per block are enough to keep all busy without cutting any.
const crowd = 6

// Choose returns the split with the least predicted time. A nil model chooses Fixed.
func (m *Model) Choose(w *Work) Split {
	tiles, _, longest := w.Totals()
	if m == nil || m.report.Useless || tiles == 0 || tiles > crowd*w.Blocks {
		return Fixed
	}
	best, least := Fixed, m.Time(w, Fixed)*(1-margin)
	for _, s := range candidates[1:] {
		if s.Form == Even && s.Steps >= longest {
			break // as Whole
		}
		if t := m.Time(w, s); t >= 0 && t < least {
			best, least = s, t
		}
	}
	return best
}

// Time returns the predicted microseconds of a layer, or −1 where the split is not possible.
func (m *Model) Time(w *Work, s Split) float64 {
	l, ok := w.Load(s)
	if !ok {
		return -1
	}
	return m.predict(&l)
}

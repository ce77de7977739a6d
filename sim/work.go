package sim

import "slices"

// Work is what a batch, or one call of it, computes.
type Work struct {
	Requests int `json:"requests"`
	Rows     int `json:"rows"`     // tokens computed
	Keys     int `json:"keys"`     // keys attended, summed over the rows
	Tiled    int `json:"tiled"`    // keys attended, summed over the tiles of rows: see Batches.Tile
	Segments int `json:"segments"` // that have rows
	Cached   int `json:"cached"`   // tokens whose KV is read, not computed
}

// Add adds the work of others.
func (w *Work) Add(o *Work) {
	w.Requests += o.Requests
	w.Rows += o.Rows
	w.Keys += o.Keys
	w.Tiled += o.Tiled
	w.Segments += o.Segments
	w.Cached += o.Cached
}

// sub takes the work off that need not be done.
func (w *Work) sub(o *Work) {
	w.Rows -= o.Rows
	w.Keys -= o.Keys
	w.Tiled -= o.Tiled
	w.Segments -= o.Segments
}

// Segment adds tokens from..to of a segment that also attends to seen keys before it. A tile is so many rows; below 2:
// rows are computed one by one.
func (w *Work) Segment(from, to, seen, tile int) {
	if to <= from {
		return
	}
	keys := causal(from, to, seen)
	w.Rows += to - from
	w.Keys += keys
	w.Segments++
	if tile < 2 {
		w.Tiled += keys
		return
	}
	// Tiles are counted from the segment's first token, and each goes through the keys of its last row.
	first, last := from/tile, (to-1)/tile
	w.Tiled += (last-first+1)*seen + tile*(last-first)*(last+first+1)/2 + to
}

// causal returns the keys of rows from..to of a segment that also attends to seen keys before it.
func causal(from, to, seen int) int { return (to-from)*seen + (to*(to+1)-from*(from+1))/2 }

// Batches predicts the milliseconds of a batch from more than schedule.PrefillModel knows. Nodes decide with that one,
// as servers do: Batches only say how long a batch takes.
type Batches struct {
	Fixed   float64 `json:"fixed_ms"`   // per batch
	Request float64 `json:"request_ms"` // per request
	Segment float64 `json:"segment_ms"` // per segment that has rows
	Row     float64 `json:"row_ms"`     // per token computed
	// Multiple is the rows that products compute together: fewer take as long. 0 or 1: each row takes its time.
	Multiple int `json:"row_multiple,omitempty"`
	// Sizes are the rows that products of large batches are tuned for, ascending. Smaller batches than the first one are
	// tuned for their very size and run as one graph. Larger ones take Large longer, because their kernels are launched
	// one by one, and Spare for each row up to the next size, whose products they use.
	Sizes []int   `json:"sizes,omitempty"`
	Large float64 `json:"large_ms,omitempty"`
	Spare float64 `json:"spare_ms,omitempty"`
	// Tile is the rows of a segment that attend together. The last tile of a segment takes as long as a full one, so that
	// short segments cost more than their rows.
	Tile   int     `json:"tile_rows"`
	Tiled  float64 `json:"tile_key_ms"` // per key that a tile attends to
	Cached float64 `json:"cached_ms"`   // per token whose KV is read, not computed
}

// Predict returns the time of a batch in milliseconds.
func (b *Batches) Predict(w *Work) float64 {
	rows, spare, large := b.Products(w.Rows)
	ms := b.Fixed + float64(w.Requests)*b.Request + float64(w.Segments)*b.Segment + float64(rows)*b.Row +
		float64(spare)*b.Spare +
		float64(w.Tiled)*b.Tiled + float64(w.Cached)*b.Cached
	if large {
		ms += b.Large
	}
	return ms
}

// Products returns the rows that products compute for a batch, how many are missing to the size that they are tuned
// for, and whether the batch is larger than the first size.
func (b *Batches) Products(rows int) (computed, spare int, large bool) {
	if b.Multiple > 1 {
		rows = (rows + b.Multiple - 1) / b.Multiple * b.Multiple
	}
	if len(b.Sizes) == 0 || rows <= b.Sizes[0] {
		return rows, 0, false
	}
	for _, n := range b.Sizes {
		if rows <= n {
			return rows, n - rows, true
		}
	}
	return rows, 0, true
}

func (b *Batches) valid() bool {
	least := min(b.Fixed, b.Request, b.Segment, b.Row, b.Large, b.Spare, b.Tiled, b.Cached)
	return least >= 0 && b.Tile >= 0 && b.Multiple >= 0 && slices.IsSorted(b.Sizes) && b.Row+b.Tiled > 0
}

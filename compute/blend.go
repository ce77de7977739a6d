package compute

import "fmt"

// Blender is a Runner for batches in which KV from anywhere stands in for some rows' own (RCL-5, RCL-6). Layers up
// to some layer compute all rows; the chunks then get the KV of the others from elsewhere, and Keep leaves
// the rows that are computed on:
//
//	Begin · Embed · { QKV · Attend · … } · QKV · Attend · Place · Received · Keep · Output · FFN · { QKV · … }
//
// What stood in for a row that Keep left is overwritten by the row's own K and V, layer by layer, before
// anything attends to it. Segments of which rows were dropped before the last layer have no transient
// chunks, and K and V are F32 or BF16: CheckKept.
type Blender interface {
	Runner
	// Received sets out[r], one value per row of the batch, to the attention that row r's token received from the
	// rows of the batch in the layer whose Attend was last: probabilities, summed over the rows that see it and
	// averaged over query heads. It is called before anything but Place follows that Attend, and no row was
	// dropped before.
	Received(out []float32) error
	// Place copies K and V of the layers from on to where parts say, turning K. Parts do not overlap in what they
	// write, and read no chunk that is written. It is called after Begin and before the QKV of layer from. A
	// device may do it as late as it wants, and leave out rows that are computed: parts and what they read MUST
	// stay unchanged until the batch's results were returned. A second call is for other rows. Layers that follow find it
	// there; a device may have it elsewhere, and leave in the chunks what they held.
	Place(from int, parts []Part)
}

// Starter is a Runner that collects operations before it computes them.
type Starter interface {
	// Start has it begin with those that it has, and returns at once: the caller is going to do something else before
	// it asks for a result.
	Start()
}

// Part is a run of tokens whose KV stands in for that of tokens of a segment.
//
// K is turned as Rope says, by Turn instead of a position and without Scale, which it has already: in
// float32 for F32, and rounded to nearest from float32 for BF16.
type Part struct {
	Segment int   // of the batch, which computes the tokens
	At      int   // its first token there
	Tokens  int   // of them
	From    Chunk // where the KV lies; not transient
	First   int   // its first token there
	Turn    int   // positions by which K is turned: new − old; 0 copies the bits
}

// CheckParts refuses parts that do not fit the batch, so that a wrong one is an error and not a wild write.
func (b *Batch) CheckParts(s *Shape, parts []Part) error {
	if s.KV == FP8 || s.Pointwise != nil {
		return fmt.Errorf("compute: KV in %v cannot be moved to other positions", s.KV)
	}
	for i := range parts {
		p := &parts[i]
		if p.Segment < 0 || p.Segment >= len(b.Segments) {
			return fmt.Errorf("compute: part %d is of segment %d of %d", i, p.Segment, len(b.Segments))
		}
		g := &b.Segments[p.Segment]
		if p.Tokens < 1 || p.At < g.Cached || p.At > g.Len-p.Tokens {
			return fmt.Errorf("compute: part %d writes tokens %d to %d of segment %d, which computes %d to %d",
				i, p.At, p.At+p.Tokens, p.Segment, g.Cached, g.Len)
		}
		if c := &p.From; p.First < 0 || p.First > c.Tokens-p.Tokens || c.Transient ||
			c.size() < s.ChunkBytes(c.Tokens, false) {
			return fmt.Errorf("compute: part %d reads tokens %d to %d of a chunk for %d in %d bytes",
				i, p.First, p.First+p.Tokens, c.Tokens, c.size())
		}
		if g.transient() {
			return fmt.Errorf("compute: part %d writes to segment %d, whose KV is transient", i, p.Segment)
		}
	}
	return nil
}

// CheckPartsHost is CheckParts for a device that uses the chunks' Bytes.
func (b *Batch) CheckPartsHost(s *Shape, parts []Part) error {
	for i := range parts {
		if parts[i].From.Bytes == nil {
			return fmt.Errorf("compute: part %d at %#x is not in the host's memory", i, parts[i].From.Addr)
		}
	}
	return b.CheckParts(s, parts)
}

// CheckKept refuses to go on with a further layer when of the batch's rows only some were kept, ascending,
// and the KV of the others is not in the chunks.
func (b *Batch) CheckKept(s *Shape, rows []int32) error {
	if len(rows) == len(b.Tokens) {
		return nil
	}
	if s.KV == FP8 || s.Pointwise != nil {
		return fmt.Errorf("compute: only %d of %d rows were kept, and KV in %v does not stand in for the others", len(rows),
			len(b.Tokens), s.KV)
	}
	for i := range b.Segments {
		g, kept := &b.Segments[i], 0
		for ; len(rows) > 0 && int(rows[0]) < g.First+g.Rows(); rows = rows[1:] {
			kept++
		}
		if kept < g.Rows() && g.transient() {
			return fmt.Errorf("compute: %d of %d rows of segment %d were kept, whose KV is transient", kept, g.Rows(), i)
		}
	}
	return nil
}

// transient reports whether a chunk is.
func (s *Segment) transient() bool {
	for i := range s.Chunks {
		if s.Chunks[i].Transient {
			return true
		}
	}
	return false
}

// Package compute is the contract between a model and the device that runs it: a few fused
// operations over a batch of segments, not a tensor library.
//
// A Device packs weights once and opens Runners. A Runner owns the activations of one batch at a
// time and runs the operations of a decoder layer on them in this order:
//
//	Begin · Embed · { QKV · Attend · Output · FFN } per layer · Logits, Project or Hidden
//
// The hidden state x has one row of float32 per computed token and never leaves the device; only
// Logits, Project and Hidden copy results out. Every operation is defined by compute/ref, which is written to
// be obviously right; computetest compares every device with it.
//
// A device may run the rounds of beam searches by itself: see Searcher. It may go on with some rows of a batch,
// with KV from elsewhere in place of the others': see Blender.
//
// A Runner is used by one goroutine at a time. Operations return no error: a device that fails
// keeps the first failure and returns it from Logits, Project and Hidden.
package compute

import (
	"errors"
	"fmt"
)

// ErrNoMemory says that a device has no memory left for what was to be computed. Nothing of it is under way, and what
// takes less memory may succeed.
var ErrNoMemory = errors.New("compute: the device is out of memory")

// Trimmer is a Runner that keeps memory from batch to batch, so as not to take it again.
type Trimmer interface {
	// Trim gives back what the next batch can take again. Results of the last batch are lost.
	Trim()
}

// DType is a number format of stored values.
type DType uint8

const (
	F32 DType = iota
	BF16
	F16 // in checkpoints only
	// FP8 is e4m3, in chunks with a scale for each head's K and V of a chunk, and as a format of weights like INT8.
	FP8
	// INT8 is a format of weights: each row of a matrix, an output, has a scale. Products round their input to
	// int8 too, with a scale for each row of it, see Linear. Devices that compute in it are a Quantiser.
	INT8
)

// Size returns the bytes of one value.
func (t DType) Size() int {
	switch t {
	case F32:
		return 4
	case FP8, INT8:
		return 1
	}
	return 2
}

func (t DType) String() string {
	switch t {
	case F32:
		return "f32"
	case BF16:
		return "bf16"
	case F16:
		return "f16"
	case FP8:
		return "fp8"
	case INT8:
		return "int8"
	}
	return fmt.Sprintf("dtype(%d)", uint8(t))
}

// Tensor is a row-major matrix in host memory, as a checkpoint stores it. A vector has one row.
type Tensor struct {
	DType      DType
	Rows, Cols int
	Data       []byte // little-endian, Rows·Cols·DType.Size() bytes
	// Scales are those of the rows of an INT8 or FP8 matrix: a value is its integer, −127 to 127, or its number in
	// e4m3, times the scale of its row.
	Scales []float32
}

// Linear is a weight matrix [out][in] packed for a device.
type Linear interface {
	Out() int
	In() int
	Bytes() int64 // device memory it holds
}

// Vector is a short vector of float32 on a device: a bias or a norm's gain.
type Vector interface {
	Len() int
}

// Table is a matrix whose single rows are used: the embedding and the output projection.
type Table interface {
	Rows() int
	Cols() int
	Bytes() int64 // device memory it holds; 0 when it reads the checkpoint's mapping
}

// Quantiser is a Device that computes in INT8 or FP8 (Linear and GateUp with that dt, from tensors of any format but
// the other one).
//
// A matrix that is not INT8 is quantised row by row: the scale is the row's largest magnitude over 127, in
// float32, and values are divided by it and rounded to the nearest integer, ties to even, by a product with
// 127 over that magnitude. So is each row that a product is given. Sums of products of integers are exact;
// they are converted to float32 and multiplied by the weights' scale, then by the row's. A row with a value
// that is infinite or no number yields NaN; one whose values are all below 2⁻¹⁰⁰ counts as zeros.
//
// FP8 is the same with e4m3 in the place of integers and 448 in that of 127. Sums of products are those of
// float32 or of a little less, as the device adds them.
type Quantiser interface {
	Device
	// Quantises reports whether the device computes in dt, INT8 or FP8.
	Quantises(dt DType) bool
}

// Device packs weights and opens runners.
type Device interface {
	// Name says what runs, for people: "cpu (amx-bf16, 2 threads)".
	Name() string
	// Linear packs the rows of parts, one after the other, as one matrix that computes in dt: F32, or
	// BF16 (bf16 weights; accumulation in float32), or INT8 or FP8 on a Quantiser. The tensors' data is not used
	// after the return. Runners of one device may mix BF16 with FP8, and any with INT8.
	Linear(dt DType, parts ...Tensor) (Linear, error)
	// GateUp packs the two matrices of a gated feed-forward layer so that FFN can fuse their product.
	GateUp(dt DType, gate, up Tensor) (Linear, error)
	// Vector converts t, which has one row.
	Vector(t Tensor) (Vector, error)
	// Table takes t as it is. The device MAY keep reading t.Data until Close.
	Table(t Tensor) (Table, error)
	// Memory is where the chunks of its runners' batches live. It is the same one at every call.
	Memory() Memory
	// Open returns a runner for models of shape s and batches of up to maxRows computed tokens.
	// The caller MUST close it.
	Open(s Shape, maxRows int) (Runner, error)
	// Close releases the device. All runners MUST be closed before, and all of its memory freed.
	Close() error
}

// Shape holds the numbers of a decoder that its operations need.
type Shape struct {
	Layers  int
	Hidden  int
	Heads   int // query heads, a multiple of KVHeads
	KVHeads int
	HeadDim int // even
	Inter   int // width of the feed-forward layer
	Eps     float32
	KV      DType // format of K and V in chunks: F32, BF16 or FP8
	Rope    Rope
	// Pointwise is nil for decoders. With it the operations are those of STU.
	Pointwise *Pointwise
}

// Rope holds the rotary embedding: pair i of a head, (v[i], v[i+HeadDim/2]), turns by
// position·InvFreq[i], computed in float32; cosines and sines are scaled by Scale.
type Rope struct {
	InvFreq []float32 // HeadDim/2 values
	Scale   float32   // 1 for most models
}

// ChunkBytes returns the size of a chunk for tokens tokens: all layers, or one for a transient chunk.
func (s *Shape) ChunkBytes(tokens int, transient bool) int {
	n := 2 * s.KVHeads * s.HeadBytes(tokens)
	if !transient {
		n *= s.Layers
	}
	return n
}

// scaleBytes is the room of a scale, so that what follows it stays aligned.
const scaleBytes = 16

// HeadBytes returns the bytes of one head's K, or V, of one layer in a chunk for tokens tokens.
func (s *Shape) HeadBytes(tokens int) int {
	n := s.HeadDim * tokens * s.KV.Size()
	if s.KV != FP8 {
		return n
	}
	return scaleBytes + (n+scaleBytes-1)/scaleBytes*scaleBytes
}

// ScaleBytes returns the bytes ahead of the first token of each head's K, or V, in a chunk. Where they are
// not 0 they begin with the scale, a float32.
func (s *Shape) ScaleBytes() int {
	if s.KV != FP8 {
		return 0
	}
	return scaleBytes
}

// TokenAt returns where the K of a head, or its V, of a token begins in a chunk for tokens tokens; i counts
// the K of all heads, then the V. Layer is 0 in a transient chunk.
func (s *Shape) TokenAt(layer, i, token, tokens int) int {
	return (layer*2*s.KVHeads+i)*s.HeadBytes(tokens) + s.ScaleBytes() + token*s.HeadDim*s.KV.Size()
}

// Chunk is a contiguous piece of KV, laid out [layer][k|v][head][token][dim] with room for Tokens
// tokens. K is stored rotated. A transient chunk has room for one layer only, which every layer
// overwrites: for segments that nobody keeps. It lies in the Memory of the device that uses it, or of
// its Host where that gives addresses; a Block makes one.
//
// In FP8 each head's K, and V, of a layer begins with its scale, see HeadBytes: values are stored as
// e4m3 of value/scale. The scale is fixed by whoever writes the chunk's first token, as the power of two
// at or below the largest magnitude of its vector (1 for a vector of zeros or of no numbers), and holds for
// all tokens of the chunk, whenever they are written. Later values saturate at 448 scales, and lose digits
// below 2⁻⁶ of one. So what a token becomes depends on its own values and on its chunk's first token,
// never on how many tokens a batch computes.
type Chunk struct {
	Addr      uint64 // as in Block
	Bytes     []byte // as in Block
	Size      int    // bytes, where Bytes is nil
	Tokens    int
	Transient bool
}

// size returns the bytes there are.
func (c *Chunk) size() int {
	if c.Bytes != nil || c.Addr == 0 {
		return len(c.Bytes)
	}
	return c.Size
}

// Segment is a run of tokens that attends causally to itself and in full to the segments in Sees.
// Its first Cached tokens have their K and V in Chunks already; the other Len−Cached are computed
// in this batch as rows First, First+1, …, and their K and V are written to Chunks.
type Segment struct {
	First  int
	Cached int
	Len    int
	// Sees are indices into Batch.Segments, lower than this segment's own. A segment that is listed twice counts as two
	// with equal KV; where a Blender goes on with some rows, each is listed once.
	Sees   []int32
	Chunks []Chunk // in order, together room for Len tokens; only the last may have room to spare

	// For Shape.Pointwise only:
	Start int     // position of the first token, cached or not; the others follow it
	Scale float32 // of the results of its rows; 0: Pointwise.Scale
}

// Rows returns the number of rows computed for the segment.
func (s *Segment) Rows() int { return s.Len - s.Cached }

// Batch is what one pass computes: the concatenated rows of many plans' segments, without padding.
// Segments of different plans do not see each other, so what a row yields depends on its own plan
// only: on the CPU to the bit, whatever else is in the batch and wherever its KV came from.
type Batch struct {
	Tokens    []int32 // one per row
	Positions []int32 // one per row
	Segments  []Segment
	// Extra is nil, or one number per row that means something to the model. Devices do not look at it.
	Extra []int32
	// Content is nil, or equally many numbers per row that mean something to the model. Devices do not look at it.
	Content []int32
	// Pause is nil, or called between operations of a batch that gives way to others on the same device. Those may run
	// before it returns, through other runners.
	Pause func()
}

// GiveWay calls Pause, if there is one.
func (b *Batch) GiveWay() {
	if b.Pause != nil {
		b.Pause()
	}
}

// AttentionWeights are the weights of QKV and Output. Biases and norms may be nil.
type AttentionWeights struct {
	Norm         Vector // RMS norm before the products
	QKV          Linear // rows: all query heads, all key heads, all value heads
	QKVBias      Vector
	QNorm, KNorm Vector // RMS norms per head, before the rotation
	Out          Linear
	OutBias      Vector
}

// FFNWeights are the weights of FFN. Biases may be nil; GateUpBias is gate's then up's.
type FFNWeights struct {
	Norm       Vector
	GateUp     Linear
	GateUpBias Vector
	Down       Linear
	DownBias   Vector
}

// Pair asks for one logit: output row ID at batch row Row.
type Pair struct{ Row, ID int32 }

// Runner runs the operations of one batch at a time.
type Runner interface {
	// Begin takes the batch, which MUST stay unchanged until the last operation on it returned. Nothing of the batch
	// before is under way when it returns, whether or not its results were taken.
	Begin(b *Batch) error
	// Embed sets x[r] = table[b.Tokens[r]].
	Embed(table Table)
	// QKV computes norm(x)·QKVᵀ + bias, norms and rotates queries and keys, keeps the queries and
	// writes K and V, rounded to Shape.KV, to the segments' chunks.
	QKV(layer int, w *AttentionWeights)
	// Attend computes softmax(q·kᵀ/√HeadDim)·v for every row over the keys it sees.
	Attend(layer int)
	// Keep drops all rows but the given ones (ascending) from x and from Attend's result, between Attend and
	// Output: in the last layer, where other rows no longer matter. A Blender takes it in any layer, more
	// than once: later layers compute the rows that are left, at their tokens' places, and of the dropped
	// ones attend to what their chunks hold. Rows keep their numbers in Keep, Logits, Project and Hidden.
	Keep(rows []int32)
	// Output adds attention·Outᵀ + bias to x.
	Output(w *AttentionWeights)
	// FFN adds down(silu(gate)·up) of norm(x) to x.
	FFN(w *FFNWeights)
	// Logits sets out[i] = norm(x[pairs[i].Row]) · head[pairs[i].ID].
	Logits(norm Vector, head Table, pairs []Pair, out []float32) error
	// Project sets out to norm(x[row])·Wᵀ for each row, W.Out() values each: the logits of many tokens
	// at many rows. A nil norm takes x.
	Project(norm Vector, w Linear, rows []int32, out []float32) error
	// Hidden copies norm(x[row]) for each row to out, Hidden values each. A nil norm copies x.
	Hidden(norm Vector, rows []int32, out []float32) error
	Close() error
}

// ValidateHost is Validate for a device that uses the chunks' Bytes.
func (b *Batch) ValidateHost(s *Shape) error {
	for i := range b.Segments {
		for c := range b.Segments[i].Chunks {
			if ch := &b.Segments[i].Chunks[c]; ch.Bytes == nil {
				return fmt.Errorf("compute: segment %d chunk %d at %#x is not in the host's memory", i, c, ch.Addr)
			}
		}
	}
	return b.Validate(s)
}

// Validate checks what a runner relies on, so that a wrong batch is an error and not a wild read.
func (b *Batch) Validate(s *Shape) error {
	if len(b.Tokens) != len(b.Positions) {
		return fmt.Errorf("compute: %d tokens but %d positions", len(b.Tokens), len(b.Positions))
	}
	for i, p := range b.Positions {
		if p < 0 {
			return fmt.Errorf("compute: row %d is at position %d", i, p)
		}
	}
	next := 0
	for i := range b.Segments {
		g := &b.Segments[i]
		if g.Len < 0 || g.Cached < 0 || g.Cached > g.Len {
			return fmt.Errorf("compute: segment %d: %d of %d tokens cached", i, g.Cached, g.Len)
		}
		if g.First != next {
			return fmt.Errorf("compute: segment %d starts at row %d, want %d", i, g.First, next)
		}
		next += g.Rows()
		for _, j := range g.Sees {
			if j < 0 || int(j) >= i {
				return fmt.Errorf("compute: segment %d sees segment %d, which is not before it", i, j)
			}
		}
		if p := s.Pointwise; p != nil && g.Start < p.Context && g.Cached > 0 {
			return fmt.Errorf("compute: segment %d has %d cached tokens, but its context rows see what follows", i, g.Cached)
		}
		room := 0
		for c := range g.Chunks {
			ch := &g.Chunks[c]
			if ch.Tokens <= 0 || ch.size() < s.ChunkBytes(ch.Tokens, ch.Transient) {
				return fmt.Errorf("compute: segment %d chunk %d: %d bytes for %d tokens, want %d",
					i, c, ch.size(), ch.Tokens, s.ChunkBytes(ch.Tokens, ch.Transient))
			}
			if ch.Transient && room < g.Cached {
				return fmt.Errorf("compute: segment %d chunk %d is transient, but holds cached tokens", i, c)
			}
			if room >= g.Len {
				return fmt.Errorf("compute: segment %d: chunk %d is beyond its %d tokens", i, c, g.Len)
			}
			room += ch.Tokens
		}
		if room < g.Len {
			return fmt.Errorf("compute: segment %d: chunks for %d of %d tokens", i, room, g.Len)
		}
	}
	if next != len(b.Tokens) {
		return fmt.Errorf("compute: segments compute %d rows of %d", next, len(b.Tokens))
	}
	return nil
}

package compute

import "fmt"

// Pointwise describes the attention of HSTU, which weighs each key by itself: a row's result is
//
//	scale · Σ SiLU(Alpha·q·k)·v
//
// over the keys that it sees. There is no rotation and no softmax.
type Pointwise struct {
	Alpha float32 // not 0
	Scale float32 // of segments that have none of their own
	// Window, if not 0, hides keys more than that far behind: a row sees a key only if
	// Place(row's position) − Place(key's position) ≤ Window.
	Window int
	// Context rows, those at positions below it, see all of their own segment, also what comes after them
	// and whatever the window. Such a segment has no cached tokens.
	Context int
}

// Place returns where a position stands for windows: all context rows are at 0, the first one behind them at 1.
func (p *Pointwise) Place(position int) int {
	if p.Context == 0 {
		return position
	}
	return max(0, position-p.Context+1)
}

// ScaleOf returns the scale of the rows of a segment.
func (p *Pointwise) ScaleOf(s *Segment) float32 {
	if s.Scale != 0 {
		return s.Scale
	}
	return p.Scale
}

// CheckPointwise refuses a shape with Pointwise that no device runs.
func (s *Shape) CheckPointwise() error {
	p := s.Pointwise
	if s.Layers < 1 || s.Hidden < 1 || s.Heads < 1 || s.Heads != s.KVHeads || s.HeadDim < 2 || s.HeadDim%2 != 0 {
		return fmt.Errorf("compute: %d layers of width %d with %d heads of %d (KV: %d)", s.Layers, s.Hidden, s.Heads,
			s.HeadDim, s.KVHeads)
	}
	if p.Alpha == 0 || p.Window < 0 || p.Context < 0 {
		return fmt.Errorf("compute: pointwise attention %+v makes no sense", *p)
	}
	if s.KV != F32 && s.KV != BF16 {
		return fmt.Errorf("compute: pointwise attention over K and V in %v is not supported", s.KV)
	}
	return nil
}

// STUWeights are the weights of a layer of HSTU, a "sequential transduction unit".
type STUWeights struct {
	Norm, NormBias Vector // LayerNorm before the product
	UVQK           Linear // rows: u, v, q and k, each of all heads
	UVQKBias       Vector
	// The norm of attention: over all heads with Heads·HeadDim gains and biases, or with PerHead over each
	// head with one gain and one bias per head.
	OutNorm, OutNormBias Vector
	PerHead              bool
	Out                  Linear // columns: u, attention, and u ⊙ norm(attention), Heads·HeadDim each
}

// SumPart is a summand of the rows that go into the first layer.
type SumPart struct {
	Table Table
	// Vectors, if not nil, is used instead of the table: rows of Hidden values in the host's memory.
	Vectors []float32
	// Cached, if not nil, is used instead of both: a cache of this device. Source has the rows that it lacks.
	Cached RowCache
	Source RowSource
	Rows   []int32 // per row of the batch the row of the table or of Vectors; negative: nothing is added
	Scale  float32
}

// MaxSumParts is how many parts Sum takes on every device.
const MaxSumParts = 8

// STU is a Runner that runs layers of HSTU. It is one if its Shape has Pointwise; heads and KV heads are the
// same then, and Inter and Rope are not used:
//
//	Begin · Sum · { UVQK · Attend · Keep · Mix } per layer · Hidden
//
// Keep, in the last layer, drops rows of u too.
type STU interface {
	Runner
	// Sum sets x[r] = Σ Scale·row(r) over the parts, in order, at most MaxSumParts.
	Sum(parts []SumPart)
	// UVQK computes LayerNorm(x)·UVQKᵀ + bias, keeps SiLU(u) and q, and writes k and v, rounded to
	// Shape.KV, to the segments' chunks.
	UVQK(layer int, w *STUWeights)
	// Mix adds [u, a, u ⊙ norm(a)]·Outᵀ to x, where a is what Attend computed.
	Mix(w *STUWeights)
}

// Multiplier is a Device that multiplies rows in the host's memory. It is safe for concurrent use.
type Multiplier interface {
	// Multiply sets out = in·wᵀ for rows of In() and Out() values. What a row yields depends on that row only.
	Multiply(w Linear, in, out []float32) error
}

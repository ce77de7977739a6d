package alloc

// Curve sums what a larger cache would have saved, by how much larger it would have had to be.
type Curve [curveSteps]float64

const (
	curveSteps = 16
	// CurveStep is the memory of a step of a Curve.
	CurveStep = 1 << 30
)

// Add notes a miss that a cache larger by depth bytes would not have had, and what that would have saved.
func (c *Curve) Add(depth int64, saved float64) {
	if i := depth / CurveStep; i < curveSteps {
		c[i] += saved
	}
}

// Gains are what more memory would have saved, in milliseconds of each resource.
type Gains struct {
	Emb    Curve // of the link, by rows that would have been cached
	KV     Curve // of the GPU, by KV that would have been cached
	KVLink Curve // of the link, by rows that would not have been looked up then, had none been cached
}

package alloc

// Curve sums what a larger cache would have saved, by how much larger it would have had to be: in steps of 1/120 of the pool
// up to 16, then up to a quarter and up to half of the pool.
type Curve [curveSteps + 2]float64

const (
	curveSteps   = 16
	curveParts   = 120 // of the pool, each a step: a GiB of 120
	curveQuarter = curveParts / 4
	curveHalf    = curveParts / 2
)

// Add notes a miss that a cache larger by depth of the pool's bytes would not have had, and what that would have saved.
func (c *Curve) Add(depth, pool int64, saved float64) {
	switch i := depth * curveParts / max(pool, 1); {
	case i < curveSteps:
		c[i] += saved
	case i < curveQuarter:
		c[curveSteps] += saved
	case i < curveHalf:
		c[curveSteps+1] += saved
	}
}

// Gains are what more memory would have saved, in milliseconds of each resource.
type Gains struct {
	Emb    Curve // of the link, by rows that would have been cached
	KV     Curve // of the GPU, by KV that would have been cached
	KVLink Curve // of the link, by rows that would not have been looked up then, had none been cached
}

// Plus returns the sum of both.
func (g *Gains) Plus(o *Gains) Gains { return g.with(o, 1) }

// Less returns what there is beyond another.
func (g *Gains) Less(o *Gains) Gains { return g.with(o, -1) }

func (g *Gains) with(o *Gains, sign float64) Gains {
	sum := *g
	for i := range sum.Emb {
		sum.Emb[i] += sign * o.Emb[i]
		sum.KV[i] += sign * o.KV[i]
		sum.KVLink[i] += sign * o.KVLink[i]
	}
	return sum
}

package alloc

// Curve sums the savings of a larger cache, by how much larger it has to be. It has 16 steps of 1/120 of the pool, then
// one up to a quarter and one up to half of the pool.
type Curve [curveSteps + 2]float64

const (
	curveSteps   = 16
	curveParts   = 120 // of the pool, each a step: a GiB of 120
	curveQuarter = curveParts / 4
	curveHalf    = curveParts / 2
)

// Add notes a miss that a cache would not have had if it were larger by depth bytes, and what a hit would have saved.
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

// Sum returns the savings of half of the pool more.
func (c *Curve) Sum() float64 {
	sum := 0.0
	for _, v := range c {
		sum += v
	}
	return sum
}

// Gains are the savings of more memory, in milliseconds of each resource.
type Gains struct {
	Emb    Curve // of the link, if more rows were cached
	KV     Curve // of the GPU, if more KV were cached
	KVLink Curve // of the link, for the rows that more KV makes unnecessary, if none of them were cached
}

// Plus returns the sum of both.
func (g *Gains) Plus(o *Gains) Gains { return g.with(o, 1) }

// Less returns the difference of both.
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

package alloc

import "math"

// Climb moves the boundary to where more memory saves more: ghosts of both caches say what some more of it would have
// saved, in milliseconds of the link and of the GPU. It learns nothing and has no model of the workload.
//
// Milliseconds of a busy resource weigh more: waiting grows as 1/(1−load)², so that is the weight. What a cache
// would save is taken per step of a Curve, over that distance (up to eight steps, a quarter or half of the pool) at which it is
// the most: below a working set the first steps save nothing.
type Climb struct {
	emb, kv float64 // saved per step, decayed over epochs
}

const (
	climbMemory = 0.5  // of what earlier epochs said
	climbIgnore = 0.1  // differences within so much of the sum are none
	climbReach  = 8    // steps
	climbGain   = 0.12 // change of the share were all that could be saved on one side
	largestMove = 0.06
)

// Decide moves at most as far as the largest of Deltas. It allocates nothing.
func (c *Climb) Decide(o *Observation) Decision {
	link, gpu := weight(o.LinkLoad), weight(o.GPULoad)
	var emb, kv Curve
	for i := range emb {
		emb[i] = link * o.Gains.Emb[i]
		kv[i] = gpu*o.Gains.KV[i] + link*(1-o.EmbHit)*o.Gains.KVLink[i]
	}
	c.emb = climbMemory*c.emb + (1-climbMemory)*emb.steepest()
	c.kv = climbMemory*c.kv + (1-climbMemory)*kv.steepest()
	d := Decision{From: o.Alpha, To: o.Alpha}
	if sum := c.emb + c.kv; sum > 0 {
		lean := (c.emb - c.kv) / sum
		if math.Abs(lean) > climbIgnore {
			d.Base = limit(climbGain * lean)
		}
	}
	d.To = Clip(o.Alpha + d.Base)
	return d
}

// limit cuts a change to the largest of Deltas.
func limit(change float64) float64 { return min(max(change, -largestMove), largestMove) }

// weight is how much a millisecond of a resource costs those who wait for it.
func weight(load float64) float64 {
	idle := 1 - min(load, 0.95)
	return 1 / (idle * idle)
}

// steepest returns the most that is saved per step, over any distance.
func (c *Curve) steepest() float64 {
	best, sum := 0.0, 0.0
	for i := range climbReach {
		sum += c[i]
		best = max(best, sum/float64(i+1))
	}
	for i := climbReach; i < curveSteps; i++ {
		sum += c[i]
	}
	sum += c[curveSteps]
	best = max(best, sum/curveQuarter)
	return max(best, (sum+c[curveSteps+1])/curveHalf)
}

// PID keeps the loads of link and GPU apart by a set difference: embeddings relieve the one, KV both.
type PID struct {
	P, I, D float64
	Set     float64 // wanted difference, link less GPU
	sum     float64
	last    float64
	begun   bool
}

// Decide moves at most as far as the largest of Deltas.
func (c *PID) Decide(o *Observation) Decision {
	e := o.LinkLoad - o.GPULoad - c.Set
	c.sum = min(max(c.sum+e, -1), 1)
	slope := 0.0
	if c.begun {
		slope = e - c.last
	}
	c.last, c.begun = e, true
	d := Decision{From: o.Alpha, Base: limit(c.P*e + c.I*c.sum + c.D*slope)}
	d.To = Clip(o.Alpha + d.Base)
	return d
}

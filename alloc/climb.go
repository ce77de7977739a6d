package alloc

import "math"

// Climb moves the boundary to where more memory saves more: ghosts of both caches say what some more of it would have
// saved, in milliseconds of the link and of the GPU. It learns nothing and has no model of the workload.
//
// Milliseconds of a busy resource weigh more: waiting grows as 1/(1−load)², so that is the weight. What a cache
// would save is taken per step of a Curve, over that distance (up to eight steps, a quarter or half of the pool) at which it is
// the most: below a working set the first steps save nothing.
//
// Moving has a price that an epoch does not show: KV that leaves with the boundary was the next burst's, and a burst is over before
// the boundary is where the burst wants it. So, where the SLO is known, the boundary follows (up to 0.06 an epoch) only
// what lasts, once there was a reason: P99 near the SLO, or hot users who drift. Before that it creeps. In a burst, and for
// some minutes after one, it moves only in epochs that are near the SLO themselves, little, and then waits an epoch to see what came
// of it: pressure of calm and of bursts moves it to between what they want, and there it stays.
type Climb struct {
	SLO float64 // of requests, milliseconds; 0: the boundary always follows

	emb, kv  float64 // saved per step, decayed over epochs
	course   course
	follows  bool // there was a reason to, since the last burst
	volatile int  // epochs for which another burst is expected
	pushed   bool // the epoch before was pressed, and moved the boundary
}

const (
	climbMemory = 0.5  // of what earlier epochs said
	climbIgnore = 0.1  // differences within so much of the sum are none
	climbReach  = 8    // steps
	climbGain   = 0.12 // change of the share were all that could be saved on one side
	climbCreep  = 0.002
	largestMove = 0.06
)

// What pressure does.
const (
	pressedAt    = 0.8   // of the SLO, as P99 of an epoch
	pushLeast    = 0.005 // change of the share when P99 is there
	pushSteep    = 0.03  // and for every time as much
	pushMost     = 0.03
	pushLean     = 0.3  // lean at which the change is as much as that
	burstLean    = 0.15 // KV that just holds a burst shows no gain and would lose much
	burstsWithin = 100  // epochs in which another is expected
)

// Decide moves at most as far as the largest of Deltas. It allocates nothing.
func (c *Climb) Decide(o *Observation) Decision {
	d := Decision{From: o.Alpha, Base: limit(c.change(o))}
	d.To = Clip(o.Alpha + d.Base)
	return d
}

func (c *Climb) change(o *Observation) float64 {
	if c.SLO == 0 {
		return climbGain * c.lean(o, climbMemory)
	}
	if o.Requests == 0 {
		return 0
	}
	away, ended := c.course.note(o.Hot, o.Requests)
	if ended {
		c.volatile, c.follows = burstsWithin, false
	}
	if away || c.volatile > 0 {
		c.volatile = max(c.volatile-1, 0)
		return c.push(o, away)
	}
	c.follows = c.follows || c.course.known() && c.pressure(o) > 1 || c.course.drifts()
	if !c.follows {
		return climbCreep * c.lean(o, climbMemory)
	}
	return climbGain * c.lean(o, climbMemory)
}

// pressure is above 1 when P99 is too near to the SLO.
func (c *Climb) pressure(o *Observation) float64 { return o.P99 / (pressedAt * c.SLO) }

// push moves the boundary when an epoch is pressed, by what the epoch itself says, unless the one before did: requests that waited then are
// in this one's P99.
func (c *Climb) push(o *Observation, burst bool) float64 {
	lean, over := c.lean(o, 0), c.pressure(o)-1
	if c.pushed = !c.pushed && over > 0; !c.pushed {
		return 0
	}
	if burst {
		lean -= burstLean
	}
	return min(pushLeast+pushSteep*over, pushMost) * min(max(lean/pushLean, -1), 1)
}

// lean says which side would save more: 1 were all that can be saved on that of embeddings, −1 on that of KV.
func (c *Climb) lean(o *Observation, memory float64) float64 {
	link, gpu := weight(o.LinkLoad), weight(o.GPULoad)
	var emb, kv Curve
	for i := range emb {
		emb[i] = link * o.Gains.Emb[i]
		kv[i] = gpu*o.Gains.KV[i] + link*(1-o.EmbHit)*o.Gains.KVLink[i]
	}
	c.emb = memory*c.emb + (1-memory)*emb.steepest()
	c.kv = memory*c.kv + (1-memory)*kv.steepest()
	sum := c.emb + c.kv
	if sum <= 0 {
		return 0
	}
	if lean := (c.emb - c.kv) / sum; math.Abs(lean) > climbIgnore {
		return lean
	}
	return 0
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

package alloc

import "math"

// Climb moves the boundary to where more memory saves more: ghosts of both caches say what some more of it would have
// saved, in milliseconds of the link and of the GPU. It learns nothing and has no model of the workload.
//
// Milliseconds of a busy resource weigh more: waiting grows as 1/(1−load)², so that is the weight. What a cache
// would save is taken per step of a Curve, over that distance (up to eight steps, a quarter or half of the pool) at which it is
// the most: below a working set the first steps save nothing.
//
// Moving has a price that an epoch does not show: KV that leaves with the boundary was the next burst's. So, where the SLO is
// known, the boundary follows at once only hot users who drift and nodes that are busy. Else it creeps: what calm has no need of is
// kept for a burst.
//
// A burst is over before epochs have moved the boundary, and its first seconds are the worst: KV of those who come is computed, and
// soon it pushes out that of those who were there. So Glance gives KV memory as fast as a burst can fill it, for as long as the node
// is busy; faster would take rows for pages that nobody has filled yet. Of that, what a burst turns out not to need goes back
// while it lasts: its end is as bad as its beginning for who has no rows then.
type Climb struct {
	SLO float64 // of requests, milliseconds; 0: the boundary always follows, and glances do nothing

	emb, kv float64 // saved per step, decayed over epochs
	course  course
	follows bool    // hot users drifted, and there was no burst since
	surge   int     // glances for which hot users have been many
	lent    float64 // what KV got in this burst and has not given back
}

const (
	climbMemory = 0.5  // of what earlier epochs said
	climbIgnore = 0.1  // differences within so much of the sum are none
	climbReach  = 8    // steps
	climbGain   = 0.12 // change of the share were all that could be saved on one side
	climbCreep  = 0.002
	climbRise   = 0.035 // most that embeddings get in an epoch when hot users do not drift
	largestMove = 0.06
)

// Loads of the link or the GPU.
const (
	restAt   = 0.84
	busyAt   = 0.86
	jammedAt = 0.95
)

const (
	pressedAt   = 0.8   // of the SLO, as P99 of an epoch: as good a reason to follow as a load
	surgeStep   = 0.02  // change of the share in a glance when hot users have become many,
	ghostStep   = 0.025 // and when ghosts say that KV lacks it
	rowStep     = 0.006 // and when embeddings do
	giveBack    = 0.05  // change of the share in an epoch of a burst that the node serves with ease
	glanceLeast = 100   // requests that tell something
)

// Decide moves at most as far as the largest of Deltas. It allocates nothing.
func (c *Climb) Decide(o *Observation) Decision {
	d := Decision{From: o.Alpha, Base: limit(c.change(o))}
	d.To = Clip(o.Alpha + d.Base)
	return d
}

func (c *Climb) change(o *Observation) float64 {
	emb, kv := savings(o)
	c.emb = climbMemory*c.emb + (1-climbMemory)*emb
	c.kv = climbMemory*c.kv + (1-climbMemory)*kv
	change := climbGain * lean(c.emb, c.kv)
	if c.SLO == 0 {
		return change
	}
	if o.Requests == 0 {
		return 0
	}
	away, ended := c.course.note(o.Hot, o.Requests)
	if away {
		return c.unlend(o)
	}
	c.lent = 0
	c.follows = c.follows && !ended || c.course.drifts()
	switch {
	case c.follows:
		return change
	case o.load() > busyAt, c.course.known() && o.P99 > pressedAt*c.SLO:
		return min(change, climbRise)
	}
	return change * climbCreep / climbGain
}

// unlend takes back some of what KV got in a burst, when the node has an easy time.
func (c *Climb) unlend(o *Observation) float64 {
	if o.load() >= restAt {
		return 0
	}
	back := min(giveBack, c.lent)
	c.lent -= back
	return back
}

// Glance moves the boundary in bursts and jams. It allocates nothing.
func (c *Climb) Glance(o *Observation) (Decision, bool) {
	d := Decision{From: o.Alpha, To: o.Alpha}
	if c.SLO == 0 || o.Requests < glanceLeast {
		return d, false
	}
	d.Base = c.react(o)
	d.To = Clip(o.Alpha + d.Base)
	if c.surge > 0 {
		c.lent += max(d.From-d.To, 0)
	}
	return d, d.To != d.From
}

func (c *Climb) react(o *Observation) float64 {
	c.surge++
	if !c.course.above(o.Hot, o.Requests) {
		c.surge = 0
	}
	bar := jammedAt
	if c.surge > 0 && c.surge <= Glances {
		bar = busyAt
	}
	if o.load() < bar {
		return 0
	}
	switch lean := lean(savings(o)); {
	case lean < 0:
		return -ghostStep
	case c.surge > 0:
		return -surgeStep
	case lean > 0:
		return rowStep
	}
	return 0
}

// savings are what a step more of memory would have saved on either side, in milliseconds by weight.
func savings(o *Observation) (emb, kv float64) {
	link, gpu := weight(o.LinkLoad), weight(o.GPULoad)
	var e, k Curve
	for i := range e {
		e[i] = link * o.Gains.Emb[i]
		k[i] = gpu*o.Gains.KV[i] + link*(1-o.EmbHit)*o.Gains.KVLink[i]
	}
	return e.steepest(), k.steepest()
}

// lean says which side would save more: 1 were all that can be saved on that of embeddings, −1 on that of KV.
func lean(emb, kv float64) float64 {
	sum := emb + kv
	if sum <= 0 {
		return 0
	}
	if lean := (emb - kv) / sum; math.Abs(lean) > climbIgnore {
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

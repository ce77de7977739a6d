package alloc

import "math"

// Climb gives memory to the side that saves more with it. The ghosts of both caches measure how many milliseconds of
// the link and of the GPU more memory would have saved. Climb learns nothing and has no model of the workload.
//
// Milliseconds of a busy resource count more. Waiting time grows as 1/(1−load)², so that is the weight. The savings
// of a cache are taken per step of a Curve, over the distance at which they are highest (up to eight steps, a quarter
// or half of the pool), because the first steps towards a working set that does not fit save nothing.
//
// A move has a cost that the epoch does not show: the KV that is evicted might have served the next burst. So, if the
// SLO is known, the boundary moves at full speed only if the share of hot users changes or the node is busy. Otherwise
// it moves slowly, and memory that a calm time does not need stays available for a burst. Under traffic that does not
// change, moves become shorter whenever their direction turns, so the boundary settles.
//
// A share of hot users that falls far is no burst, and is followed at once. One that rises may be a burst or may last.
// Ghosts see new hot users only when their KV was evicted and they come again, which is late. But the memory that KV
// needs per hot user is known from before the rise. So rows and KV share the pool in proportion to what rows had and
// what KV needs now. Glance moves the boundary there, and back as soon as a burst ends. The next rise within five
// minutes of a burst, and one that begins at a busy node, count as bursts until they have lasted for six epochs.
//
// Ghosts do not show how much memory KV can do without, so after a fall they lead too far, and late. But the memory
// that KV needs to serve a hot user is known from before the fall. KV keeps what the users who are left need of it, in
// one move, and the ghosts correct it in short ones.
//
// A burst ends before epochs have moved the boundary, and its first seconds are the worst: the KV of new users is
// computed and soon evicts the KV of earlier ones. So Glance gives memory to KV as fast as a burst can fill it, while
// the node is busy. A faster move would evict rows for pages that are still empty. Memory that the burst does not need
// goes back during the burst, because too few rows at its end are as bad as too little KV at its beginning.
type Climb struct {
	SLO float64 // of requests, in milliseconds; 0: the boundary always moves at full speed, and Glance does nothing

	emb, kv float64 // saved per step, decayed over epochs
	course  course
	follows bool    // the share of hot users drifted, and there was no burst since
	surge   int     // number of glances in a row with many hot users
	lent    float64 // share that KV got in this burst and has not given back
	base    float64 // share before a rise that the boundary follows; 0: it follows none
	recent  float64 // uses in an epoch, to the power of needGrows, from the last glances of a surge
	wary    int     // epochs for which a rise still counts as a burst until it has lasted
	need    float64 // share that KV needs for the uses of an epoch, to the power of needGrows, decayed; 0: not known
	stride  float64 // most that the share moves in an epoch, 0: not known; see pace
	last    float64 // direction of the last change
}

const (
	climbMemory = 0.5  // weight of earlier epochs
	climbIgnore = 0.1  // a smaller difference, as a share of the sum, counts as none
	climbReach  = 8    // steps
	climbGain   = 0.12 // change of the share if all savings are on one side
	climbCreep  = 0.002
	climbRise   = 0.035 // most that embeddings get in an epoch when the share of hot users does not drift
	largestMove = 0.06

	strideFall = 0.006 // largest change in an epoch after a fall that a jump followed

	strideGrows = 1.03 // growth of the largest change in an epoch, while the direction stays,
	strideDrift = 1.25 // and when the share of hot users drifts
)

const (
	riseStep   = 0.02 // most that the share moves in a glance that follows a rise
	riseLeast  = 0.02 // shortest way that Decide follows
	riseMemory = 0.8  // weight of earlier glances
	waryEpochs = 60   // see Climb.wary
)

// Of the memory that KV needs. Both are fitted to workloads of regime.Training.
const (
	needGrows = 0.85 // it grows with uses to this power: memory is also used by who comes once
	needHits  = 0.94 // of hot users' requests, that hit if KV has all the memory that it needs
)

// Loads of the link or the GPU.
const (
	restAt   = 0.84
	busyAt   = 0.86
	jammedAt = 0.95
)

const (
	pressedAt   = 0.8   // P99 of an epoch, as a share of the SLO, that counts like a high load
	surgeStep   = 0.02  // change of the share in a glance when there are many hot users,
	ghostStep   = 0.025 // when the ghosts show that KV lacks memory,
	rowStep     = 0.006 // and when they show that embeddings do
	giveBack    = 0.05  // change of the share in an epoch of a burst that the node serves with ease
	glanceLeast = 100   // fewest requests of a glance that count
)

// Decide moves at most as far as the largest of Deltas, but further when the share of hot users changed. It allocates
// nothing.
func (c *Climb) Decide(o *Observation) Decision {
	d := Decision{From: o.Alpha, Base: c.change(o)}
	d.To = Clip(o.Alpha + d.Base)
	return d
}

func (c *Climb) change(o *Observation) float64 {
	emb, kv := savings(o)
	c.emb = climbMemory*c.emb + (1-climbMemory)*emb
	c.kv = climbMemory*c.kv + (1-climbMemory)*kv
	change := climbGain * lean(c.emb, c.kv)
	if c.SLO == 0 {
		return limit(change)
	}
	if o.Requests == 0 {
		return 0
	}
	was := c.course.out > 0
	away, ended := c.course.note(o.Hot, o.Requests)
	c.wary = max(c.wary-1, 0)
	switch {
	case ended:
		if back := c.end(o); back > 0 {
			return back
		}
	case was && !away:
		if c.need > 0 {
			return c.lasted(o)
		}
		c.stride, c.last, c.follows = largestMove, 0, true
	}
	if away && o.Hot < c.course.median() { // fewer hot users are no burst
		c.course.restart(o.Hot)
		c.emb, c.kv, c.stride, c.last, c.lent, c.base, c.follows = emb, kv, largestMove, 0, 0, 0, true
		if jump := c.spare(o); jump > 0 {
			c.emb, c.kv, c.stride = 0, 0, strideFall // the ghosts' savings are of another share
			return jump
		}
		return c.pace(climbGain * lean(emb, kv))
	}
	switch {
	case away && c.wary > 0:
		return c.unlend(o)
	case away:
		return c.rise(o)
	}
	c.lent = 0
	c.measure(o)
	c.follows = c.follows && !ended || c.course.drifts()
	paced := c.pace(change)
	switch {
	case c.follows:
		return paced
	case o.load() > busyAt, c.course.known() && o.P99 > pressedAt*c.SLO:
		return min(paced, climbRise)
	}
	return change * climbCreep / climbGain
}

// uses returns what the memory that KV needs depends on: events of hot users in an epoch.
func uses(o *Observation) float64 {
	return math.Pow(o.Hot*float64(o.Requests)*o.Events, needGrows)
}

// measure notes how much memory KV has for its uses, and how much more it would need to have hits for all of them.
func (c *Climb) measure(o *Observation) {
	n := uses(o)
	if n <= 0 || o.KVHit <= 0 || !c.course.known() {
		return
	}
	need := (1 - o.Alpha) * max(1, needHits*o.Hot/o.KVHit) / n
	if c.need == 0 {
		c.need = need
	}
	c.need = climbMemory*c.need + (1-climbMemory)*need
}

// spare returns the share that KV has and does not need for the uses of this epoch.
func (c *Climb) spare(o *Observation) float64 {
	if c.need == 0 || uses(o) <= 0 {
		return 0
	}
	return max(0, 1-c.need*uses(o)-o.Alpha)
}

// way returns how far it is to the share that follows a rise, with so many uses in an epoch.
func (c *Climb) way(o *Observation, uses float64) float64 {
	if c.base == 0 {
		c.base = o.Alpha + c.lent
	}
	return c.base/(c.base+c.need*uses) - o.Alpha
}

// rise follows a rise as far as glances did not. If they went further, some of that goes back.
func (c *Climb) rise(o *Observation) float64 {
	if c.need == 0 {
		return c.unlend(o)
	}
	switch way := c.way(o, uses(o)); {
	case way < -riseLeast:
		return way
	case way > 0:
		return min(way, c.unlend(o))
	}
	return 0
}

// lasted settles at the share of a rise that was no burst.
func (c *Climb) lasted(o *Observation) float64 {
	way := c.way(o, uses(o))
	c.course.restart(o.Hot)
	c.emb, c.kv, c.stride, c.last, c.lent, c.base, c.follows = 0, 0, strideFall, 0, 0, 0, false
	if way > -riseLeast {
		return 0
	}
	return way
}

// end ends a burst. It returns the way back to the share before it. A busy node goes back as ghosts say: its link has
// no time to fetch many rows at once.
func (c *Climb) end(o *Observation) float64 {
	back := max(0, c.base-o.Alpha)
	c.lent, c.base, c.follows, c.wary = 0, 0, false, waryEpochs
	if o.load() >= restAt {
		return 0
	}
	return back
}

// pace bounds a change. At the right share noise decides about the direction, so the bound halves whenever the
// direction turns. While the direction stays the bound grows, slowly unless the share of hot users drifts.
func (c *Climb) pace(change float64) float64 {
	direction := 0.0
	switch {
	case change > 0:
		direction = 1
	case change < 0:
		direction = -1
	}
	switch {
	case c.stride == 0:
		c.stride = largestMove
	case direction*c.last < 0:
		c.stride = max(c.stride/2, climbCreep)
	case direction*c.last > 0:
		grows := strideGrows
		if c.course.drifts() {
			grows = strideDrift
		}
		c.stride = min(c.stride*grows, largestMove)
	}
	if direction != 0 {
		c.last = direction
	}
	return min(max(change, -c.stride), c.stride)
}

// unlend takes back some of the share that KV got in a burst, when the load is low.
func (c *Climb) unlend(o *Observation) float64 {
	if o.load() >= restAt {
		return 0
	}
	back := min(giveBack, c.lent)
	c.lent -= back
	return back
}

// Glance moves the boundary in bursts and while the node is busy. It allocates nothing.
func (c *Climb) Glance(o *Observation) (Decision, bool) {
	d := Decision{From: o.Alpha, To: o.Alpha}
	if c.SLO == 0 || o.Requests < glanceLeast {
		return d, false
	}
	d.Base = c.react(o)
	d.To = Clip(o.Alpha + d.Base)
	if c.surge > 0 && d.To < d.From {
		c.lent += d.From - d.To
		if c.base == 0 { // a surge of a busy node is served as a burst
			c.wary = waryEpochs
		}
	}
	return d, d.To != d.From
}

func (c *Climb) react(o *Observation) float64 {
	if c.base > 0 && c.course.below(o.Hot, o.Requests) { // it was a burst
		if back := c.end(o); back > 0 {
			return back
		}
	}
	c.surge++
	if !c.course.above(o.Hot, o.Requests) {
		c.surge = 0
	}
	if step := c.follow(o); step < 0 {
		return step
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

// follow returns a step towards the share that follows a rise, unless the node was busy when it began.
func (c *Climb) follow(o *Observation) float64 {
	if c.surge == 0 || c.wary > 0 || c.need == 0 {
		return 0
	}
	epoch := *o
	epoch.Requests *= Glances
	if c.surge == 1 { // it may be chance
		c.recent = uses(&epoch)
		return 0
	}
	c.recent = riseMemory*c.recent + (1-riseMemory)*uses(&epoch)
	if c.base == 0 && o.load() > busyAt {
		return 0
	}
	way := c.way(o, c.recent)
	if way > -climbCreep {
		return 0
	}
	return max(way, -riseStep)
}

// savings returns what one more step of memory would have saved on each side, in weighted milliseconds.
func savings(o *Observation) (emb, kv float64) {
	link, gpu := weight(o.LinkLoad), weight(o.GPULoad)
	var e, k Curve
	for i := range e {
		e[i] = link * o.Gains.Emb[i]
		k[i] = gpu*o.Gains.KV[i] + link*(1-o.EmbHit)*o.Gains.KVLink[i]
	}
	return e.steepest(), k.steepest()
}

// lean compares the savings of both sides. It is 1 if all of them are on the side of embeddings, −1 if all are on
// that of KV.
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

// limit limits a change to the largest of Deltas.
func limit(change float64) float64 { return min(max(change, -largestMove), largestMove) }

// weight returns the weight of a millisecond of a resource with this load.
func weight(load float64) float64 {
	idle := 1 - min(load, 0.95)
	return 1 / (idle * idle)
}

// steepest returns the highest savings per step, over any distance.
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

// PID keeps the difference between the loads of the link and the GPU at a set value. More rows relieve the link, more
// KV relieves both.
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

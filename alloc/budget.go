package alloc

import "math"

// BudgetEpoch is the time between decisions of a Budget in seconds.
const BudgetEpoch = 0.25

const (
	budgetFloors = 16   // one part in so many of a budget is divided equally: no model gets less than that
	budgetStep   = 128  // one part in so many may be taken from a model in an epoch: all of it in half a minute
	budgetMemory = 0.94 // weight of the past: what was seen counts half after eleven epochs, about three seconds
	budgetMargin = 1.25 // memory moves if it is worth that much more at its new owner
	budgetSpare  = 8    // nothing is taken from anybody while one part in so many is free
)

// Claim describes a model that shares a Budget. Its owner sets the exported fields but Limit before each decision.
type Claim struct {
	Used  int64   // bytes that it owns
	Least int64   // bytes without which it cannot work
	Kept  int64   // bytes of new entries since the last decision
	Entry int64   // bytes of its largest entries: less than that is of no use to it
	Saved float64 // milliseconds of computing that its entries saved since the last decision
	Lost  Curve   // milliseconds that more memory would have saved since the last decision

	Limit int64 // bytes that it may own: the decision

	kept, saved float64 // recent averages per epoch
	lost        Curve
}

// Budget divides memory between models by what it saves: milliseconds of computing per byte. It works in three steps.
//
//   - Every model may own its floor.
//   - Free memory goes to the models that fill it, in proportion to what they recently added.
//   - If little is free, memory moves from the model where it saves least to the one where it saves most, a step at a time.
//
// In doubt shares become equal: a model's value counts for less the more memory it has. A Budget is deterministic and not
// safe for concurrent use.
type Budget struct {
	Bytes int64
}

// Decide sets the limits of all claims. Their sum is at most the budget, or that of Least if this is more.
func (b *Budget) Decide(claims []*Claim) {
	if len(claims) == 0 {
		return
	}
	floor := b.Bytes / int64(budgetFloors*len(claims))
	free := b.Bytes
	for _, c := range claims {
		c.learn()
		c.Limit = max(c.Used, floor, c.Least)
		free -= c.Limit
	}
	switch {
	case free < 0:
		b.shrink(claims, floor, -free)
	default:
		b.grow(claims, free)
	}
	if free < b.Bytes/budgetSpare {
		b.move(claims, floor)
	}
}

// learn adds the last epoch to the averages.
func (c *Claim) learn() {
	c.kept = budgetMemory*c.kept + (1-budgetMemory)*float64(c.Kept)
	c.saved = budgetMemory*c.saved + (1-budgetMemory)*c.Saved
	for i := range c.lost {
		c.lost[i] = budgetMemory*c.lost[i] + (1-budgetMemory)*c.Lost[i]
	}
}

// shrink takes bytes from the claims above the floor, in proportion to what they have above it.
func (b *Budget) shrink(claims []*Claim, floor, bytes int64) {
	above := int64(0)
	for _, c := range claims {
		above += c.Limit - max(floor, c.Least)
	}
	part := float64(bytes) / float64(max(above, 1))
	for _, c := range claims {
		c.Limit -= int64(math.Ceil(min(part, 1) * float64(c.Limit-max(floor, c.Least))))
	}
}

// grow divides free bytes by how much the models added recently. An idle model counts a little, so that it can begin.
func (b *Budget) grow(claims []*Claim, free int64) {
	idle := float64(b.Bytes) / (1 << 20)
	sum := 0.0
	for _, c := range claims {
		sum += c.kept + idle
	}
	left, most := free, claims[0]
	for _, c := range claims {
		part := min(int64(float64(free)*(c.kept+idle)/sum), left)
		c.Limit += part
		left -= part
		if c.kept > most.kept {
			most = c
		}
	}
	most.Limit += left // what rounding left
}

// move takes a step of memory from the claim where it is worth least, for the one that would gain most.
func (b *Budget) move(claims []*Claim, floor int64) {
	var to, from *Claim
	var gain, loss float64
	for _, c := range claims {
		if g := b.gain(c); g > gain {
			to, gain = c, g
		}
	}
	for _, c := range claims {
		if c == to || c.Limit <= max(floor, c.Least) {
			continue
		}
		if l := b.loss(c); from == nil || l < loss || l == loss && c.Limit > from.Limit {
			from, loss = c, l
		}
	}
	if to == nil || from == nil || gain <= budgetMargin*loss {
		return
	}
	step := min(max(b.Bytes/budgetStep, to.Entry), from.Limit-max(floor, from.Least))
	from.Limit -= step
	to.Limit += step
}

// gain is what a model saves with more memory, per byte: the steepest way up its curve.
func (b *Budget) gain(c *Claim) float64 {
	best, sum := 0.0, 0.0
	for i, saved := range c.lost {
		sum += saved
		best = max(best, sum/(c.lost.depth(i)*float64(b.Bytes)))
	}
	return b.weigh(c, best)
}

// loss is what a model's memory saves, per byte.
func (b *Budget) loss(c *Claim) float64 {
	return max(b.weigh(c, c.saved/float64(max(c.Used, 1))), b.gain(c))
}

// weigh has a value count for less the larger the model's share is.
func (b *Budget) weigh(c *Claim, value float64) float64 {
	return value / math.Sqrt(float64(max(c.Limit, 1))/float64(max(b.Bytes, 1)))
}

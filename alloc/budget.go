package alloc

// BudgetEpoch is the time between decisions of a Budget in seconds.
const BudgetEpoch = 0.25

const (
	budgetFloors = 16   // one part in so many of a budget, and of what is free, is divided equally: no model gets less
	budgetStep   = 64   // one part in so many may be taken from a model in an epoch: all of it in a quarter of a minute
	budgetMemory = 0.97 // weight of the past: half of it is forgotten after 23 epochs, about six seconds
	budgetSpare  = 8    // nothing is taken from anybody while one part in so many is free
	budgetPress  = 8    // a model gets memory for so many epochs after it lost something
	fewEntries   = 3    // a busy model has room for so many of its largest entries
)

// Claim describes a model that shares a Budget. Its owner sets the exported fields but Limit before each decision.
type Claim struct {
	Used  int64   // bytes that it owns
	Least int64   // bytes without which it cannot work
	Kept  int64   // bytes of new entries since the last decision
	Entry int64   // bytes of the largest entry since then that was kept, or had no room
	Saved float64 // milliseconds of computing that its entries saved since then
	Lost  float64 // milliseconds that entries took which it would have kept if it had the whole budget

	Limit int64 // bytes that it may own: the decision

	kept, entry float64 // recent averages per epoch
	value       float64 // recent average of what the whole budget would save
	floor       int64
	press       int // epochs for which it still asks for more
}

// Budget divides memory between models by value: the milliseconds of computing that the whole budget would save a
// model. The value does not depend on what the model has, so shares do not drive each other. It works in three steps.
//
//   - Every model may own its floor. While it is busy, that is room for a few of its entries: with less it could not
//     show a value.
//   - Free memory goes to the models that fill it, in proportion to what they recently added.
//   - If little is free, memory moves a step at a time from the model furthest above its share to the one furthest
//     below, if this one lost something in the last seconds. Shares of what is above the floors are in proportion to
//     value.
//
// A Budget is deterministic and not safe for concurrent use.
type Budget struct {
	Bytes int64
}

// Decide sets the limits of all claims. Their sum is at most the budget, or that of the floors if this is more.
func (b *Budget) Decide(claims []*Claim) {
	n := int64(len(claims))
	free := b.Bytes
	for _, c := range claims {
		c.learn()
		c.floor = max(b.Bytes/(budgetFloors*n), c.Least, min(int64(fewEntries*c.entry), b.Bytes/(2*n)))
		c.Limit = max(c.Used, c.floor)
		free -= c.Limit
	}
	switch {
	case n == 0:
		return
	case free < 0:
		shrink(claims, -free)
	default:
		b.grow(claims, free)
	}
	if free < b.Bytes/budgetSpare {
		b.move(claims)
	}
}

// learn adds the last epoch to the averages. The largest entry is forgotten as slowly.
func (c *Claim) learn() {
	c.kept = budgetMemory*c.kept + (1-budgetMemory)*float64(c.Kept)
	c.value = budgetMemory*c.value + (1-budgetMemory)*(c.Saved+c.Lost)
	c.entry = max(budgetMemory*c.entry, float64(c.Entry))
	if c.press--; c.Lost > 0 {
		c.press = budgetPress
	}
}

// shrink takes bytes from the claims above their floors, in proportion to what they have above them.
func shrink(claims []*Claim, bytes int64) {
	above := int64(0)
	for _, c := range claims {
		above += c.Limit - c.floor
	}
	part := min(float64(bytes)/float64(max(above, 1)), 1)
	for _, c := range claims {
		c.Limit = max(c.floor, c.Limit-1-int64(part*float64(c.Limit-c.floor)))
	}
}

// grow divides free bytes by how much the models added recently, and a part of them equally, so that an idle model can
// begin.
func (b *Budget) grow(claims []*Claim, free int64) {
	sum := 0.0
	for _, c := range claims {
		sum += c.kept
	}
	equal := sum/float64(budgetFloors*len(claims)) + 1
	sum += equal * float64(len(claims))
	left, most := free, claims[0]
	for _, c := range claims {
		part := min(int64(float64(free)*(c.kept+equal)/sum), left)
		c.Limit += part
		left -= part
		if c.kept > most.kept {
			most = c
		}
	}
	most.Limit += left // what rounding left
}

// move takes a step of memory from the claim furthest above its share for the one furthest below it that lost
// something. It does not overshoot: both are a step or more away from their shares.
func (b *Budget) move(claims []*Claim) {
	room, values := b.Bytes, 0.0
	for _, c := range claims {
		room -= c.floor
		values += c.value
	}
	if values == 0 {
		return
	}
	var to, from *Claim
	var below, above int64
	for _, c := range claims {
		over := c.Limit - c.floor - int64(float64(room)*c.value/values)
		if -over > below && c.press > 0 {
			to, below = c, -over
		}
		if over > above {
			from, above = c, over
		}
	}
	if to == nil || from == nil {
		return
	}
	if step := max(b.Bytes/budgetStep, int64(to.entry)); step <= min(below, above) {
		from.Limit -= step
		to.Limit += step
	}
}

package gemm

import "math"

// cut is how a product is cut into tasks: blocks of rows by groups of pairs of panels. None of it
// changes a result.
type cut struct {
	threads   int
	blocks    int
	blockRows int
	groups    int // per block
	group     int // pairs of panels
	outer     int // steps of k for which the rows of a block stay in L2
	inner     int // steps of k of one block of weights
}

// blockCost is the time to bring weights into L2 for a block of rows, in times of their product with
// a row.
const blockCost = 12

// cutFor returns the cut that should take the least time.
func (p *product) cutFor(threads int) cut {
	k, m, steps := p.k, p.a.m, p.w.steps
	c := cut{threads: threads, outer: even(steps, k.outer)}
	c.inner = even(c.outer, k.inner)
	pairs := p.w.panels / 2
	limit, reload := pairs, 0.1
	if c.outer < steps {
		limit, reload = sumPairs, k.reload
	}
	least := math.Inf(1)
	for blocks := (m + k.blockRows - 1) / k.blockRows; ; blocks *= 2 {
		rows := (((m+blocks-1)/blocks + k.panelRows - 1) / k.panelRows) * k.panelRows
		n := (m + rows - 1) / rows
		group, cost := chooseGroup(pairs, n, threads, limit, reload*float64(rows)/float64(rows+2*panelCols))
		if cost *= float64(rows + blockCost); cost < least {
			least, c.blocks, c.blockRows, c.group = cost, n, rows, group
		}
		if rows < 2*k.leastRows || threads == 1 {
			break
		}
	}
	c.groups = (pairs + c.group - 1) / c.group
	return c
}

// chooseGroup returns the number of pairs of panels per task, at most limit, and what the product
// costs: few rounds of tasks, each of which costs its pairs and reload, the reading of its rows; and
// short tasks, since a worker may be held up in the last one.
func chooseGroup(pairs, blocks, threads, limit int, reload float64) (group int, least float64) {
	if threads == 1 {
		return even(pairs, limit), 0
	}
	group, least = 1, math.Inf(1)
	for g := 1; g <= min(limit, pairs); g++ {
		tasks := blocks * ((pairs + g - 1) / g)
		rounds := (tasks + threads - 1) / threads
		if cost := float64(rounds)*(float64(g)+reload) + 0.25*float64(g); cost < least {
			group, least = g, cost
		}
	}
	return group, least
}

// even returns the size of equal pieces of n of at most limit each.
func even(n, limit int) int {
	pieces := (n + limit - 1) / limit
	return (n + pieces - 1) / pieces
}

package placement

import "math"

// judge moves items between the parts of a cut where held-out requests improve: where more of a request's items lie in
// the part that has the most of them.
type judge struct {
	c        *cutter
	start    []int32  // item → its first request in in; one more than there are items
	in       []int32  // requests
	count    []uint16 // [request][part]: items of the request in the part
	parts    int
	requests int
}

// newJudge counts where the items of the requests lie. Items that the cut does not place count for no part.
func newJudge(c *cutter, requests [][]int32) *judge {
	j := &judge{c: c, parts: len(c.share), requests: len(requests), start: make([]int32, len(c.of)+1)}
	j.count = make([]uint16, j.parts*len(requests))
	each := func(visit func(request int32, item int32)) {
		for r, items := range requests {
			for _, i := range items[:min(len(items), math.MaxUint16)] {
				if uint32(i) < uint32(len(c.of)) && c.of[i] != nowhere {
					visit(int32(r), i)
				}
			}
		}
	}
	each(func(_, i int32) { j.start[i]++ })
	var sum int32
	for i, n := range j.start {
		sum += n
		j.start[i] = sum
	}
	j.in = make([]int32, sum)
	each(func(r, i int32) {
		j.start[i]--
		j.in[j.start[i]] = r
		j.row(r)[c.of[i]]++
	})
	return j
}

func (j *judge) row(r int32) []uint16 { return j.count[int(r)*j.parts:][:j.parts] }

// improve tries one move for each item that a request has: to the part that the graph likes best beside the item's own,
// if there is room. It accepts the move if the requests have more items on their best parts afterwards.
func (j *judge) improve() {
	for i := range j.c.of {
		if j.start[i] == j.start[i+1] {
			continue
		}
		if to := j.c.other(i); to >= 0 && j.move(i, int(j.c.of[i]), to) <= 0 {
			j.move(i, to, int(j.c.of[i]))
		} else if to >= 0 {
			j.c.add(int(j.c.of[i]), -1)
			j.c.of[i] = uint16(to)
			j.c.add(to, 1)
		}
	}
}

// move moves an item's counts and returns by how many items the best parts of its requests grew.
func (j *judge) move(i, from, to int) int {
	gain := 0
	for _, r := range j.in[j.start[i]:j.start[i+1]] {
		row := j.row(r)
		gain -= most(row)
		row[from]--
		row[to]++
		gain += most(row)
	}
	return gain
}

func most(row []uint16) int {
	var out uint16
	for _, n := range row {
		out = max(out, n)
	}
	return int(out)
}

// nearly is how much weight another part must have of an item's neighbours, relative to the item's own part. Moves to
// parts with less fit the held-out requests by chance: on Amazon Beauty they made other requests worse.
const nearly = 0.6

// other returns the part, beside its own, that has the most of an item's neighbours, if it has nearly as many and has
// room; -1: there is none.
func (c *cutter) other(i int) int {
	lo, hi := c.from[c.group[i]], c.from[c.group[i]+1]
	c.gather(i, lo, hi)
	best := -1
	for p := lo; p < hi; p++ {
		if p != int(c.of[i]) && c.near[p] > nearly*c.near[c.of[i]] && c.load[p] < c.limit[p] &&
			(best < 0 || c.near[p] > c.near[best]) {
			best = p
		}
	}
	clear(c.near[lo:hi])
	return best
}

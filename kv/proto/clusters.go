package proto

import (
	"cmp"
	"math/bits"
	"slices"
)

// clusters are those of a build: the first occurrence of each, found again by the same tables as an index has, in
// chains that grow.
type clusters struct {
	radius   int32 // squared, in steps
	most     int   // when there are so many, the rare ones go
	rows     []int32
	sketches []uint64
	vectors  [][Width]int8
	counts   []uint32 // histories
	last     []uint32 // the history that it occurred in last
	next     [][Tables]int32
	bits     []uint8 // by row
	first    []int   // by row: of heads
	heads    []int32 // −1: none
}

// newClusters makes tables for rows that occur so often.
func newClusters(seen []uint32, most int, radius int32) *clusters {
	c := &clusters{radius: radius, most: most}
	total := 0
	for _, n := range seen {
		k := bucketBits(int(n) / 2)
		c.bits, c.first = append(c.bits, k), append(c.first, total)
		total += Tables << k
	}
	c.heads = make([]int32, total)
	c.empty()
	return c
}

func (c *clusters) empty() {
	for i := range c.heads {
		c.heads[i] = -1
	}
}

func (c *clusters) head(row int32, table int, sketch uint64) *int32 {
	k := c.bits[row]
	return &c.heads[c.first[row]+table<<k+int(key(sketch, table, k))]
}

// add counts an occurrence in a history.
func (c *clusters) add(row int32, sketch uint64, vector *[Width]int8, history uint32) {
	if k := c.nearest(row, sketch, vector); k >= 0 {
		if c.last[k] != history {
			c.last[k] = history
			c.counts[k]++
		}
		return
	}
	if len(c.rows) >= c.most {
		c.thin()
	}
	c.rows, c.sketches, c.vectors = append(c.rows, row), append(c.sketches, sketch), append(c.vectors, *vector)
	c.counts, c.last, c.next = append(c.counts, 1), append(c.last, history), append(c.next, [Tables]int32{})
	c.link(len(c.rows) - 1)
}

func (c *clusters) link(i int) {
	for t := range Tables {
		h := c.head(c.rows[i], t, c.sketches[i])
		c.next[i][t] = *h
		*h = int32(i)
	}
}

// nearest returns the cluster with the nearest first occurrence within the radius; −1 without one.
func (c *clusters) nearest(row int32, sketch uint64, vector *[Width]int8) int {
	var found [compared]uint32
	var far [compared]uint8
	count := 0
	for t := range Tables {
		steps := 0
		for i := *c.head(row, t, sketch); i >= 0 && steps < scanned; i = c.next[i][t] {
			steps++
			d := uint8(bits.OnesCount64(c.sketches[i] ^ sketch))
			if count < compared || d < far[compared-1] {
				count = keep(&found, &far, count, uint32(i), d)
			}
		}
	}
	best, at := c.radius+1, -1
	for _, i := range found[:count] {
		if d := distance(vector, &c.vectors[i]); d < best {
			best, at = d, int(i)
		}
	}
	return at
}

// thin forgets the clusters that occurred least, a quarter at least: what is frequent comes again.
func (c *clusters) thin() {
	order := slices.Clone(c.counts)
	slices.Sort(order)
	limit := order[len(order)/4]
	c.retain(func(i int) bool { return c.counts[i] > limit })
	c.empty()
	c.next = c.next[:len(c.rows)]
	for i := range c.rows {
		c.link(i)
	}
}

// choose keeps the most frequent clusters, of at least so many histories.
func (c *clusters) choose(most int, least uint32) {
	order := make([]int, len(c.rows))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(c.counts[b], c.counts[a]), cmp.Compare(a, b))
	})
	stay := make([]bool, len(order))
	for _, i := range order[:max(0, min(most, len(order)))] {
		stay[i] = c.counts[i] >= least
	}
	c.retain(func(i int) bool { return stay[i] })
}

// retain drops clusters; links are void afterwards.
func (c *clusters) retain(stay func(i int) bool) {
	n := 0
	for i := range c.rows {
		if stay(i) {
			c.rows[n], c.sketches[n], c.vectors[n], c.counts[n], c.last[n] = c.rows[i], c.sketches[i], c.vectors[i], c.counts[i],
				c.last[i]
			n++
		}
	}
	c.rows, c.sketches, c.vectors, c.counts, c.last = c.rows[:n], c.sketches[:n], c.vectors[:n], c.counts[:n], c.last[:n]
}

package placement

import "math"

// slack is how much larger than its share a part may be: 3 %.
const slack = 0.03

// cutter cuts the items of a graph into parts of given sizes by Fennel (Tsourakakis and others, WSDM 2014): items come
// one after the other, and each goes to the part with the most of its neighbours, less a price that rises with the
// part's size. Restreaming (Nishimura and Ugander, KDD 2013) repeats this: from the second pass on all neighbours have
// a place, those behind in the stream that of the pass before. Items with heavy edges come first (Awadelkarim and
// Ugander, KDD 2020), and the price falls from four times Fennel's to Fennel's: a low price from the start puts most of
// the hot items into one part, which most requests would then prefer. Before the single items, small blocks of items
// that belong together are streamed: single items do not find communities that are spread over all parts.
//
// Items have groups. An item goes to a part of its own group only, and only neighbours in these parts count. One
// group cuts the graph; with a group per node, the parts are the micro-parts of each node.
type cutter struct {
	g     *Graph
	order []int32   // in which items are streamed
	of    []uint16  // item → part, or nowhere
	group []uint16  // item → group, or nowhere: the item is not placed
	from  []int     // group → its first part; one more than there are groups
	share []float64 // part → items it should have
	limit []float64 // part → items it may have

	load  []float64
	price []float64 // of each part, by its load
	mean  float64   // weight of the edges per item
	scale float64   // of prices
	near  []float64 // part → weight of the item's neighbours in it; all 0 between items
}

const nowhere = everywhere

// dear is the price of the first pass when nothing has a place yet.
const dear = 4

// newCutter returns a cutter where no item has a part. share is the wanted size of each part.
func newCutter(g *Graph, order []int32, group []uint16, from []int, share []float64) *cutter {
	c := &cutter{g: g, order: order, of: make([]uint16, g.Items()), group: group, from: from, share: share,
		limit: make([]float64, len(share)), load: make([]float64, len(share)), price: make([]float64, len(share)),
		near: make([]float64, len(share))}
	for i := range c.of {
		c.of[i] = nowhere
	}
	for p, s := range share {
		c.limit[p] = max(math.Ceil(s), math.Floor(s*(1+slack)))
	}
	c.mean = c.inside()
	return c
}

// inside returns the mean weight of an item's edges that could lie within a part, each counted on one side.
func (c *cutter) inside() float64 {
	var sum, n float64
	for i, group := range c.group {
		if group == nowhere {
			continue
		}
		n++
		for at := c.g.start[i]; at < c.g.start[i+1]; at++ {
			if c.group[c.g.near[at]] == group {
				sum += float64(c.g.at(at))
			}
		}
	}
	return sum / 2 / max(n, 1)
}

// run streams all items so many times, at prices that fall from first times Fennel's to Fennel's. It calls tick now and
// then, with the number of items since the last call, and ends with its error.
func (c *cutter) run(passes int, first float64, tick func(items int) error) error {
	const every = 1 << 16
	for k := range passes {
		c.setPrices(k, passes, first)
		for n, i := range c.order {
			if c.group[i] != nowhere {
				c.place(int(i))
			}
			if n%every == every-1 {
				if err := tick(every); err != nil {
					return err
				}
			}
		}
		if err := tick(len(c.order) % every); err != nil {
			return err
		}
	}
	return nil
}

// runBlocks is run with blocks of items instead of single ones.
func (c *cutter) runBlocks(b *blocks, passes int, first float64, tick func(items int) error) error {
	for k := range passes {
		c.setPrices(k, passes, first)
		at := int32(0)
		for n, end := range b.ends {
			c.placeAll(b.items[at:end])
			at = end
			if n%(1<<14) == 0 {
				if err := tick(0); err != nil {
					return err
				}
			}
		}
		if err := tick(len(c.order)); err != nil {
			return err
		}
	}
	return nil
}

// setPrices sets the prices of pass k.
func (c *cutter) setPrices(k, passes int, first float64) {
	price := first
	if passes > 1 {
		price -= (first - 1) * float64(k) / float64(passes-1)
	}
	c.scale = 1.5 * c.mean * price
	for p := range c.load {
		c.add(p, 0)
	}
}

// put gives an item its place before the first pass.
func (c *cutter) put(i, part int) {
	c.of[i] = uint16(part)
	c.load[part]++
}

// heaviest returns the items by the falling weight of their edges, then by number.
func heaviest(g *Graph) []int32 {
	weight := make([]float64, g.Items())
	for i := range weight {
		for at := g.start[i]; at < g.start[i+1]; at++ {
			weight[i] += float64(g.at(at))
		}
	}
	return byUses(weight)
}

// place moves item i to its best part.
func (c *cutter) place(i int) {
	lo, hi := c.from[c.group[i]], c.from[c.group[i]+1]
	if p := c.of[i]; p != nowhere {
		c.add(int(p), -1)
	}
	c.gather(i, lo, hi)
	best, most := lo, math.Inf(-1)
	for p := lo; p < hi; p++ {
		if gain := c.near[p] - c.price[p]; gain > most && c.load[p] < c.limit[p] {
			best, most = p, gain
		}
		c.near[p] = 0
	}
	c.of[i] = uint16(best)
	c.add(best, 1)
}

// placeAll moves the items of a block, all of one group, to the part that is best for them together. Where no part has
// room for all of them, they go to the emptiest one: passes over single items keep the limits.
func (c *cutter) placeAll(items []int32) {
	lo, hi := c.from[c.group[items[0]]], c.from[c.group[items[0]]+1]
	for _, i := range items {
		if p := c.of[i]; p != nowhere {
			c.add(int(p), -1)
			c.of[i] = nowhere
		}
	}
	for _, i := range items {
		c.gather(int(i), lo, hi)
	}
	n := float64(len(items))
	best, most, roomy := lo, math.Inf(-1), false
	for p := lo; p < hi; p++ {
		room := c.load[p]+n <= c.limit[p]
		gain := c.near[p] - n*c.scale*math.Sqrt((c.load[p]+n/2)/c.share[p])
		if !room {
			gain = -c.load[p] / c.share[p]
		}
		if room && !roomy || room == roomy && gain > most {
			best, most, roomy = p, gain, room
		}
		c.near[p] = 0
	}
	for _, i := range items {
		c.of[i] = uint16(best)
	}
	c.add(best, n)
}

// gather sums the weights of the edges from item i to each of the parts lo to hi-1 into near.
func (c *cutter) gather(i, lo, hi int) {
	at, end := c.g.start[i], c.g.start[i+1]
	if c.g.weight == nil {
		for ; at < end; at++ {
			if p := int(c.of[c.g.near[at]]); p >= lo && p < hi {
				c.near[p]++
			}
		}
		return
	}
	for ; at < end; at++ {
		if p := int(c.of[c.g.near[at]]); p >= lo && p < hi {
			c.near[p] += float64(c.g.weight[at])
		}
	}
}

// add changes the number of items of a part. The price is Fennel's with γ = 1.5 and α = m·√k/n^1.5, written for
// parts of any size: 1.5·m/n·√(load/share).
func (c *cutter) add(p int, n float64) {
	c.load[p] += n
	if c.share[p] == 0 {
		return // its limit is 0
	}
	c.price[p] = c.scale * math.Sqrt(c.load[p]/c.share[p])
}

package placement

// blocks are items that are placed together: block b is items[ends[b-1]:ends[b]].
type blocks struct{ items, ends []int32 }

// clusterer joins items that are requested together into small blocks, by label propagation with a limit on sizes.
type clusterer struct {
	*cutter
	block []int32   // item → block, named after an item
	count []int32   // block → items
	sum   []float32 // block → weight of the item's neighbours in it; all 0 between items
	met   []int32   // blocks with a weight
}

// cluster joins items into blocks of at most size items, in so many rounds. In each, every item in turn joins the
// block, among those with room, that has the most of its neighbours. A block has items of one group.
func (c *cutter) cluster(size, rounds int, tick func(items int) error) (*blocks, error) {
	n := len(c.of)
	k := &clusterer{cutter: c, block: make([]int32, n), count: make([]int32, n), sum: make([]float32, n)}
	for i := range k.block {
		k.block[i], k.count[i] = int32(i), 1
	}
	const every = 1 << 16
	for range rounds {
		for at, i := range c.order {
			if c.group[i] != nowhere {
				k.join(i, int32(size))
			}
			if at%every == every-1 {
				if err := tick(every); err != nil {
					return nil, err
				}
			}
		}
		if err := tick(n % every); err != nil {
			return nil, err
		}
	}
	return k.list(), nil
}

// join moves an item to its best block.
func (k *clusterer) join(i, size int32) {
	for at := k.g.start[i]; at < k.g.start[i+1]; at++ {
		o := k.g.near[at]
		if k.group[o] != k.group[i] {
			continue
		}
		b := k.block[o]
		if k.sum[b] == 0 {
			k.met = append(k.met, b)
		}
		k.sum[b] += k.g.at(at)
	}
	own := k.block[i]
	best := own
	for _, b := range k.met {
		if k.sum[b] > k.sum[best] && k.count[b] < size {
			best = b
		}
	}
	for _, b := range k.met {
		k.sum[b] = 0
	}
	k.met = k.met[:0]
	k.count[own]--
	k.count[best]++
	k.block[i] = best
}

// list returns the blocks in the order of their first items in the stream, which is that of their items too.
func (k *clusterer) list() *blocks {
	out := &blocks{}
	place := make([]int32, len(k.block))
	var sum int32
	for _, i := range k.order {
		if b := k.block[i]; k.group[i] != nowhere && k.count[b] > 0 {
			place[b] = int32(len(out.ends))
			out.ends = append(out.ends, sum) // where it starts; putting its items moves that to where it ends
			sum += k.count[b]
			k.count[b] = 0
		}
	}
	out.items = make([]int32, sum)
	for _, i := range k.order {
		if k.group[i] != nowhere {
			end := &out.ends[place[k.block[i]]]
			out.items[*end] = i
			*end++
		}
	}
	return out
}

package attend

import "slices"

// costs are in quarters of a step's time: what a unit takes besides its steps, and what a part of a
// tile takes besides, for writing its sums and for its share of adding them up.
type costs struct{ unit, part int }

const (
	stepCost = 4
	maxParts = 16 // of a tile
	// Tiles are cut when that saves more than 3 in 100: what it costs is an estimate.
	worthwhile = 103
)

// measuredCosts come from times on an H200. Packings of 4,096 causal tokens with 2, 3 and 4 per unit
// differ as if a unit took 5; too little hurts more than too much, because short units are packed
// together. A part takes 5 to 20, the more the more of them end at once; with 6, 1,024 causal tokens are
// cut as they were when they ran fastest.
var measuredCosts = costs{unit: 6, part: 6}

// unit is what a block does at a time: a tile, or some steps of it, for one KV head.
type unit struct {
	tile, head  int32
	from, to    int32 // steps of the tile
	part, first int32 // number of the part, and of the first part of its tile and head; −1 when there are none
	parts       int32
	counter     int32 // number of the split tile and head
	block       int32
}

// cut is how tiles become units and who does them.
type cut struct {
	costs  costs
	units  []unit // those of block 0, then those of block 1, …
	blocks []span // per block its units
	parts  int32  // of all split tiles
	split  int32  // tiles (and heads) that are split

	order  []uint64 // tiles by falling steps
	room   []int32  // see clearRooms
	queued []unit   // in the order in which they were dealt out
}

// cutUnits deals the tiles out to blocks. Where that leaves blocks without work for long, tiles are cut
// into parts when that lets the last block end earlier.
func (p *plan) cutUnits(heads, blocks int) {
	p.order = p.order[:0]
	total, longest := 0, 0
	for i := range p.tiles {
		steps := int(p.tiles[i].steps)
		total += (stepCost*steps + p.costs.unit) * heads
		longest = max(longest, stepCost*steps+p.costs.unit)
		p.order = append(p.order, uint64(1<<31-steps)<<32|uint64(i))
	}
	slices.Sort(p.order)
	share := (total + blocks - 1) / blocks
	whole := max(share, longest)
	low := whole
	for more := whole/64 + 1; !p.pack(heads, blocks, whole, false); more *= 2 {
		low, whole = whole+1, whole+more
	}
	whole = least(low, whole, func(room int) bool { return p.pack(heads, blocks, room, false) })
	if whole*100 > share*worthwhile {
		apart := least(share, whole, func(room int) bool { return p.pack(heads, blocks, room, true) })
		if apart*worthwhile < whole*100 && p.pack(heads, blocks, apart, true) {
			p.list(blocks)
			return
		}
	}
	p.pack(heads, blocks, whole, false)
	p.list(blocks)
}

// least returns about the least room between low and high with which try succeeds; it does with high.
func least(low, high int, try func(room int) bool) int {
	for high-low > low/64 {
		if middle := (low + high) / 2; try(middle) {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return high
}

// pack puts tiles, the long ones first, into the first block that has room for them, and reports
// whether all fit. Tiles that no block has room for are cut where that is allowed: their steps go where
// there is the most room. Where a block gets few tiles, giving each to the least busy block would be up
// to a tenth worse.
func (p *plan) pack(heads, blocks, room int, cut bool) bool {
	p.queued, p.parts, p.split = p.queued[:0], 0, 0
	p.clearRooms(blocks, room)
	for _, o := range p.order {
		u := unit{tile: int32(o & (1<<32 - 1)), part: -1, first: -1, parts: 1}
		u.to = p.tiles[u.tile].steps
		for head := range heads {
			u.head = int32(head)
			if ok := p.put(u, stepCost*int(u.to)+p.costs.unit); !ok && (!cut || !p.putParts(u)) {
				return false
			}
		}
	}
	return true
}

// putParts puts a tile in as many parts as it takes.
func (p *plan) putParts(u unit) bool {
	first, overhead := len(p.queued), p.costs.unit+p.costs.part
	for end := u.to; u.from < end; u.from = u.to {
		u.to = end
		if p.put(u, stepCost*int(u.to-u.from)+overhead) {
			continue
		}
		n := (int(p.room[1]) - overhead) / stepCost // as much as fits anywhere
		if n < 1 {
			return false
		}
		u.to = u.from + int32(n)
		p.put(u, stepCost*n+overhead)
	}
	return p.number(p.queued[first:])
}

// clearRooms gives every block the same room. A tree over the blocks holds the most room below each node.
func (p *plan) clearRooms(blocks, room int) {
	leaves := 1
	for leaves < blocks {
		leaves *= 2
	}
	p.room = slices.Grow(p.room[:0], 2*leaves)[:2*leaves]
	for i := range leaves {
		p.room[leaves+i] = 0
		if i < blocks {
			p.room[leaves+i] = int32(room)
		}
	}
	for i := leaves - 1; i > 0; i-- {
		p.room[i] = max(p.room[2*i], p.room[2*i+1])
	}
}

// put gives a unit to the first block that has room for it, if there is one.
func (p *plan) put(u unit, cost int) bool {
	if int(p.room[1]) < cost {
		return false
	}
	leaves := len(p.room) / 2
	i := 1
	for i < leaves {
		i *= 2
		if int(p.room[i]) < cost {
			i++
		}
	}
	u.block = int32(i - leaves)
	p.queued = append(p.queued, u)
	p.room[i] -= int32(cost)
	for i /= 2; i > 0; i /= 2 {
		p.room[i] = max(p.room[2*i], p.room[2*i+1])
	}
	return true
}

// number numbers the parts of a tile, if there are several.
func (p *plan) number(parts []unit) bool {
	if len(parts) == 1 {
		return true
	}
	for i := range parts {
		u := &parts[i]
		u.part, u.first, u.parts, u.counter = p.parts+int32(i), p.parts, int32(len(parts)), p.split
	}
	p.parts += int32(len(parts))
	p.split++
	return len(parts) <= maxParts
}

// list sorts the units by blocks.
func (p *plan) list(blocks int) {
	p.blocks, p.units = p.blocks[:0], append(p.units[:0], p.queued...)
	for range blocks {
		p.blocks = append(p.blocks, span{})
	}
	for i := range p.queued {
		p.blocks[p.queued[i].block].end++
	}
	next := int32(0)
	for b := range p.blocks {
		n := p.blocks[b].end
		p.blocks[b] = span{next, next}
		next += n
	}
	for i := range p.queued {
		b := &p.blocks[p.queued[i].block]
		p.units[b.end] = p.queued[i]
		b.end++
	}
}

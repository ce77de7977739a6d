package attend

import "slices"

const maxParts = 16 // of a tile

// Costs are in quarters of a step's time: what a unit takes besides its steps, and what a part of a
// tile takes besides, for writing its sums and for its share of adding them up.
type Costs struct{ Unit, Part int }

const stepCost = 4

var measuredCosts = Costs{Unit: 3, Part: 5}

// unit is a tile or a part of one: up to all of its steps. It is done once per KV head.
type unit struct {
	tile             int32
	from, to         int32 // steps of the tile
	part, first      int32 // number of the part, and of the tile's first, or −1
	parts, splitTile int32
}

// cut is how tiles become units and who does them.
type cut struct {
	costs   Costs
	units   []unit
	parts   int32 // of all split tiles
	split   int32 // tiles that are split
	blocks  []span
	entries []int32 // unit | head<<20, of block 0, then block 1, …

	order []uint64 // units by falling cost
	room  []uint64 // see pack
	owner []int32  // per entry in the order of costs
}

// cutUnits splits tiles where that lets the batch end earlier, and deals the units out to blocks.
// Tiles are not split where blocks is 0; then there are no entries either.
func (p *plan) cutUnits(heads, blocks, maxPartials int) {
	p.makeUnits(1 << 30)
	if blocks == 0 {
		return
	}
	if best := p.bestLimit(heads, blocks, maxPartials); best < 1<<30 {
		p.makeUnits(best)
	}
	p.deal(heads, blocks)
	p.list(heads, blocks)
}

// bestLimit tries a few limits on the steps of a unit and returns the one with which the last block
// ends first.
func (p *plan) bestLimit(heads, blocks, maxPartials int) int32 {
	const whole = 1 << 30
	if len(p.tiles)*heads >= 8*blocks {
		return whole
	}
	total, longest := 0, int32(0)
	for i := range p.tiles {
		total += int(p.tiles[i].steps) * heads
		longest = max(longest, p.tiles[i].steps)
	}
	best, least := int32(whole), p.deal(heads, blocks)
	before := longest
	for _, quarters := range [...]int{4, 3, 2, 1} { // of an even share
		limit := max(int32((total*quarters/4+blocks-1)/blocks), 1)
		if limit >= before {
			continue
		}
		before = limit
		p.makeUnits(limit)
		if int(p.parts)*heads > maxPartials {
			break
		}
		if p.bound(heads, blocks) >= least {
			continue
		}
		if load := p.deal(heads, blocks); load < least {
			best, least = limit, load
		}
	}
	p.makeUnits(whole)
	return best
}

// makeUnits cuts every tile into as few parts of about equal size as have no more than limit steps.
func (p *plan) makeUnits(limit int32) {
	p.units, p.parts, p.split = p.units[:0], 0, 0
	for i := range p.tiles {
		steps := p.tiles[i].steps
		n := min((steps+limit-1)/limit, maxParts)
		if n <= 1 {
			p.units = append(p.units, unit{tile: int32(i), to: steps, part: -1, first: -1, parts: 1})
			continue
		}
		for part := range n {
			p.units = append(p.units, unit{tile: int32(i), from: steps * part / n, to: steps * (part + 1) / n,
				part: p.parts + part, first: p.parts, parts: n, splitTile: p.split})
		}
		p.parts += n
		p.split++
	}
}

// deal gives the units to blocks and returns what the busiest has to do. It packs them, the long ones
// first, into the first block that has room, for the least room (by bisection) with which that ends well:
// where a block gets few units, giving each to the least busy block is up to a tenth worse.
func (p *plan) deal(heads, blocks int) uint64 {
	p.order = p.order[:0]
	for i := range p.units {
		p.order = append(p.order, (1<<31-p.cost(&p.units[i]))<<32|uint64(i))
	}
	slices.Sort(p.order)
	low := p.bound(heads, blocks)
	high := low
	for !p.pack(heads, blocks, high) {
		low = high + 1
		high += max(1, high/32)
	}
	for high-low > low/128 {
		middle := (low + high) / 2
		if p.pack(heads, blocks, middle) {
			high = middle
		} else {
			low = middle + 1
		}
	}
	p.pack(heads, blocks, high)
	return high
}

// bound is what the busiest block has to do at the least.
func (p *plan) bound(heads, blocks int) uint64 {
	total, longest := uint64(0), uint64(0)
	for i := range p.units {
		cost := p.cost(&p.units[i])
		total += cost * uint64(heads)
		longest = max(longest, cost)
	}
	return max(longest, (total+uint64(blocks)-1)/uint64(blocks))
}

func (p *plan) cost(u *unit) uint64 {
	cost := stepCost*int(u.to-u.from) + p.costs.Unit
	if u.part >= 0 {
		cost += p.costs.Part
	}
	return uint64(cost)
}

// pack puts every unit into the first block that has room for it, if all of them fit. A tree over the
// blocks holds the most room below each node.
func (p *plan) pack(heads, blocks int, room uint64) bool {
	leaves := 1
	for leaves < blocks {
		leaves *= 2
	}
	p.owner, p.room = p.owner[:0], slices.Grow(p.room[:0], 2*leaves)[:2*leaves]
	for i := range leaves {
		p.room[leaves+i] = 0
		if i < blocks {
			p.room[leaves+i] = room
		}
	}
	for i := leaves - 1; i > 0; i-- {
		p.room[i] = max(p.room[2*i], p.room[2*i+1])
	}
	for _, o := range p.order {
		cost := 1<<31 - o>>32
		for range heads {
			if p.room[1] < cost {
				return false
			}
			i := 1
			for i < leaves {
				i *= 2
				if p.room[i] < cost {
					i++
				}
			}
			p.owner = append(p.owner, int32(i-leaves))
			p.room[i] -= cost
			for i /= 2; i > 0; i /= 2 {
				p.room[i] = max(p.room[2*i], p.room[2*i+1])
			}
		}
	}
	return true
}

// list writes every block's entries, the long ones first.
func (p *plan) list(heads, blocks int) {
	p.blocks, p.entries = p.blocks[:0], append(p.entries[:0], p.owner...)
	for range blocks {
		p.blocks = append(p.blocks, span{})
	}
	for _, b := range p.owner {
		p.blocks[b].end++
	}
	next := int32(0)
	for b := range p.blocks {
		n := p.blocks[b].end
		p.blocks[b] = span{next, next}
		next += n
	}
	for i, b := range p.owner {
		unit, head := int32(p.order[i/heads]&0xfffff), int32(i%heads)
		p.entries[p.blocks[b].end] = unit | head<<20
		p.blocks[b].end++
	}
}

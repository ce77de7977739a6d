package attend

import (
	"slices"

	"grebe/compute/cuda/split"
)

// costs are in quarters of a step's time: what a unit takes besides its steps, and what a part of a
// tile takes besides, for writing its sums and for its share of adding them up.
type costs struct{ unit, part int }

const (
	stepCost = 4
	maxParts = split.MaxParts // of a tile
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
	model  *split.Model // chooses how; nil: the costs do
	forced *split.Split // for measurements: the way to cut
	hurry  bool         // cut by few tries
	units  []unit       // those of block 0, then those of block 1, …
	blocks []span       // per block its units
	parts  int32        // of all split tiles
	split  int32        // tiles (and heads) that are split

	order  []uint64 // tiles by falling steps
	room   []int32  // see clearRooms
	queued []unit   // in the order in which they were dealt out
	work   split.Work
}

// cutUnits deals the tiles out to blocks, cut as the model chooses. parts are at most so many.
func (p *plan) cutUnits(heads, blocks, parts int) {
	p.describe(heads, blocks, parts)
	if p.hurry && p.cutSoon(heads, blocks, parts) {
		p.list(blocks)
		return
	}
	way := p.model.Choose(&p.work)
	if p.forced != nil {
		way = *p.forced
	}
	switch way.Form {
	case split.Whole:
		p.pack(heads, blocks, p.wholeRoom(heads, blocks), false)
	case split.Balanced:
		p.cutBalanced(heads, blocks)
	case split.Even:
		p.cutEven(heads, blocks, way.Steps)
	default:
		p.cutEstimated(heads, blocks)
	}
	p.list(blocks)
}

// describe says what there is to do, and puts the tiles in order.
func (p *plan) describe(heads, blocks, parts int) {
	w := &p.work
	w.Heads, w.Blocks, w.Parts = heads, blocks, parts
	clear(w.Counts)
	p.order = p.order[:0]
	for i := range p.tiles {
		steps := int(p.tiles[i].steps)
		for len(w.Counts) <= steps {
			w.Counts = append(w.Counts, 0)
		}
		w.Counts[steps]++
		p.order = append(p.order, uint64(1<<31-steps)<<32|uint64(i))
	}
	slices.Sort(p.order)
}

// shares returns an even share of all costs, and the costs of the longest tile.
func (p *plan) shares(heads, blocks int) (share, longest int) {
	total := 0
	for i := range p.tiles {
		cost := stepCost*int(p.tiles[i].steps) + p.costs.unit
		total += cost * heads
		longest = max(longest, cost)
	}
	return (total + blocks - 1) / blocks, longest
}

// wholeRoom returns the room that blocks need when no tile is cut.
func (p *plan) wholeRoom(heads, blocks int) int {
	share, longest := p.shares(heads, blocks)
	room := max(share, longest)
	low := room
	for more := room/64 + 1; !p.pack(heads, blocks, room, false); more *= 2 {
		low, room = room+1, room+more
	}
	return least(low, room, func(room int) bool { return p.pack(heads, blocks, room, false) })
}

// cutBalanced cuts tiles so that the last block ends as early as the costs allow.
func (p *plan) cutBalanced(heads, blocks int) {
	whole := p.wholeRoom(heads, blocks)
	share, _ := p.shares(heads, blocks)
	apart := least(share, whole, func(room int) bool { return p.pack(heads, blocks, room, true) })
	if !p.pack(heads, blocks, apart, true) {
		p.pack(heads, blocks, whole, false)
	}
}

// cutSoon is about as good as cutBalanced, in a few tries instead of a search. It reports whether one was good.
func (p *plan) cutSoon(heads, blocks, parts int) bool {
	room, _ := p.shares(heads, blocks)
	for range 4 {
		room += room/24 + 1
		if p.pack(heads, blocks, room, true) {
			return int(p.parts) <= parts
		}
	}
	return false
}

// cutEstimated cuts tiles when that lets the last block end earlier.
func (p *plan) cutEstimated(heads, blocks int) {
	whole := p.wholeRoom(heads, blocks)
	share, _ := p.shares(heads, blocks)
	if whole*100 > share*worthwhile {
		apart := least(share, whole, func(room int) bool { return p.pack(heads, blocks, room, true) })
		if apart*worthwhile < whole*100 && p.pack(heads, blocks, apart, true) {
			return
		}
	}
	p.pack(heads, blocks, whole, false)
}

// cutEven cuts all tiles of more than steps steps into parts of about the same size, and gives each to the
// block that is free first.
func (p *plan) cutEven(heads, blocks, steps int) {
	p.queued, p.parts, p.split = p.queued[:0], 0, 0
	p.clearRooms(blocks, 1<<30)
	for _, o := range p.order {
		u := unit{tile: int32(o & (1<<32 - 1)), part: -1, first: -1, parts: 1}
		all := p.tiles[u.tile].steps
		n := (all + int32(steps) - 1) / int32(steps)
		for head := range heads {
			u.head = int32(head)
			first := len(p.queued)
			for i := range n {
				u.from, u.to = all*i/n, all*(i+1)/n
				cost := stepCost*int(u.to-u.from) + p.costs.unit
				if n > 1 {
					cost += p.costs.part
				}
				p.putRoomiest(u, cost)
			}
			p.number(p.queued[first:])
		}
	}
}

// cutSingly gives every whole tile and head to a block of its own, the long ones first, and returns how many there are:
// the GPU deals them out itself, and planning takes no time.
func (p *plan) cutSingly(heads int) (blocks int) {
	p.describe(heads, 1, 0)
	p.queued, p.parts, p.split = p.queued[:0], 0, 0
	for _, o := range p.order {
		u := unit{tile: int32(o & (1<<32 - 1)), part: -1, first: -1, parts: 1}
		u.to = p.tiles[u.tile].steps
		for head := range heads {
			u.head, u.block = int32(head), int32(len(p.queued))
			p.queued = append(p.queued, u)
		}
	}
	p.list(len(p.queued))
	return len(p.queued)
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
	p.give(u, i, cost)
	return true
}

// putRoomiest gives a unit to the first of the blocks that have the most room.
func (p *plan) putRoomiest(u unit, cost int) {
	i := 1
	for leaves := len(p.room) / 2; i < leaves; {
		i *= 2
		if p.room[i] < p.room[i+1] {
			i++
		}
	}
	p.give(u, i, cost)
}

// give gives a unit to the block at leaf i of the tree of rooms.
func (p *plan) give(u unit, i, cost int) {
	u.block = int32(i - len(p.room)/2)
	p.queued = append(p.queued, u)
	p.room[i] -= int32(cost)
	for i /= 2; i > 0; i /= 2 {
		p.room[i] = max(p.room[2*i], p.room[2*i+1])
	}
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

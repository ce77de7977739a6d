package attend

import "math"

// Words of the list's header. Offsets count words from its start. attend.cuh has the same.
const (
	listRows = iota
	listSlotsUsed
	listBlockCount
	listUnitCount
	_
	listUnits
	listSpans
	listSlots
	listLows
	listPieceCount
	listPieces
	listScales
	listHighs
	listBlocks = 16
)

const (
	unitWords  = 16
	blockWords = 2
)

// encode appends the list as the kernels read it. list is empty.
func (p *plan) encode(list []int32) []int32 {
	list = grow(list, listBlocks+blockWords*len(p.blocks))
	list[listRows], list[listSlotsUsed] = int32(len(p.slot)), p.slots
	list[listBlockCount], list[listUnitCount] = int32(len(p.blocks)), int32(len(p.units))
	for i, b := range p.blocks {
		list[listBlocks+blockWords*i], list[listBlocks+blockWords*i+1] = b.start, b.end-b.start
	}
	list = p.encodeUnits(list)
	list[listSlots] = int32(len(list))
	list = append(list, p.slot...)
	list[listLows] = int32(len(list))
	list = append(list, p.low...)
	if list[listHighs] = list[listSlots]; len(p.high) > 0 {
		list[listHighs] = int32(len(list))
		list = append(list, p.high...)
	}
	list[listScales] = int32(len(list))
	for _, v := range p.scales {
		list = append(list, int32(math.Float32bits(v)))
	}
	return p.encodePieces(list)
}

// grow appends n zeros, and some more for alignment.
func grow(list []int32, n int) []int32 {
	for range n {
		list = append(list, 0)
	}
	for len(list)%4 != 0 {
		list = append(list, 0)
	}
	return list
}

// encodeUnits appends the units and, behind them, those of their spans that do not fit in.
func (p *plan) encodeUnits(list []int32) []int32 {
	at := len(list)
	list = grow(list, unitWords*len(p.units))
	list[listUnits], list[listSpans] = int32(at), int32(len(list))
	further := int32(0)
	for i := range p.units {
		u := &p.units[i]
		t := &p.tiles[u.tile]
		words := list[at+unitWords*i : at+unitWords*(i+1)]
		n, window := int32(0), int32(-1)
		first := further
		step := int32(0)
		for j := t.spans.start; j <= t.spans.end; j++ {
			s := t.window
			if j < t.spans.end {
				s = p.spans[j]
			}
			part, ok := clip(s, step, u.from, u.to)
			step += steps(s)
			if !ok {
				continue
			}
			if j == t.spans.end {
				window = n
			}
			if n < 2 {
				words[12+2*n], words[13+2*n] = part.start, part.end
			} else {
				list = append(list, part.start, part.end)
				further++
			}
			n++
		}
		words = list[at+unitWords*i : at+unitWords*(i+1)] // it may have moved
		words[0], words[1], words[2], words[3] = t.row, t.tokens|u.head<<8, u.to-u.from, t.maxLow
		words[4], words[5], words[6], words[7] = t.minSlot, u.part, u.first, u.parts
		words[8], words[9], words[10], words[11] = u.counter, first, n, window
	}
	return grow(list, 0)
}

// clip returns the part of s, whose first step is number step of the tile, that lies in the steps [from, to).
func clip(s span, step, from, to int32) (span, bool) {
	first, last := max(from, step), min(to, step+steps(s))
	if first >= last {
		return span{}, false
	}
	return span{s.start + (first-step)*stepKeys, min(s.end, s.start+(last-step)*stepKeys)}, true
}

func (p *plan) encodePieces(list []int32) []int32 {
	list = grow(list, 0)
	list[listPieceCount], list[listPieces] = int32(len(p.pieces)), int32(len(list))
	for i := range p.pieces {
		c := &p.pieces[i]
		list = append(list, int32(uint32(c.addr)), int32(uint32(c.addr>>32)), c.room, c.token, c.tokens, c.slot,
			int32(uint32(c.home)), int32(uint32(c.home>>32)))
	}
	return list
}

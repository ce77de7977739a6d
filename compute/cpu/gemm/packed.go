package gemm

import "unsafe"

// packed holds rows of a block, packed for kernels that read them many times: in panels of at most
// 14 rows of nearly equal height, the k-th values of all rows of a panel (of int8: fours of values) in one
// line of the cache. Panels are cut into pieces of some steps of k, and the pieces of all panels that a block of the
// product reads lie together. It is the memory of one worker.
type packed struct {
	base        unsafe.Pointer
	a           *Rows // what is packed, or nil
	row, rows   int
	first, last int // steps
	piece       int // steps
	step        int // bytes of a step of a panel
	offsets     [16]int
}

const (
	packedHeight = 14 // rows of a panel at most
	packedStep   = stepDepth * 64

	maxPackedRows  = 128
	maxPackedSteps = 1024
	packedBytes    = (maxPackedRows + packedHeight - 1) / packedHeight * maxPackedSteps * packedStep
)

// packedPanels returns the number of panels of so many rows.
func packedPanels(rows int) int { return (rows + packedHeight - 1) / packedHeight }

// packedRow returns the first row of panel q.
func packedRow(rows, panels, q int) int { return q * rows / panels }

// at returns the address of a step of panel q.
func (p *packed) at(q, step int) unsafe.Pointer {
	step -= p.first
	start := step / p.piece * p.piece
	length := min(p.piece, p.last-p.first-start)
	return unsafe.Add(p.base, (start*packedPanels(p.rows)+q*length+step-start)*p.step)
}

// hold packs rows of a from a step on, unless it holds that step of them: all steps that there is room
// for, in pieces.
func (p *packed) hold(pack func(steps int, src, offsets, dst unsafe.Pointer), a *Rows, row, rows, step, piece int) {
	if p.a == a && p.row == row && p.rows == rows && p.piece == piece && p.first <= step && step < p.last {
		return
	}
	last := min(a.steps, step+maxPackedSteps/piece*piece)
	*p = packed{base: p.base, a: a, row: row, rows: rows, first: step, last: last, piece: piece,
		step: a.form.stepBytes() / 4 * 64}
	panels := packedPanels(rows)
	for s := step; s < last; s += piece {
		for q := range panels {
			r, end := packedRow(rows, panels, q), packedRow(rows, panels, q+1)
			for i := range p.offsets { // the last row stands in for those that a panel lacks
				p.offsets[i] = min(i, end-r-1) * a.stride
			}
			pack(min(piece, last-s), a.at(row+r, s), unsafe.Pointer(&p.offsets), p.at(q, s))
		}
	}
}

package gemm

import "unsafe"

// packed holds rows of a block over some steps of k, packed for kernels that read them many times: in
// panels of at most 14 rows of nearly equal height, the k-th values of all rows of a panel in one
// line of the cache. It is the memory of one worker and stays in L2.
type packed struct {
	base        unsafe.Pointer
	a           *Rows // what is packed, or nil
	row, rows   int
	first, last int // steps
	offsets     [16]int
}

const (
	packedHeight = 14 // rows of a panel at most
	packedStep   = stepDepth * 64

	maxPackedRows  = 128
	maxPackedSteps = 48
	packedBytes    = (maxPackedRows + packedHeight - 1) / packedHeight * maxPackedSteps * packedStep
)

// packedPanels returns the number of panels of so many rows.
func packedPanels(rows int) int { return (rows + packedHeight - 1) / packedHeight }

// packedRow returns the first row of panel q.
func packedRow(rows, panels, q int) int { return q * rows / panels }

// at returns the address of a step of panel q.
func (p *packed) at(q, step int) unsafe.Pointer {
	return unsafe.Add(p.base, (q*(p.last-p.first)+step-p.first)*packedStep)
}

// set packs steps [first, last) of rows of a, unless that is what it holds.
func (p *packed) set(pack func(steps int, src, offsets, dst unsafe.Pointer), a *Rows, row, rows, first, last int) {
	if p.a == a && p.row == row && p.rows == rows && p.first == first && p.last == last {
		return
	}
	*p = packed{base: p.base, a: a, row: row, rows: rows, first: first, last: last}
	panels := packedPanels(rows)
	for q := range panels {
		r, end := packedRow(rows, panels, q), packedRow(rows, panels, q+1)
		for i := range p.offsets { // the last row stands in for those that a panel lacks
			p.offsets[i] = min(i, end-r-1) * a.stride
		}
		pack(last-first, a.at(row+r, first), unsafe.Pointer(&p.offsets), p.at(q, first))
	}
}

package gemm

import (
	"math"
	"unsafe"
)

// The kernels in portable Go. Products are rounded before they are added (float32(a*b) + c), so that
// no compiler fuses one kernel and not another.

const (
	plainRows  = 2
	plainOuter = 64
	plainInner = 8
)

var plainF32 = kernels{
	panelRows: plainRows, blockRows: 256, leastRows: 256, outer: plainOuter, inner: plainInner,
	block: plainBlockF32, store: plainStore, add: plainAdd, gated: plainGated, gatedBF16: plainGatedBF16,
}

var plainBF16 = kernels{
	panelRows: plainRows, blockRows: 256, leastRows: 256, outer: plainOuter, inner: plainInner,
	block: plainBlockBF16, store: plainStore, add: plainAdd, gated: plainGated, gatedBF16: plainGatedBF16,
}

type sumRow = [panelCols]float32

func plainBlockF32(pt *part) {
	for i := range pt.b {
		plainBlock(pt, i, unsafe.Slice((*sumRow)(pt.b[i]), pt.steps*stepDepth))
	}
}

// plainBlockBF16 widens a step of weights at a time and multiplies it as float32.
func plainBlockBF16(pt *part) {
	var wide [stepDepth]sumRow
	one := *pt
	for s := range pt.steps {
		one.step, one.steps = pt.step+s, 1
		for i := range pt.b {
			tiles := (*[2][16][16]uint32)(unsafe.Add(pt.b[i], s*2048))
			for c := range panelCols {
				for k := range 16 {
					u := tiles[c/16][k][c%16]
					wide[2*k][c] = math.Float32frombits(u << 16)
					wide[2*k+1][c] = math.Float32frombits(u &^ 0xffff)
				}
			}
			plainBlock(&one, i, wide[:])
		}
		one.add = 1
	}
}

// plainBlock multiplies by the i-th panel, columns in fours, two rows at a time.
func plainBlock(pt *part, i int, b []sumRow) {
	sums := unsafe.Slice((*sumRow)(pt.sums[i]), pt.rows)
	for r := 0; r < pt.rows; r += plainRows {
		other := min(r+1, pt.rows-1)
		plainPair(pt.floats(r), pt.floats(other), b, &sums[r], &sums[other], pt.add)
	}
}

// floats returns the steps of a row.
func (pt *part) floats(r int) []float32 {
	return unsafe.Slice((*float32)(pt.a.at(pt.row+r, pt.step)), pt.steps*stepDepth)
}

//go:norace
func plainPair(a0, a1 []float32, b []sumRow, s0, s1 *sumRow, add int) {
	a1, b = a1[:len(a0)], b[:len(a0)]
	for c := 0; c < panelCols; c += 4 {
		var x0, x1, x2, x3, y0, y1, y2, y3 float32
		if add != 0 {
			x0, x1, x2, x3 = s0[c], s0[c+1], s0[c+2], s0[c+3]
			y0, y1, y2, y3 = s1[c], s1[c+1], s1[c+2], s1[c+3]
		}
		for k, x := range a0 {
			w := (*[4]float32)(b[k][c:])
			y := a1[k]
			x0 += float32(x * w[0])
			x1 += float32(x * w[1])
			x2 += float32(x * w[2])
			x3 += float32(x * w[3])
			y0 += float32(y * w[0])
			y1 += float32(y * w[1])
			y2 += float32(y * w[2])
			y3 += float32(y * w[3])
		}
		s1[c], s1[c+1], s1[c+2], s1[c+3] = y0, y1, y2, y3
		s0[c], s0[c+1], s0[c+2], s0[c+3] = x0, x1, x2, x3
	}
}

func plainStore(rows int, sums, bias, dst unsafe.Pointer, stride int) {
	b := (*sumRow)(bias)
	for r := range rows {
		s, d := (*sumRow)(unsafe.Add(sums, r*sumBytes)), (*sumRow)(unsafe.Add(dst, r*stride))
		for i := range d {
			d[i] = s[i] + b[i]
		}
	}
}

func plainAdd(rows int, sums, bias, dst unsafe.Pointer, stride int) {
	b := (*sumRow)(bias)
	for r := range rows {
		s, d := (*sumRow)(unsafe.Add(sums, r*sumBytes)), (*sumRow)(unsafe.Add(dst, r*stride))
		for i := range d {
			d[i] += s[i] + b[i]
		}
	}
}

func plainGated(rows int, gate, up, bias, dst unsafe.Pointer, stride int) {
	b := (*[2 * panelCols]float32)(bias)
	for r := range rows {
		g, u := (*sumRow)(unsafe.Add(gate, r*sumBytes)), (*sumRow)(unsafe.Add(up, r*sumBytes))
		d := (*sumRow)(unsafe.Add(dst, r*stride))
		for i := range d {
			d[i] = silu(g[i]+b[i]) * (u[i] + b[panelCols+i])
		}
	}
}

func plainGatedBF16(rows int, gate, up, bias, dst unsafe.Pointer, stride int) {
	var v sumRow
	for r := range rows {
		plainGated(1, unsafe.Add(gate, r*sumBytes), unsafe.Add(up, r*sumBytes), bias, unsafe.Pointer(&v), 0)
		d := (*[panelCols]uint16)(unsafe.Add(dst, r*stride))
		for i := range d {
			d[i] = toBF16(v[i])
		}
	}
}

// silu returns x/(1+exp(-x)); below -87, where that is less than a float32 can hold well, 0.
func silu(x float32) float32 {
	if x < -87 {
		return 0
	}
	return float32(float64(x) / (1 + math.Exp(-float64(x))))
}

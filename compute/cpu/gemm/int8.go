package gemm

import (
	"encoding/binary"
	"math"
	"unsafe"

	"grebe/compute"
)

// Products of 8-bit integers: how weights and rows become integers, and the kernels in portable Go, which
// define the bits of all others.

const (
	int8Depth = 64  // k of a step
	most      = 127 // the largest integer; −128 occurs in weights that came as integers only
	tiny      = 0x1p-100

	// maxInt8Depth is the number of products whose sum an int32 holds.
	maxInt8Depth = math.MaxInt32 / (most * (most + 1))
)

// rowScale says how the integers of a row are read: a sum of products is (sum − offset)·scale.
type rowScale struct {
	scale   float32
	offset  int32
	inverse float32
	largest uint32 // bits of the largest magnitude
}

var plainInt8 = kernels{
	form: formBytes, panelRows: plainRows, blockRows: 256, leastRows: 256, outer: plainOuter, inner: plainInner,
	block: plainBlockInt8, store: plainStore, add: plainAdd, gated: plainGated, gatedBF16: plainGatedBF16,
	dequantise: plainDequantise, largest: plainLargest, narrow: plainNarrow,
}

// setLargest fixes the scale for a row of the given bits of the largest magnitude. It reports whether there is
// anything to round: rows that count as zeros and rows that are not finite have zeros.
func (s *rowScale) setLargest(bits uint32) bool {
	largest := math.Float32frombits(bits)
	s.inverse, s.offset = 0, 0
	switch {
	case bits >= 0x7f800000:
		s.scale = float32(math.NaN())
	case largest < tiny:
		s.scale = 0
	default:
		s.scale, s.inverse = largest/most, most/largest
		return true
	}
	return false
}

// round8 returns the integer nearest to v, even of two, for magnitudes below 2²².
func round8(v float32) int8 {
	const magic = 0x1.8p23 // leaves no bits behind the point
	return int8(math.Float32bits(v + magic))
}

// quantise sets a row.
func (r *Rows) quantise(row int, values []float32) {
	s, k := &r.scales[row], r.kernels
	src := unsafe.Pointer(&values[0])
	blocks, steps := len(values)/16, len(values)/int8Depth
	s.largest = 0
	if blocks > 0 {
		k.largest(blocks, src, unsafe.Pointer(&s.largest))
	}
	bits := s.largest
	for _, v := range values[16*blocks:] {
		bits = max(bits, math.Float32bits(v)&^(1<<31))
	}
	if !s.setLargest(bits) {
		r.clearRow(row)
		return
	}
	if steps > 0 {
		k.narrow(steps, src, unsafe.Pointer(&s.inverse), r.at(row, 0), r.stepStride(), unsafe.Pointer(&s.offset))
	}
	if tail := values[steps*int8Depth:]; len(tail) > 0 {
		s.offset += r.narrowTail(r.at(row, steps), tail, s.inverse)
	}
	s.offset *= 128
	if !k.unsigned {
		s.offset = 0
	}
}

// stepStride returns the bytes between steps of a row.
func (r *Rows) stepStride() int {
	if r.form.tiled() {
		return tileStepBytes
	}
	return r.form.stepBytes()
}

func (r *Rows) clearRow(row int) {
	for s := range r.steps {
		clear(unsafe.Slice((*byte)(r.at(row, s)), r.form.stepBytes()))
	}
}

// narrowTail sets the last values of a row, fewer than a step, and returns their sum.
func (r *Rows) narrowTail(dst unsafe.Pointer, tail []float32, inverse float32) (sum int32) {
	for i, v := range tail {
		q := round8(float32(v * inverse))
		sum += int32(q)
		if r.form == formWords {
			*(*int16)(unsafe.Add(dst, 2*i)) = int16(q)
		} else {
			*(*int8)(unsafe.Add(dst, i)) = q
		}
	}
	return sum
}

func plainLargest(blocks int, src, bits unsafe.Pointer) {
	largest := uint32(0)
	for _, v := range unsafe.Slice((*uint32)(src), 16*blocks) {
		largest = max(largest, v&^(1<<31))
	}
	*(*uint32)(bits) = largest
}

func plainNarrow(steps int, src, inverse, dst unsafe.Pointer, stride int, sum unsafe.Pointer) {
	by, all := *(*float32)(inverse), int32(0)
	for s := range steps {
		from, to := (*[int8Depth]float32)(unsafe.Add(src, s*int8Depth*4)), (*[int8Depth]int8)(unsafe.Add(dst, s*stride))
		for i, v := range from {
			to[i] = round8(float32(v * by))
			all += int32(to[i])
		}
	}
	*(*int32)(sum) = all
}

func plainDequantise(rows int, sums, scales, of unsafe.Pointer) {
	c := (*sumRow)(scales)
	for r := range rows {
		row := (*rowScale)(unsafe.Add(of, r*int(unsafe.Sizeof(rowScale{}))))
		s := (*[panelCols]int32)(unsafe.Add(sums, r*sumBytes))
		f := (*sumRow)(unsafe.Pointer(s))
		for i, v := range s {
			f[i] = float32(float32(float32(v-row.offset)*c[i]) * row.scale)
		}
	}
}

// plainBlockInt8 multiplies fours of k with a tile's 16 columns.
func plainBlockInt8(pt *part) {
	for i := range pt.b {
		for r := range pt.rows {
			sums := (*[2][16]int32)(unsafe.Add(pt.sums[i], r*sumBytes))
			if pt.add == 0 {
				clear(sums[:])
			}
			for s := range pt.steps {
				a := (*[16][4]int8)(pt.a.at(pt.row+r, pt.step+s))
				w := (*[2][16][16][4]int8)(unsafe.Add(pt.b[i], s*2048))
				for half := range w {
					plainTile(&sums[half], a, &w[half])
				}
			}
		}
	}
}

//go:norace
func plainTile(sums *[16]int32, a *[16][4]int8, w *[16][16][4]int8) {
	for g := range a {
		a0, a1, a2, a3 := int32(a[g][0]), int32(a[g][1]), int32(a[g][2]), int32(a[g][3])
		for c := range sums {
			v := &w[g][c]
			sums[c] += a0*int32(v[0]) + a1*int32(v[1]) + a2*int32(v[2]) + a3*int32(v[3])
		}
	}
}

// packInt8 quantises the rows of a panel, or takes those that are integers already.
func (w *Weights) packInt8(panel int, rows *[panelCols]sourceRow) {
	const step = panelCols * int8Depth
	dst := unsafe.Slice((*byte)(w.at(panel, 0)), w.steps*step)
	var zero byte
	if w.kernels.unsigned {
		zero = 128
		for i := range dst {
			dst[i] = zero
		}
	}
	group := 4
	if w.kernels.pairs {
		group = 2
	}
	for c := range rows {
		r := &rows[c]
		if r.data == nil {
			continue
		}
		inverse := r.integers(&w.scales[panel*panelCols+c])
		column := dst[c/16*step/2+c%16*group:]
		for s, k := 0, 0; k < w.k; s, k = s+1, k+int8Depth {
			var q [int8Depth]byte
			r.round(&q, k, min(int8Depth, w.k-k), inverse)
			place(column[s*step:], &q, group, zero)
		}
	}
}

// place writes a step of a column, groups of which lie 16 columns apart.
func place(column []byte, q *[int8Depth]byte, group int, zero byte) {
	if group == 2 {
		for g := range int8Depth / 2 {
			column[32*g], column[32*g+1] = q[2*g]^zero, q[2*g+1]^zero
		}
		return
	}
	flip := 0x01010101 * uint32(zero)
	for g := range int8Depth / 4 {
		binary.LittleEndian.PutUint32(column[64*g:], binary.LittleEndian.Uint32(q[4*g:])^flip)
	}
}

// round sets the first n of q to the integers of a row from k on.
func (r *sourceRow) round(q *[int8Depth]byte, k, n int, inverse float32) {
	switch r.dtype {
	case compute.INT8:
		copy(q[:n], r.data[k:])
		return
	case compute.BF16: // of most checkpoints
		src := r.data[2*k:][:2*n]
		for i := range q[:n] {
			v := math.Float32frombits(uint32(src[2*i])<<16 | uint32(src[2*i+1])<<24)
			q[i] = byte(round8(float32(v * inverse)))
		}
		return
	}
	var v [stepDepth]float32
	for from := 0; from < n; from += stepDepth {
		m := min(stepDepth, n-from)
		r.floats(&v, k+from, m)
		to := q[from:][:m]
		for i := range to {
			to[i] = byte(round8(float32(v[i] * inverse)))
		}
	}
}

// integers sets the scale of a row and returns by what its values are multiplied before they are rounded.
func (r *sourceRow) integers(scale *float32) (inverse float32) {
	if r.dtype == compute.INT8 {
		*scale = r.scale
		return 1
	}
	var s rowScale
	s.setLargest(r.largest())
	*scale = s.scale
	return s.inverse
}

// largest returns the bits of the largest magnitude of a row, as a float32.
func (r *sourceRow) largest() (bits uint32) {
	n := len(r.data) / r.dtype.Size()
	switch r.dtype {
	case compute.BF16:
		for i := range n {
			bits = max(bits, uint32(binary.LittleEndian.Uint16(r.data[2*i:])&0x7fff))
		}
		return bits << 16
	case compute.F32:
		for i := range n {
			bits = max(bits, binary.LittleEndian.Uint32(r.data[4*i:])&^(1<<31))
		}
		return bits
	}
	for i := range n {
		bits = max(bits, math.Float32bits(fromF16(binary.LittleEndian.Uint16(r.data[2*i:])))&^(1<<31))
	}
	return bits
}

package attend

import (
	"math"
	"unsafe"
)

type laneRow = [lanes]float32

var plainParts = float32Parts{productPlain, softmaxPlain, rescalePlain}

// rowsOf views memory as n rows of lanes.
func rowsOf(p unsafe.Pointer, n int) []laneRow { return unsafe.Slice((*laneRow)(p), n) }

//go:norace
func productPlain(c, a, b unsafe.Pointer, panels, depth, panelBytes, cols, add int) {
	bs := rowsOf(b, depth)
	n := cols * lanes / 2
	for p := range panels {
		cs := (*[panel]laneRow)(unsafe.Add(c, p*panel*4*lanes))
		as := unsafe.Slice((*[panel]float32)(unsafe.Add(a, p*panelBytes)), depth)
		if add == 0 {
			clear(cs[:])
		}
		for i := range cs {
			row := cs[i][:n]
			for d := range as {
				x, y := as[d][i], bs[d][:len(row)]
				for l := range row {
					row[l] += x * y[l]
				}
			}
		}
	}
}

//go:norace
func softmaxPlain(s unsafe.Pointer, st *state, keys, cols, first, masked int, scale float32) {
	rows := rowsOf(s, keys)
	st.changed = 0
	for l := range cols * lanes / 2 {
		seen := keys
		if masked != 0 {
			seen = max(0, min(keys, int(st.limits[l])-first+1))
		}
		top := float32(math.Inf(-1))
		for i := range rows[:seen] {
			top = max(top, rows[i][l])
		}
		old := st.maxes[l]
		m := old
		if top := float32(top * scale); top > old+slack {
			m, st.changed = top, 1
		}
		factor, sum := exp2(old-m), float32(0)
		for i := range rows[:seen] {
			p := exp2(float32(rows[i][l]*scale) - m)
			rows[i][l] = p
			sum += p
		}
		for i := seen; i < keys; i++ {
			rows[i][l] = 0
		}
		st.maxes[l], st.factors[l], st.sums[l] = m, factor, st.sums[l]*factor+sum
	}
}

// slack is how far scores may rise above the maximum, in powers of two, before it follows: they seldom
// do, and then former outputs need no rescaling.
const slack = 8

// exp2Coefficients is the polynomial of 2^f for f in [0, 1), highest power first; its relative error
// is 8e-8, and it is 1 at 0.
var exp2Coefficients = [...]float32{
	math.Float32frombits(0x3af4ba83), math.Float32frombits(0x3c13bc29), math.Float32frombits(0x3d648e74),
	math.Float32frombits(0x3e75edab), math.Float32frombits(0x3f31725d), 1,
}

// exp2 returns 2^t for t up to 127, and 0 from −127 on.
func exp2(t float32) float32 {
	if t <= -127 {
		return 0
	}
	n := int32(t)
	if float32(n) > t {
		n--
	}
	f := t - float32(n)
	var p float32
	for _, c := range exp2Coefficients {
		p = p*f + c
	}
	return p * math.Float32frombits(uint32(n+127)<<23)
}

func rescalePlain(o unsafe.Pointer, st *state, n int) {
	rows := rowsOf(o, n)
	for d := range rows {
		for l := range rows[d] {
			rows[d][l] *= st.factors[l]
		}
	}
}

func loadQPlain(dst unsafe.Pointer, rows *[lanes]unsafe.Pointer, dims, cols int) {
	out := rowsOf(dst, roundUp(dims, 16))
	clear(out[dims:])
	for l, r := range rows[:cols*lanes/2] {
		for d, x := range unsafe.Slice((*float32)(r), dims) {
			out[d][l] = x
		}
	}
}

func storeOPlain(o unsafe.Pointer, st *state, rows *[lanes]unsafe.Pointer, dims, cols int) {
	in := rowsOf(o, dims)
	for l, r := range rows[:cols*lanes/2] {
		inv := 1 / st.sums[l]
		out := unsafe.Slice((*float32)(r), dims)
		for d := range out {
			out[d] = in[d][l] * inv
		}
	}
}

func packF32Plain(k, v unsafe.Pointer, src *sources, dims, padded, vPanel int) {
	packPlain(k, v, src, dims, padded, vPanel, false)
}

func packBF16Plain(k, v unsafe.Pointer, src *sources, dims, padded, vPanel int) {
	packPlain(k, v, src, dims, padded, vPanel, true)
}

func packPlain(k, v unsafe.Pointer, src *sources, dims, padded, vPanel int, bf16 bool) {
	ks := unsafe.Slice((*[panel]float32)(k), packKeys/panel*padded)
	var x [panel]float32
	for i := range packKeys {
		to := ks[i/panel*padded:][:padded]
		for d := 0; d < padded; d += panel {
			expand(&x, src.k[i], d, dims, bf16)
			for j, f := range x {
				to[d+j][i%panel] = f
			}
			expand((*[panel]float32)(unsafe.Add(v, d/panel*vPanel+i*4*panel)), src.v[i], d, dims, bf16)
		}
	}
}

// expand sets dst to the values of a row of dims from d on, and to zeros behind its end.
func expand(dst *[panel]float32, row unsafe.Pointer, d, dims int, bf16 bool) {
	n := min(panel, dims-d)
	if n < panel {
		clear(dst[:])
	}
	if n <= 0 {
		return
	}
	if !bf16 {
		copy(dst[:], unsafe.Slice((*float32)(unsafe.Add(row, 4*d)), n))
		return
	}
	for i, x := range unsafe.Slice((*uint16)(unsafe.Add(row, 2*d)), n) {
		dst[i] = math.Float32frombits(uint32(x) << 16)
	}
}

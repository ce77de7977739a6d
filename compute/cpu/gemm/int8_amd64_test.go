//go:build !noasm

package gemm

import (
	"math/rand/v2"
	"testing"
	"unsafe"

	"grebe/compute"
	"grebe/compute/cpu/internal/feature"
	"grebe/internal/offheap"
)

// emulated does what amxBytes32 and amxBytes16 do, tile by tile, as Intel defines TDPBSSD: rows of 64 bytes,
// fours of which meet fours of a column.
func emulated(upper, lower bool) amxKernel {
	return func(config unsafe.Pointer, steps, panels int, a unsafe.Pointer, aPanel int, b, c unsafe.Pointer, add int,
		_ unsafe.Pointer, _ int, _ unsafe.Pointer, _, _ int) {
		heights := (*[64]byte)(config)[48:]
		for p := range panels {
			from, to := unsafe.Add(a, p*aPanel), unsafe.Add(c, p*4096)
			for col := range 2 {
				if upper {
					tile(int(heights[col]), steps, from, unsafe.Add(b, col*1024), unsafe.Add(to, col*64), add)
				}
				if lower {
					tile(int(heights[2+col]), steps, unsafe.Add(from, 1024), unsafe.Add(b, col*1024), unsafe.Add(to,
						2048+col*64), add)
				}
			}
		}
	}
}

// tile multiplies a tile of rows by one of weights, over steps.
func tile(rows, steps int, a, b, c unsafe.Pointer, add int) {
	for m := range rows {
		sums := (*[16]int32)(unsafe.Add(c, m*128))
		if add == 0 {
			clear(sums[:])
		}
		for s := range steps {
			x := (*[16][4]int8)(unsafe.Add(a, s*2048+m*64))
			w := (*[16][16][4]int8)(unsafe.Add(b, s*2048))
			for k := range x {
				for n := range sums {
					for i := range 4 {
						sums[n] += int32(x[k][i]) * int32(w[k][n][i])
					}
				}
			}
		}
	}
}

// Everything around the tile instructions, on machines that lack them: tiles of rows, tiles of weights, cuts
// and remainders.
func TestInt8TilesEmulated(t *testing.T) {
	if feature.Best() < feature.AVX512 {
		t.Skip("needs AVX-512")
	}
	k := amxInt8
	k.block = func(pt *part) { amxBlock(pt, emulated(true, true), emulated(true, false)) }
	e := newEnv(t, feature.AVX512, compute.INT8, 2)
	r := rand.New(rand.NewPCG(31, 31))
	for _, s := range [][3]int{{1, 1, 1}, {15, 33, 64}, {16, 70, 65}, {17, 64, 130}, {32, 40, 200}, {33, 100, 63},
		{300, 75, 4300}} {
		a, w := random(r, s[0], s[2], 1), random(r, s[1], s[2], 1)
		rows := &Rows{form: k.form, kernels: &k, block: &offheap.Block{}}
		if err := rows.Reset(s[0], s[2]); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(rows.Free)
		e.mul.Fill(rows, a.v, a.cols)
		packed := e.packFor(&k, w)
		got := make([]float32, s[0]*s[1])
		e.mul.Store(got, s[1], rows, packed, nil)
		want := product8(a, w)
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("%v: row %d column %d is %v, want %v", s, i/s[1], i%s[1], got[i], want[i])
			}
		}
	}
}

// packFor packs weights for kernels that the machine may lack.
func (e *env) packFor(k *kernels, m matrix) *Weights {
	w := &Weights{format: compute.INT8, n: m.rows, k: m.cols, kernels: k,
		panels: 2 * ((m.rows + 2*panelCols - 1) / (2 * panelCols))}
	w.steps, w.scales = (m.cols+int8Depth-1)/int8Depth, make([]float32, w.panels*panelCols)
	var err error
	if w.block, err = alloc(w.panels * w.steps * w.stepBytes()); err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(w.Free)
	parts := []compute.Tensor{m.tensor(compute.F32)}
	for panel := range w.panels {
		var rows [panelCols]sourceRow
		for c := range rows {
			rows[c] = rowOf(parts, panel*panelCols+c)
		}
		w.packInt8(panel, &rows)
	}
	return w
}

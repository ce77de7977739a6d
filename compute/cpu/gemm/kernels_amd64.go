//go:build !noasm

package gemm

import (
	"unsafe"

	"grebe/compute"
	"grebe/compute/cpu/internal/feature"
)

// fmaKernel is a float32 kernel for a fixed number of rows. Lines of the next block are fetched per
// four k.
type fmaKernel func(steps int, a unsafe.Pointer, stride int, b, c unsafe.Pointer, add int, next unsafe.Pointer, lines int)

var (
	amxBF16 = kernels{
		tiles: true, panelRows: tileRows, blockRows: 256, outer: 64, inner: 64,
		block: amxBlock, store: store512, add: add512, gated: gated512, gatedBF16: gatedBF16,
	}
	avx512F32 = kernels{
		panelRows: len(f32x512) - 1, blockRows: 252, outer: 32, inner: 8,
		block: func(pt *part) { fmaBlock(pt, f32x512[:], 8) },
		store: store512, add: add512, gated: gated512, gatedBF16: plainGatedBF16,
	}
	avx512BF16 = kernels{
		panelRows: len(bf16x512) - 1, blockRows: 252, outer: 32, inner: 16,
		block: func(pt *part) { fmaBlock(pt, bf16x512[:], 4) },
		store: store512, add: add512, gated: gated512, gatedBF16: plainGatedBF16,
	}
	avx2F32 = kernels{
		panelRows: len(f32x256) - 1, blockRows: 252, outer: 32, inner: 8,
		block: func(pt *part) { fmaHalves(pt, f32x256[:], 64, 8) },
		store: store256, add: add256, gated: gated256, gatedBF16: plainGatedBF16,
	}
	avx2BF16 = kernels{
		panelRows: len(bf16x256) - 1, blockRows: 252, outer: 32, inner: 16,
		block: func(pt *part) { fmaHalves(pt, bf16x256[:], 1024, 4) },
		store: store256, add: add256, gated: gated256, gatedBF16: plainGatedBF16,
	}
)

// assembly returns the kernels of a level that the machine can run, or nil for plain ones.
func assembly(level feature.Level, dt compute.DType) *kernels {
	switch {
	case level >= feature.AMX && dt == compute.BF16:
		return &amxBF16
	case level >= feature.AVX512 && dt == compute.BF16:
		return &avx512BF16
	case level >= feature.AVX512:
		return &avx512F32
	case level == feature.AVX2 && dt == compute.BF16:
		return &avx2BF16
	case level == feature.AVX2:
		return &avx2F32
	}
	return nil
}

// tileConfigs holds the configuration for n rows: result and row tiles have n rows up to 16, or the
// upper ones (0, 1, 4) 16 and the lower ones (2, 3, 5) the rest; tiles of weights (6, 7) have 16.
var tileConfigs = func() (t [tileRows + 1][64]byte) {
	for n := 1; n <= tileRows; n++ {
		c := &t[n]
		c[0] = 1
		for tile := range 8 {
			c[16+2*tile] = 64
			c[48+tile] = 16
		}
		for _, tile := range [...]int{0, 1, 4} {
			c[48+tile] = byte(min(n, 16))
		}
		for _, tile := range [...]int{2, 3, 5} {
			c[48+tile] = byte(max(n-16, 1))
		}
	}
	return t
}()

func amxBlock(pt *part) {
	panels := (pt.rows + tileRows - 1) / tileRows
	full, rest := pt.rows/tileRows, pt.rows%tileRows
	lines4 := 0
	if pt.next != nil {
		lines4 = (8 + panels - 1) / panels
	}
	a, out, outRows := pt.a.at(pt.row, pt.step), pt.out, pt.rows
	if out == nil {
		outRows = 0
	}
	if full > 0 {
		amxRows32(unsafe.Pointer(&tileConfigs[tileRows]), pt.steps, full, a, pt.a.stride, pt.b, pt.sums, pt.add, pt.next, lines4, out, pt.outStride, outRows)
	}
	if rest == 0 {
		return
	}
	a = unsafe.Add(a, full*pt.a.stride)
	sums := unsafe.Add(pt.sums, full*tileRows*sumBytes)
	next := pt.next
	if next != nil {
		next = unsafe.Add(next, full*pt.steps*lines4*256)
	}
	config := unsafe.Pointer(&tileConfigs[rest])
	if rest > 16 {
		amxRows32(config, pt.steps, 1, a, 0, pt.b, sums, pt.add, next, lines4, nil, 0, 0)
	} else {
		amxRows16(config, pt.steps, 1, a, 0, pt.b, sums, pt.add, next, lines4, nil, 0, 0)
	}
}

// fmaBlock runs kernels over all rows; weights take perFour lines of cache per four k.
func fmaBlock(pt *part, table []fmaKernel, perFour int) {
	height := len(table) - 1
	panels := (pt.rows + height - 1) / height
	lines := 0
	if pt.next != nil {
		lines = (perFour + panels - 1) / panels
	}
	next := pt.next
	for r := 0; r < pt.rows; r += height {
		table[min(height, pt.rows-r)](pt.steps, pt.a.at(pt.row+r, pt.step), pt.a.stride, pt.b, unsafe.Add(pt.sums, r*sumBytes), pt.add, next, lines)
		if next != nil {
			next = unsafe.Add(next, pt.steps*8*lines*64)
		}
	}
}

// fmaHalves is fmaBlock with kernels of 16 columns; the second half of a panel lies half bytes on.
func fmaHalves(pt *part, table []fmaKernel, half, perFour int) {
	fmaBlock(pt, table, perFour)
	second := *pt
	second.b, second.sums, second.next = unsafe.Add(pt.b, half), unsafe.Add(pt.sums, sumBytes/2), nil
	fmaBlock(&second, table, perFour)
}

// convertRow rounds steps·32 floats to bf16 at a row's place in tiles.
func convertRow(steps int, src, dst unsafe.Pointer) { cvtRow(steps, src, dst) }

// convertRows is convertRow for rows within half a panel of tiles.
func convertRows(rows, steps int, src unsafe.Pointer, stride int, dst unsafe.Pointer) {
	cvtRows(rows, steps, src, stride, dst)
}

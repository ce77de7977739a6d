//go:build !noasm

package gemm

import (
	"unsafe"

	"grebe/compute"
	"grebe/compute/cpu/internal/feature"
)

// fmaKernel is a float32 kernel for a fixed number of rows. Lines of the block used next are fetched
// per eight k. Results stay in c, or go to out as finish says.
type fmaKernel func(steps int, a unsafe.Pointer, stride int, b, c unsafe.Pointer, add int, next unsafe.Pointer,
	lines int,
	out unsafe.Pointer, outStride int, bias unsafe.Pointer, finish int)

var (
	amxBF16 = kernels{
		form: formTiles, panelRows: tileRows, blockRows: 256, leastRows: 256, outer: 64, inner: 64, reload: 1,
		block: func(pt *part) { amxBlock(pt, amxRows32, amxRows16) }, store: store512, add: add512, gated: gated512,
		gatedBF16: gatedBF16,
	}
	avx512F32 = kernels{
		pack: packRows512, direct: true, panelRows: 1, blockRows: maxPackedRows, leastRows: 64, outer: 48, inner: 48,
		reload: 0.3,
		block:  func(pt *part) { fmaBlock(pt, f32x512[:], 16) },
		store:  store512, add: add512, gated: gated512, gatedBF16: plainGatedBF16,
	}
	avx512BF16 = kernels{
		pack: packRows512, direct: true, panelRows: 1, blockRows: maxPackedRows, leastRows: 64, outer: 48, inner: 48,
		reload: 0.3,
		block:  func(pt *part) { fmaBlock(pt, bf16x512[:], 8) },
		store:  store512, add: add512, gated: gated512, gatedBF16: plainGatedBF16,
	}
	avx2F32 = kernels{
		direct: true, panelRows: 6, blockRows: 258, leastRows: 258, outer: 32, inner: 8, reload: 0.15,
		block: func(pt *part) { fmaHalves(pt, f32x256[:], 64, 16) },
		store: store256, add: add256, gated: gated256, gatedBF16: plainGatedBF16,
	}
	avx2BF16 = kernels{
		direct: true, panelRows: 6, blockRows: 258, leastRows: 258, outer: 32, inner: 16, reload: 0.15,
		block: func(pt *part) { fmaHalves(pt, bf16x256[:], 1024, 8) },
		store: store256, add: add256, gated: gated256, gatedBF16: plainGatedBF16,
	}
)

// The kernels of int8.
var (
	amxInt8 = kernels{
		form: formByteTiles, panelRows: tileRows, blockRows: 256, leastRows: 256, outer: 64, inner: 64, reload: 1,
		block: func(pt *part) { amxBlock(pt, amxBytes32, amxBytes16) },
		store: store512, add: add512, gated: gated512, gatedBF16: gatedBF16,
		dequantise: dequantise512, largest: largest512, narrow: narrow512,
	}
	vnniInt8 = kernels{
		form: formBytes, unsigned: true,
		pack: packBytes512, panelRows: 1, blockRows: maxPackedRows, leastRows: 64, outer: 96, inner: 96, reload: 0.3,
		block: func(pt *part) { fmaBlock(pt, int8x512[:], 8) },
		store: store512, add: add512, gated: gated512, gatedBF16: plainGatedBF16,
		dequantise: dequantise512, largest: largest512, narrow: narrow512,
	}
	avx2Int8 = kernels{
		form: formWords, pairs: true,
		panelRows: 6, blockRows: 258, leastRows: 258, outer: 32, inner: 16, reload: 0.15,
		block: func(pt *part) { fmaHalves(pt, int8x256[:], 1024, 8) },
		store: store256, add: add256, gated: gated256, gatedBF16: plainGatedBF16,
		dequantise: dequantise256, largest: largest256, narrow: narrow256,
	}
)

// assembly returns the kernels of a level that the machine can run, or nil for plain ones.
func assembly(level feature.Level, dt compute.DType) *kernels {
	if dt == compute.INT8 {
		return assemblyInt8(level)
	}
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

func assemblyInt8(level feature.Level) *kernels {
	switch {
	case level >= feature.AMX && feature.Int8Tiles():
		return &amxInt8
	case level >= feature.AVX512 && feature.VNNI():
		return &vnniInt8
	case level >= feature.AVX2:
		return &avx2Int8
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

// amxKernel multiplies panels of tiles by a block of a weight panel.
type amxKernel func(config unsafe.Pointer, steps, panels int, a unsafe.Pointer, aPanel int, b, c unsafe.Pointer,
	add int,
	next unsafe.Pointer, lines4 int, out unsafe.Pointer, outStride, outRows int)

// amxBlock multiplies by one panel after the other; each fetches the weights of the one after it.
func amxBlock(pt *part, rows32, rows16 amxKernel) {
	amxPanel(pt, 0, pt.b[1], rows32, rows16)
	amxPanel(pt, 1, pt.next[0], rows32, rows16)
}

func amxPanel(pt *part, i int, next unsafe.Pointer, rows32, rows16 amxKernel) {
	panels := (pt.rows + tileRows - 1) / tileRows
	full, rest := pt.rows/tileRows, pt.rows%tileRows
	lines4, outRows := 0, 0
	if next != nil && panels >= 4 { // with fewer rows the hardware fetches the stream better
		lines4 = max(1, 8/panels)
	}
	if pt.out[i] != nil {
		outRows = pt.rows
	}
	a, b, sums := pt.a.at(pt.row, pt.step), pt.b[i], pt.sums[i]
	if full > 0 {
		rows32(unsafe.Pointer(&tileConfigs[tileRows]), pt.steps, full, a, pt.a.stride, b, sums, pt.add, next,
			lines4, pt.out[i], pt.outStride, outRows)
	}
	if rest == 0 {
		return
	}
	a, sums = unsafe.Add(a, full*pt.a.stride), unsafe.Add(sums, full*tileRows*sumBytes)
	if lines4 > 0 {
		next = unsafe.Add(next, full*pt.steps*lines4*256)
	}
	config := unsafe.Pointer(&tileConfigs[rest])
	if rest > 16 {
		rows32(config, pt.steps, 1, a, 0, b, sums, pt.add, next, lines4, nil, 0, 0)
	} else {
		rows16(config, pt.steps, 1, a, 0, b, sums, pt.add, next, lines4, nil, 0, 0)
	}
}

// fmaBlock runs kernels of a panel over all packed rows, for one panel after the other; each fetches
// the weights of the one after it. A panel takes perEight lines of cache per eight k.
func fmaBlock(pt *part, table []fmaKernel, perEight int) {
	fmaPanel(pt, table, 0, pt.b[1], perEight)
	fmaPanel(pt, table, 1, pt.next[0], perEight)
}

func fmaPanel(pt *part, table []fmaKernel, i int, next unsafe.Pointer, perEight int) {
	panels := packedPanels(pt.rows)
	lines := (perEight + panels - 1) / panels
	out, left := pt.target(i), perEight
	for q, r := 0, 0; q < panels; q++ {
		n := max(0, min(lines, left))
		if next == nil {
			n = 0
		}
		end := packedRow(pt.rows, panels, q+1)
		table[end-r](pt.steps, pt.packed.at(q, pt.step), 0, pt.b[i], unsafe.Add(pt.sums[i], r*sumBytes), pt.add, next, n,
			unsafe.Add(out, r*pt.outStride), pt.outStride, unsafe.Add(pt.bias, i*sumBytes), int(pt.finish))
		next, left = unsafe.Add(next, pt.steps*4*n*64), left-n
		r = end
	}
}

// target returns where the results of a panel go at last; the sums, which are at least an address,
// if the kernels do not take them there.
func (pt *part) target(i int) unsafe.Pointer {
	if pt.finish == finishNot {
		return pt.sums[i]
	}
	return pt.out[i]
}

// fmaHalves runs kernels of 16 columns; the second half of a panel lies half bytes on.
func fmaHalves(pt *part, table []fmaKernel, half, perEight int) {
	for i := range pt.b {
		next := pt.next[i]
		for h := range 2 {
			fmaColumns(pt, table, unsafe.Add(pt.b[i], h*half), unsafe.Add(pt.sums[i], h*sumBytes/2), next,
				unsafe.Add(pt.target(i), h*sumBytes/2), unsafe.Add(pt.bias, (2*i+h)*sumBytes/2), perEight)
			next = nil
		}
	}
}

func fmaColumns(pt *part, table []fmaKernel, b, sums, next, out, bias unsafe.Pointer, perEight int) {
	height := len(table) - 1
	calls := (pt.rows + height - 1) / height
	lines := (perEight + calls - 1) / calls
	for r, left := 0, perEight; r < pt.rows; r, left = r+height, left-lines {
		n := max(0, min(lines, left))
		if next == nil {
			n = 0
		}
		table[min(height, pt.rows-r)](pt.steps, pt.a.at(pt.row+r, pt.step), pt.a.stride, b,
			unsafe.Add(sums, r*sumBytes), pt.add, next, n,
			unsafe.Add(out, r*pt.outStride), pt.outStride, bias, int(pt.finish))
		if n > 0 {
			next = unsafe.Add(next, pt.steps*4*n*64)
		}
	}
}

// convertRow rounds steps·32 floats to bf16 at a row's place in tiles.
func convertRow(steps int, src, dst unsafe.Pointer) { cvtRow(steps, src, dst) }

// convertRows is convertRow for rows within half a panel of tiles.
func convertRows(rows, steps int, src unsafe.Pointer, stride int, dst unsafe.Pointer) {
	cvtRows(rows, steps, src, stride, dst)
}

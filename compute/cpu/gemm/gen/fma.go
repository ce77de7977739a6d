package main

import "fmt"

// The products in float32 with AVX2: up to 6×16 results in registers. Every result is one chain of
// fused multiply-adds over k, whatever the number of rows.
//
// Rows lie apart by a stride; row i is addressed as base[i/3] + (i mod 3)·stride.

const (
	fmaRows   = 6
	fmaUnroll = 8 // k of a turn of the loop
)

// fmaArgs are the arguments of all kernels with fused multiply-adds; those with AVX-512 ignore the
// stride.
const fmaArgs = "steps int, a unsafe.Pointer, stride int, b, c unsafe.Pointer, add int, next unsafe.Pointer, lines " +
	"int, out unsafe.Pointer, outStride int, bias unsafe.Pointer, finish int"

const fmaArgCount = 12

var bases = [...]string{"AX", "R8"}

func avx2File(g *generator) {
	for i := 1; i <= fmaRows; i++ {
		g.function(fmt.Sprintf("f32x256r%d", i), fmt.Sprintf("multiplies %d rows by a block of half a float32 panel.", i),
			fmaArgs, fmaArgCount)
		fma256(g, i, false)
	}
	for i := 1; i <= fmaRows; i++ {
		g.function(fmt.Sprintf("bf16x256r%d", i), fmt.Sprintf("multiplies %d rows by a block of half a bf16 panel.", i),
			fmaArgs, fmaArgCount)
		fma256(g, i, true)
	}
	for i := 1; i <= fmaRows; i++ {
		g.function(fmt.Sprintf("int8x256r%d", i),
			fmt.Sprintf("multiplies %d rows by a block of half an int8 panel.", i), fmaArgs, fmaArgCount)
		madd256(g, i)
	}
	narrow256(g)
	largest256(g)
	dequantise(g, false)
	table(g.decls, "int8x256", "holds the AVX2 kernels of int8 panels by their rows.", "fmaKernel", "int8x256r",
		fmaRows)
	table(g.decls, "f32x256", "holds the AVX2 kernels of float32 panels by their rows.", "fmaKernel", "f32x256r", fmaRows)
	table(g.decls, "bf16x256", "holds the AVX2 kernels of bf16 panels by their rows.", "fmaKernel", "bf16x256r", fmaRows)
}

// fmaStart loads the arguments: steps in CX, rows in AX, weights in BX, sums in DI, the block to fetch
// in R10 and its lines per turn of the loop in R11. Lines of the output, per row as many as given, are
// fetched now, to be written at the end.
func fmaStart(g *generator, rows, lines int) {
	g.P("\tMOVQ steps+0(FP), CX\n\tMOVQ a+8(FP), AX\n\tMOVQ b+24(FP), BX\n\tMOVQ c+32(FP), DI")
	g.P("\tMOVQ next+48(FP), R10\n\tMOVQ lines+56(FP), R11")
	g.P("\tCMPQ finish+88(FP), $0\n\tJEQ warmed\n\tMOVQ out+64(FP), R15\n\tMOVQ outStride+72(FP), R14")
	for range rows {
		for i := range lines {
			g.Bytes(fmt.Sprintf("PREFETCHW %d(R15)", 64*i), []byte{0x41, 0x0F, 0x0D, 0x8F, byte(64 * i), 0, 0, 0})
		}
		g.P("\tADDQ R14, R15")
	}
	g.P("warmed:")
}

// at addresses the k-th value of row i.
func at(i, k int) string {
	s := fmt.Sprintf("%d(%s)", 4*k, bases[i/3])
	if i%3 > 0 {
		s += fmt.Sprintf("(SI*%d)", i%3)
	}
	return s
}

// advance moves all rows by a turn.
func advance(g *generator, rows int) {
	for i := 0; i <= (rows-1)/3; i++ {
		g.P("\tADDQ $%d, %s", 4*fmaUnroll, bases[i])
	}
}

// fetch prefetches R11 lines of the next block.
func fetch(g *generator) {
	g.P("\tMOVQ R11, R15\n\tTESTQ R15, R15\n\tJZ fetched")
	g.P("fetch:\n\tPREFETCHT1 (R10)\n\tADDQ $64, R10\n\tDECQ R15\n\tJNZ fetch\nfetched:")
}

// fmaFinish takes the results, n registers of size bytes per row, and the bias to the output: it
// sets it, or adds to it. The order of the operands is that of the epilogues.
func fmaFinish(g *generator, kind string, size, rows, n, bias int) {
	g.P("finish:\n\tMOVQ out+64(FP), DI\n\tMOVQ outStride+72(FP), SI\n\tMOVQ bias+80(FP), BX")
	for j := range n {
		g.P("\tVMOVUPS %d(BX), %s%d", size*j, kind, bias+j)
	}
	g.P("\tCMPQ R15, $2\n\tJEQ add")
	for _, add := range []bool{false, true} {
		if add {
			g.P("add:")
		}
		for i := range rows {
			for j := range n {
				r := fmt.Sprintf("%s%d", kind, n*i+j)
				g.P("\tVADDPS %s, %s%d, %s", r, kind, bias+j, r)
				if add {
					g.P("\tVADDPS %d(DI), %s, %s", size*j, r, r)
				}
				g.P("\tVMOVUPS %s, %d(DI)", r, size*j)
			}
			if i+1 < rows {
				g.P("\tADDQ SI, DI")
			}
		}
		g.P("\tVZEROUPPER\n\tRET")
	}
}

func fma256(g *generator, rows int, bf16 bool) {
	const mask, value, weights = 12, 13, 14
	fmaStart(g, rows, 1)
	g.P("\tMOVQ stride+16(FP), SI")
	for i := 1; i <= (rows-1)/3; i++ {
		g.P("\tLEAQ (%s)(SI*2), %s\n\tADDQ SI, %s", bases[i-1], bases[i], bases[i])
	}
	if bf16 {
		g.P("\tMOVL $0xffff0000, R15\n\tMOVQ R15, X%d\n\tVPBROADCASTD X%d, Y%d", mask, mask, mask)
	}
	g.P("\tCMPQ add+40(FP), $0\n\tJEQ zero")
	for i := range rows {
		g.P("\tVMOVUPS %d(DI), Y%d\n\tVMOVUPS %d(DI), Y%d", 128*i, 2*i, 128*i+32, 2*i+1)
	}
	g.P("\tJMP start\nzero:")
	for i := range 2 * rows {
		g.P("\tVXORPS Y%d, Y%d, Y%d", i, i, i)
	}
	g.P("start:")
	if bf16 {
		g.P("steps:\n\tMOVQ $%d, R14", 32/fmaUnroll)
	} else {
		g.P("\tIMULQ $%d, CX", 32/fmaUnroll)
	}
	g.P("\tPCALIGN $32\nloop:")
	fetch(g)
	for k := range fmaUnroll {
		switch {
		case !bf16:
			g.P("\tVMOVUPS %d(BX), Y14\n\tVMOVUPS %d(BX), Y15", 128*k, 128*k+32)
		case k%2 == 0:
			g.P("\tVMOVUPS %d(BX), Y14\n\tVMOVUPS %d(BX), Y15", 32*k, 32*k+32)
			g.P("\tVPSLLD $16, Y14, Y14\n\tVPSLLD $16, Y15, Y15")
		default:
			g.P("\tVPAND %d(BX), Y%d, Y14\n\tVPAND %d(BX), Y%d, Y15", 32*(k-1), mask, 32*(k-1)+32, mask)
		}
		for i := range rows {
			g.P("\tVBROADCASTSS %s, Y%d", at(i, k), value)
			g.P("\tVFMADD231PS Y14, Y%d, Y%d\n\tVFMADD231PS Y15, Y%d, Y%d", value, 2*i, value, 2*i+1)
		}
	}
	advance(g, rows)
	if bf16 {
		g.P("\tADDQ $%d, BX\n\tDECQ R14\n\tJNZ loop\n\tADDQ $1024, BX\n\tDECQ CX\n\tJNZ steps", 32*fmaUnroll)
	} else {
		g.P("\tADDQ $%d, BX\n\tDECQ CX\n\tJNZ loop", 128*fmaUnroll)
	}
	g.P("\tMOVQ finish+88(FP), R15\n\tTESTQ R15, R15\n\tJNZ finish")
	for i := range rows {
		g.P("\tVMOVUPS Y%d, %d(DI)\n\tVMOVUPS Y%d, %d(DI)", 2*i, 128*i, 2*i+1, 128*i+32)
	}
	g.P("\tVZEROUPPER\n\tRET")
	fmaFinish(g, "Y", 32, rows, 2, weights)
}

package main

import "fmt"

// The products in float32 with AVX-512: up to 14×32 results of a panel in registers.
//
// Rows are packed in panels, the k-th values of all rows in one line. Most are multiplied from memory,
// broadcast by the multiplication itself, and the rest loaded before: that takes the fewest slots of
// the core's front end, which a core's other thread needs as well, and keeps within two loads per
// cycle.

const (
	packedRows  = 14
	loadedRows  = 4 // rows whose values are loaded before
	packedBytes = 64
)

func avx512File(g *generator) {
	for i := 1; i <= packedRows; i++ {
		g.function(fmt.Sprintf("f32x512r%d", i), fmt.Sprintf("multiplies %d packed rows by a block of a float32 panel.", i),
			fmaArgs, fmaArgCount)
		fma512(g, i, false)
	}
	for i := 1; i <= packedRows; i++ {
		g.function(fmt.Sprintf("bf16x512r%d", i), fmt.Sprintf("multiplies %d packed rows by a block of a bf16 panel.", i),
			fmaArgs, fmaArgCount)
		fma512(g, i, true)
	}
	table(g.decls, "f32x512", "holds the AVX-512 kernels of float32 panels by their rows.", "fmaKernel",
		"f32x512r", packedRows)
	table(g.decls, "bf16x512", "holds the AVX-512 kernels of bf16 panels by their rows.", "fmaKernel",
		"bf16x512r", packedRows)
	g.function("packRows512", "packs steps of rows whose offsets from src are given, 16 of them.",
		"steps int, src, offsets, dst unsafe.Pointer", 4)
	packRows512(g, 2)
}

func fma512(g *generator, rows int, bf16 bool) {
	const value, mask, weights = 28, 29, 30
	fmaStart(g, rows, 2)
	if bf16 {
		g.P("\tMOVL $0xffff0000, R15\n\tVPBROADCASTD R15, Z%d", mask)
	}
	g.P("\tCMPQ add+40(FP), $0\n\tJEQ zero")
	for i := range 2 * rows { // and those of the rows after these
		g.P("\tVMOVUPS %d(DI), Z%d\n\tPREFETCHT0 %d(DI)", 64*i, i, 64*(2*rows+i))
	}
	g.P("\tJMP start\nzero:")
	for i := range 2 * rows {
		g.P("\tVPXORD Z%d, Z%d, Z%d", i, i, i)
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
		for j := range 2 {
			switch {
			case !bf16:
				g.P("\tVMOVUPS %d(BX), Z%d", 128*k+64*j, weights+j)
			case k%2 == 0:
				g.P("\tVPSLLD $16, %d(BX), Z%d", 32*k+1024*j, weights+j)
			default:
				g.P("\tVPANDD %d(BX), Z%d, Z%d", 32*(k-1)+1024*j, mask, weights+j)
			}
		}
		for i := range rows {
			multiply512(g, rows, i, fmt.Sprintf("%d(AX)", packedBytes*k+4*i), value, weights)
		}
	}
	g.P("\tADDQ $%d, AX", packedBytes*fmaUnroll)
	if bf16 {
		g.P("\tADDQ $%d, BX\n\tDECQ R14\n\tJNZ loop\n\tADDQ $1024, BX\n\tDECQ CX\n\tJNZ steps", 32*fmaUnroll)
	} else {
		g.P("\tADDQ $%d, BX\n\tDECQ CX\n\tJNZ loop", 128*fmaUnroll)
	}
	g.P("\tMOVQ finish+88(FP), R15\n\tTESTQ R15, R15\n\tJNZ finish")
	for i := range 2 * rows {
		g.P("\tVMOVUPS Z%d, %d(DI)", i, 64*i)
	}
	g.P("\tVZEROUPPER\n\tRET")
	fmaFinish(g, "Z", 64, rows, 2, weights)
}

// multiply512 adds the products of a row's value, which is in memory, to its results. Rows whose
// values are loaded lie evenly between the others.
func multiply512(g *generator, rows, i int, from string, value, weights int) {
	if loaded := min(loadedRows, rows); (i+1)*loaded/rows == i*loaded/rows {
		for j := range 2 {
			g.P("\tVFMADD231PS.BCST %s, Z%d, Z%d", from, weights+j, 2*i+j)
		}
		return
	}
	g.P("\tVBROADCASTSS %s, Z%d", from, value)
	for j := range 2 {
		g.P("\tVFMADD231PS Z%d, Z%d, Z%d", weights+j, value, 2*i+j)
	}
}

// packRows512 transposes 16 values of 16 rows at a time, turns times per step.
func packRows512(g *generator, turns int) {
	g.P("\tMOVQ steps+0(FP), CX\n\tMOVQ src+8(FP), SI\n\tMOVQ offsets+16(FP), BX\n\tMOVQ dst+24(FP), DI")
	g.P("\tIMULQ $%d, CX\nloop:", turns)
	for i := range 16 {
		g.P("\tMOVQ %d(BX), AX\n\tVMOVUPS (SI)(AX*1), Z%d", 8*i, i)
	}
	transpose512(g)
	for i := range 16 {
		g.P("\tVMOVUPS Z%d, %d(DI)", i, 64*i)
	}
	g.P("\tADDQ $64, SI\n\tADDQ $1024, DI\n\tDECQ CX\n\tJNZ loop\n\tVZEROUPPER\n\tRET")
}

// transpose512 turns rows of 16 values in Z0…Z15 into columns, in place. It uses Z16…Z31.
func transpose512(g *generator) {
	for i := 0; i < 16; i += 2 {
		g.P("\tVUNPCKLPS Z%d, Z%d, Z%d\n\tVUNPCKHPS Z%d, Z%d, Z%d", i+1, i, 16+i, i+1, i, 17+i)
	}
	for q := 0; q < 16; q += 4 {
		g.P("\tVUNPCKLPD Z%d, Z%d, Z%d\n\tVUNPCKHPD Z%d, Z%d, Z%d", 18+q, 16+q, q, 18+q, 16+q, q+1)
		g.P("\tVUNPCKLPD Z%d, Z%d, Z%d\n\tVUNPCKHPD Z%d, Z%d, Z%d", 19+q, 17+q, q+2, 19+q, 17+q, q+3)
	}
	for j := range 4 {
		x := 16 + 4*j
		g.P("\tVSHUFF32X4 $0x88, Z%d, Z%d, Z%d\n\tVSHUFF32X4 $0xdd, Z%d, Z%d, Z%d", 4+j, j, x, 4+j, j, x+1)
		g.P("\tVSHUFF32X4 $0x88, Z%d, Z%d, Z%d\n\tVSHUFF32X4 $0xdd, Z%d, Z%d, Z%d", 12+j, 8+j, x+2, 12+j, 8+j, x+3)
		g.P("\tVSHUFF32X4 $0x88, Z%d, Z%d, Z%d\n\tVSHUFF32X4 $0xdd, Z%d, Z%d, Z%d", x+2, x, j, x+2, x, 8+j)
		g.P("\tVSHUFF32X4 $0x88, Z%d, Z%d, Z%d\n\tVSHUFF32X4 $0xdd, Z%d, Z%d, Z%d", x+3, x+1, 4+j, x+3, x+1, 12+j)
	}
}

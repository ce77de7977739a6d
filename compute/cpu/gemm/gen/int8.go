package main

import "fmt"

// What products of 8-bit integers need beside the kernels that multiply: rows become integers, and sums become floats.

// narrow512 rounds 16 values at a time.
func narrow512(g *generator) {
	g.function("narrow512",
		"rounds steps·64 floats times inverse to bytes; steps lie stride bytes apart. It sets sum to their sum.",
		"steps int, src, inverse, dst unsafe.Pointer, stride int, sum unsafe.Pointer", 6)
	g.P("\tMOVQ steps+0(FP), CX\n\tMOVQ src+8(FP), SI\n\tMOVQ inverse+16(FP), AX")
	g.P("\tMOVQ dst+24(FP), DI\n\tMOVQ stride+32(FP), DX")
	g.P("\tMOVQ sum+40(FP), BX\n\tVBROADCASTSS (AX), Z0\n\tVPXORD Z5, Z5, Z5\n\tVPXORD Z6, Z6, Z6\nloop:")
	for i := range 4 {
		g.P("\tVMULPS %d(SI), Z0, Z%d\n\tVCVTPS2DQ Z%d, Z%d", 64*i, 1+i, 1+i, 1+i)
	}
	for i := range 4 {
		g.P("\tVPADDD Z%d, Z%d, Z%d\n\tVPMOVSDB Z%d, %d(DI)", 1+i, 5+i%2, 5+i%2, 1+i, 16*i)
	}
	g.P("\tPREFETCHT0 1024(SI)\n\tADDQ $256, SI\n\tADDQ DX, DI\n\tDECQ CX\n\tJNZ loop")
	g.P("\tVPADDD Z6, Z5, Z5\n\tVEXTRACTI64X4 $1, Z5, Y6\n\tVPADDD Y6, Y5, Y5")
	lower(g, "VPADDD")
}

// lower folds the eight values of Y5 by an operation and writes the result to (BX).
func lower(g *generator, op string) {
	g.P("\tVEXTRACTI128 $1, Y5, X6\n\t%s X6, X5, X5\n\tVPSHUFD $0x4e, X5, X6\n\t%s X6, X5, X5", op, op)
	g.P("\tVPSHUFD $0xb1, X5, X6\n\t%s X6, X5, X5\n\tVMOVD X5, (BX)\n\tVZEROUPPER\n\tRET", op)
}

func largest512(g *generator) {
	g.function("largest512", "sets bits to those of the largest magnitude of blocks·16 floats.",
		"blocks int, src, bits unsafe.Pointer", 3)
	g.P("\tMOVQ blocks+0(FP), CX\n\tMOVQ src+8(FP), SI\n\tMOVQ bits+16(FP), BX")
	g.P("\tMOVL $0x7fffffff, AX\n\tVPBROADCASTD AX, Z0\n\tVPXORD Z5, Z5, Z5\nloop:")
	g.P("\tVPANDD (SI), Z0, Z1\n\tVPMAXUD Z1, Z5, Z5\n\tADDQ $64, SI\n\tDECQ CX\n\tJNZ loop")
	g.P("\tVEXTRACTI64X4 $1, Z5, Y6\n\tVPMAXUD Y6, Y5, Y5")
	lower(g, "VPMAXUD")
}

const dequantiseArgs = "rows int, sums, scales, of unsafe.Pointer"

// dequantise turns sums into floats: (sum − offset)·the column's scale·the row's. A row's record has 16 bytes.
func dequantise(g *generator, wide bool) {
	name, reg, size, n := "dequantise256", "Y", 32, 4
	if wide {
		name, reg, size, n = "dequantise512", "Z", 64, 2
	}
	g.function(name, "turns rows of 32 integer sums into floats, in place.", dequantiseArgs, 4)
	g.P("\tMOVQ rows+0(FP), CX\n\tMOVQ sums+8(FP), AX\n\tMOVQ scales+16(FP), BX\n\tMOVQ of+24(FP), DX")
	for i := range n {
		g.P("\tVMOVUPS %d(BX), %s%d", size*i, reg, 8+i)
	}
	g.P("loop:\n\tVBROADCASTSS (DX), %s6\n\tVPBROADCASTD 4(DX), %s7", reg, reg)
	for i := range n {
		move := "VMOVDQU"
		if wide {
			move = "VMOVDQU32"
		}
		g.P("\t%s %d(AX), %s%d\n\tVPSUBD %s7, %s%d, %s%d\n\tVCVTDQ2PS %s%d, %s%d", move, size*i, reg, i, reg, reg,
			i, reg, i, reg, i, reg, i)
		g.P("\tVMULPS %s%d, %s%d, %s%d\n\tVMULPS %s6, %s%d, %s%d\n\tVMOVUPS %s%d, %d(AX)", reg, 8+i, reg, i, reg, i,
			reg, reg, i, reg, i, reg, i, size*i)
	}
	g.P("\tADDQ $128, AX\n\tADDQ $16, DX\n\tDECQ CX\n\tJNZ loop\n\tVZEROUPPER\n\tRET")
}

func narrow256(g *generator) {
	g.function("narrow256",
		"rounds steps·64 floats times inverse to 16 bits each; steps lie stride bytes apart. It sets sum to their sum.",
		"steps int, src, inverse, dst unsafe.Pointer, stride int, sum unsafe.Pointer", 6)
	g.P("\tMOVQ steps+0(FP), CX\n\tMOVQ src+8(FP), SI\n\tMOVQ inverse+16(FP), AX")
	g.P("\tMOVQ dst+24(FP), DI\n\tMOVQ stride+32(FP), DX")
	g.P("\tMOVQ sum+40(FP), BX\n\tVBROADCASTSS (AX), Y0\n\tVPXOR Y5, Y5, Y5\nloop:")
	for i := range 4 {
		g.P("\tVMULPS %d(SI), Y0, Y1\n\tVMULPS %d(SI), Y0, Y2\n\tVCVTPS2DQ Y1, Y1\n\tVCVTPS2DQ Y2, Y2", 64*i, 64*i+32)
		g.P("\tVPADDD Y1, Y5, Y5\n\tVPADDD Y2, Y5, Y5\n\tVPACKSSDW Y2, Y1, Y1\n\tVPERMQ $0xd8, Y1, Y1\n\tVMOVDQU Y1, %d(DI)",
			32*i)
	}
	g.P("\tADDQ $256, SI\n\tADDQ DX, DI\n\tDECQ CX\n\tJNZ loop")
	lower(g, "VPADDD")
}

func largest256(g *generator) {
	g.function("largest256", "sets bits to those of the largest magnitude of blocks·16 floats.",
		"blocks int, src, bits unsafe.Pointer", 3)
	g.P("\tMOVQ blocks+0(FP), CX\n\tMOVQ src+8(FP), SI\n\tMOVQ bits+16(FP), BX")
	g.P("\tMOVL $0x7fffffff, AX\n\tMOVQ AX, X0\n\tVPBROADCASTD X0, Y0\n\tVPXOR Y5, Y5, Y5\nloop:")
	g.P("\tVPAND (SI), Y0, Y1\n\tVPMAXUD Y1, Y5, Y5\n\tVPAND 32(SI), Y0, Y2\n\tVPMAXUD Y2, Y5, Y5\n\tADDQ $64, " +
		"SI\n\tDECQ CX\n\tJNZ loop")
	lower(g, "VPMAXUD")
}

// vnniFile writes what AVX-512 and its VNNI do for int8: up to 14×32 sums of a panel in registers. Rows are packed as
// for float32, fours of bytes in place of a float; weights are unsigned, as the instruction wants the operand that is
// no memory.
func vnniFile(g *generator) {
	for i := 1; i <= packedRows; i++ {
		g.function(fmt.Sprintf("int8x512r%d", i), fmt.Sprintf("multiplies %d packed rows by a block of an int8 panel.", i),
			fmaArgs, fmaArgCount)
		vnni512(g, i)
	}
	table(g.decls, "int8x512", "holds the VNNI kernels of int8 panels by their rows.", "fmaKernel",
		"int8x512r", packedRows)
	g.function("packBytes512", "packs steps of bytes of rows whose offsets from src are given, 16 of them.",
		"steps int, src, offsets, dst unsafe.Pointer", 4)
	packRows512(g, 1)
	narrow512(g)
	largest512(g)
	dequantise(g, true)
}

const vnniUnroll = 4 // fours of k of a turn of the loop

func vnni512(g *generator, rows int) {
	const value, weights = 28, 30
	fmaStart(g, rows, 2)
	g.P("\tCMPQ add+40(FP), $0\n\tJEQ zero")
	for i := range 2 * rows {
		g.P("\tVMOVUPS %d(DI), Z%d\n\tPREFETCHT0 %d(DI)", 64*i, i, 64*(2*rows+i))
	}
	g.P("\tJMP start\nzero:")
	for i := range 2 * rows {
		g.P("\tVPXORD Z%d, Z%d, Z%d", i, i, i)
	}
	g.P("start:\nsteps:\n\tMOVQ $%d, R14\n\tPCALIGN $32\nloop:", 16/vnniUnroll)
	fetch(g)
	for k := range vnniUnroll {
		for j := range 2 {
			g.P("\tVMOVDQU32 %d(BX), Z%d", 64*k+1024*j, weights+j)
		}
		for i := range rows {
			from := fmt.Sprintf("%d(AX)", packedBytes*k+4*i)
			if loaded := min(loadedRows, rows); (i+1)*loaded/rows == i*loaded/rows {
				for j := range 2 {
					g.P("\tVPDPBUSD.BCST %s, Z%d, Z%d", from, weights+j, 2*i+j)
				}
				continue
			}
			g.P("\tVPBROADCASTD %s, Z%d", from, value)
			for j := range 2 {
				g.P("\tVPDPBUSD Z%d, Z%d, Z%d", value, weights+j, 2*i+j)
			}
		}
	}
	g.P("\tADDQ $%d, AX\n\tADDQ $%d, BX\n\tDECQ R14\n\tJNZ loop\n\tADDQ $1024, BX\n\tDECQ CX\n\tJNZ steps",
		packedBytes*vnniUnroll, 64*vnniUnroll)
	for i := range 2 * rows {
		g.P("\tVMOVUPS Z%d, %d(DI)", i, 64*i)
	}
	g.P("\tVZEROUPPER\n\tRET")
}

// madd256 is the product of pairs of 16-bit values with AVX2: up to 6×16 sums in registers. The instruction that
// multiplies bytes saturates, so weights are widened when they are loaded, and rows when they are packed.
func madd256(g *generator, rows int) {
	fmaStart(g, rows, 1)
	g.P("\tMOVQ stride+16(FP), SI")
	for i := 1; i <= (rows-1)/3; i++ {
		g.P("\tLEAQ (%s)(SI*2), %s\n\tADDQ SI, %s", bases[i-1], bases[i], bases[i])
	}
	g.P("\tCMPQ add+40(FP), $0\n\tJEQ zero")
	for i := range rows {
		g.P("\tVMOVUPS %d(DI), Y%d\n\tVMOVUPS %d(DI), Y%d", 128*i, 2*i, 128*i+32, 2*i+1)
	}
	g.P("\tJMP start\nzero:")
	for i := range 2 * rows {
		g.P("\tVXORPS Y%d, Y%d, Y%d", i, i, i)
	}
	g.P("start:\nsteps:\n\tMOVQ $4, R14\n\tPCALIGN $32\nloop:")
	fetch(g)
	for k := range fmaUnroll {
		g.P("\tVPMOVSXBW %d(BX), Y14\n\tVPMOVSXBW %d(BX), Y15", 32*k, 32*k+16)
		for i := range rows {
			g.P("\tVPBROADCASTD %s, Y13", at(i, k))
			g.P("\tVPMADDWD Y14, Y13, Y12\n\tVPMADDWD Y15, Y13, Y13\n\tVPADDD Y12, Y%d, Y%d\n\tVPADDD Y13, Y%d, Y%d", 2*i, 2*i,
				2*i+1, 2*i+1)
		}
	}
	advance(g, rows)
	g.P("\tADDQ $%d, BX\n\tDECQ R14\n\tJNZ loop\n\tADDQ $1024, BX\n\tDECQ CX\n\tJNZ steps", 32*fmaUnroll)
	for i := range rows {
		g.P("\tVMOVUPS Y%d, %d(DI)\n\tVMOVUPS Y%d, %d(DI)", 2*i, 128*i, 2*i+1, 128*i+32)
	}
	g.P("\tVZEROUPPER\n\tRET")
}

package main

import "grebe/compute/cpu/internal/asmgen"

// amxFile writes the products of bf16 and int8 tiles and the conversion of activations to bf16.
//
// A 2×2 block of result tiles stays in registers; per step of 64 bytes two tiles of rows and two of
// weights are loaded, the rows with the hint that they are not used again soon. Meanwhile the block
// of weights that comes next is fetched into L2, and the lines of the output that the sums go to.
func amxFile(g *generator) {
	amxKernel(g, "amxRows32",
		"multiplies panels of up to 32 rows (17 or more in the last) by a block of a weight panel.", true, g.TileDot)
	amxKernel(g, "amxRows16", "multiplies up to 16 rows by a block of a weight panel.", false, g.TileDot)
	amxKernel(g, "amxBytes32", "is amxRows32 for tiles of int8.", true, g.TileDotInt8)
	amxKernel(g, "amxBytes16", "is amxRows16 for tiles of int8.", false, g.TileDotInt8)
	cvtRow(g)
	cvtRows(g)
}

func amxKernel(g *generator, name, comment string, both bool, dot func(c, x, y int)) {
	g.function(name, comment,
		"config unsafe.Pointer, steps, panels int, a unsafe.Pointer, aPanel int, b, c unsafe.Pointer, add int, next "+
			"unsafe.Pointer, lines4 int, out unsafe.Pointer, outStride, outRows int", 13)
	g.P("\tMOVQ config+0(FP), AX")
	g.TileConfig()
	g.P("\tMOVQ panels+16(FP), R9\n\tMOVQ a+24(FP), R10\n\tMOVQ c+48(FP), DI\n\tMOVQ add+56(FP), R11")
	g.P("\tMOVQ next+64(FP), R13\n\tMOVQ lines4+72(FP), R12\n\tMOVQ $128, SI\n\tMOVQ $64, DX")
	g.P("\tMOVQ out+80(FP), R14\n\tMOVQ outRows+96(FP), R15")
	g.P("panel:\n\tMOVQ R10, AX\n\tMOVQ b+40(FP), BX\n\tMOVQ steps+8(FP), CX")
	results := []struct{ tile, disp int }{{0, 0}, {1, 64}}
	if both {
		results = append(results, []struct{ tile, disp int }{{2, 2048}, {3, 2048 + 64}}...)
	}
	g.P("\tTESTQ R11, R11\n\tJZ zero")
	for _, r := range results {
		g.TileLoad(r.tile, asmgen.DI, asmgen.SI, r.disp)
	}
	g.P("\tJMP loop\nzero:")
	for _, r := range results {
		g.TileZero(r.tile)
	}
	g.P("\tPCALIGN $32\nloop:")
	g.TileLoad(6, asmgen.BX, asmgen.DX, 0)
	g.TileLoadStream(4, asmgen.AX, asmgen.DX, 0)
	dot(0, 4, 6)
	if both {
		g.TileLoadStream(5, asmgen.AX, asmgen.DX, 1024)
		dot(2, 5, 6)
	}
	g.TileLoad(7, asmgen.BX, asmgen.DX, 1024)
	dot(1, 4, 7)
	if both {
		dot(3, 5, 7)
	}
	g.P("\tTESTQ R15, R15\n\tJZ warmed")
	g.Bytes("PREFETCHW (R14)", []byte{0x41, 0x0F, 0x0D, 0x0E})
	g.Bytes("PREFETCHW 64(R14)", []byte{0x41, 0x0F, 0x0D, 0x4E, 0x40})
	g.P("\tADDQ outStride+88(FP), R14\n\tDECQ R15\nwarmed:")
	g.P("\tMOVQ R12, R8\n\tTESTQ R8, R8\n\tJZ fetched")
	g.P("fetch:")
	for i := range 4 {
		g.P("\tPREFETCHT1 %d(R13)", 64*i)
	}
	g.P("\tADDQ $256, R13\n\tDECQ R8\n\tJNZ fetch\nfetched:")
	g.P("\tADDQ $2048, AX\n\tADDQ $2048, BX\n\tDECQ CX\n\tJNZ loop")
	for _, r := range results {
		g.TileStore(r.tile, asmgen.DI, asmgen.SI, r.disp)
	}
	g.P("\tADDQ aPanel+32(FP), R10\n\tADDQ $4096, DI\n\tDECQ R9\n\tJNZ panel")
	g.TileRelease()
	g.P("\tRET")
}

func cvtRow(g *generator) {
	g.function("cvtRow", "rounds steps·32 floats of a row to bf16, written every 2 KiB: the row's place in each step's "+
		"tiles.",
		"steps int, src, dst unsafe.Pointer", 3)
	g.P("\tMOVQ steps+0(FP), CX\n\tMOVQ src+8(FP), AX\n\tMOVQ dst+16(FP), DI")
	g.P("loop:\n\tVMOVUPS (AX), Z0\n\tVMOVUPS 64(AX), Z1")
	g.CvtNE2PS2BF16(2, 1, 0)
	g.P("\tVMOVUPS Z2, (DI)\n\tADDQ $128, AX\n\tADDQ $2048, DI\n\tDECQ CX\n\tJNZ loop\n\tVZEROUPPER\n\tRET")
}

// cvtRows goes step by step over the rows, so that it writes whole runs of lines.
func cvtRows(g *generator) {
	g.function("cvtRows", "is cvtRow for rows of src that start stride bytes apart and lie below each other in the tiles.",
		"rows, steps int, src unsafe.Pointer, stride int, dst unsafe.Pointer", 5)
	g.P("\tMOVQ steps+8(FP), CX\n\tMOVQ src+16(FP), SI\n\tMOVQ stride+24(FP), DX\n\tMOVQ dst+32(FP), BX")
	g.P("step:\n\tMOVQ rows+0(FP), R8\n\tMOVQ SI, AX\n\tMOVQ BX, DI")
	g.P("row:\n\tVMOVUPS (AX), Z0\n\tVMOVUPS 64(AX), Z1\n\tPREFETCHT0 512(AX)\n\tPREFETCHT0 576(AX)")
	g.CvtNE2PS2BF16(2, 1, 0)
	g.P("\tVMOVUPS Z2, (DI)\n\tADDQ DX, AX\n\tADDQ $64, DI\n\tDECQ R8\n\tJNZ row")
	g.P("\tADDQ $128, SI\n\tADDQ $2048, BX\n\tDECQ CX\n\tJNZ step\n\tVZEROUPPER\n\tRET")
}

package main

import (
	"fmt"

	"grebe/compute/cpu/internal/asmgen"
)

// Fields of the struct walk, whose address is in R15.
const (
	walkQ       = "0(R15)"
	walkS       = "8(R15)"
	walkP       = "16(R15)"
	walkO       = "24(R15)"
	walkState   = "32(R15)"
	walkK       = "40(R15)"
	walkV       = "48(R15)"
	walkKeys    = "56(R15)"
	walkFirst   = "64(R15)"
	walkOpen    = "72(R15)"
	walkStarted = "80(R15)"
	walkDims    = "88(R15)"
	walkBlock   = "96(R15)"
	walkScale   = "104(R15)"
	walkClosed  = "128(R15)"
)

const blockKeys = 128

func amx(g *gen) {
	config := make([]uint32, 16) // palette 1, bytes of a row at 16, rows at 48: eight tiles of 16 × 64
	config[0] = 1
	for i := range 4 {
		config[4+i] = 64 | 64<<16
	}
	config[12], config[13] = 0x10101010, 0x10101010
	g.table("tiles", config)
	g.tableOfPairs()
	for _, pointwise := range []bool{false, true} {
		g.walkAMX(1, pointwise)
		g.walkAMX(2, pointwise)
		for _, dims := range []int{64, 128} {
			pipe{softmax{gen: g, tiles: true, state: "R13", pointwise: pointwise}, dims}.walk()
		}
	}
	for cols := 1; cols <= 2; cols++ {
		g.fn(fmt.Sprintf("scoresAMX%d", cols), "w *walk", "w:R15")
		g.P("\tLEAQ tiles<>(SB), AX")
		g.TileConfig()
		g.scoresAMX(cols)
		g.TileRelease()
		g.ret()
	}
	g.loadQAMX()
	g.packAMX()
}

// walkAMX goes through keys of a run, a block at a time: scores, softmax, outputs. It moves the
// walk on by its number of keys, a multiple of 32.
func (g *gen) walkAMX(cols int, pointwise bool) {
	g.fn(fmt.Sprintf("%sAMX%d", named(pointwise, "walk", "point"), cols), "w *walk", "w:R15")
	g.P("\tLEAQ tiles<>(SB), AX")
	g.TileConfig()
	x := softmax{gen: g, tiles: true, keys: walkBlock, first: walkFirst, state: "DX", pointwise: pointwise}
	x.constants(walkScale)
	g.P("block:\n\tMOVQ $%d, R9\n\tCMPQ R9, %s\n\tCMOVQGT %s, R9\n\tMOVQ R9, %s", blockKeys, walkKeys, walkKeys, walkBlock)
	g.scoresAMX(cols)
	g.P("\tMOVQ %s, AX\n\tMOVQ %s, BX\n\tMOVQ %s, DX\n\tMOVQ $%d, R12", walkS, walkP, walkState, cols)
	g.P("\tXORQ R13, R13\n\tMOVQ %s, R8\n\tADDQ %s, R8\n\tCMPQ R8, %s\n\tSETGT R13", walkFirst, walkBlock, walkOpen)
	if pointwise {
		g.P("\tXORQ R9, R9\n\tMOVQ %s, R8\n\tCMPQ R8, %s\n\tSETLT R9\n\tORQ R9, R13", walkFirst, walkClosed)
	}
	x.step()
	if !pointwise {
		g.P("\tTESTQ R10, R10\n\tJZ values\n\tCMPQ %s, $0\n\tJEQ values", walkStarted)
		g.P("\tMOVQ %s, AX\n\tMOVQ %s, BX\n\tMOVQ %s, CX", walkO, walkState, walkDims)
		g.rescaling()
		g.P("values:")
	}
	g.valuesAMX(cols)
	g.P("\tMOVQ %s, R9\n\tMOVQ %s, R10\n\tIMULQ R9, R10\n\tADDQ R10, R10", walkBlock, walkDims)
	g.P("\tADDQ R10, %s\n\tADDQ R10, %s\n\tADDQ R9, %s\n\tMOVQ $1, %s", walkK, walkV, walkFirst, walkStarted)
	g.P("\tSUBQ R9, %s\n\tJNZ block", walkKeys)
	g.TileRelease()
	g.ret()
}

// scoresAMX multiplies a block of keys, 32 at a time, by 16 or 32 queries: s[key][lane] = K·Qᵀ. K
// is tiled [16 keys][32 dims], q [32 dims][column].
func (g *gen) scoresAMX(cols int) {
	g.P("\tMOVQ %s, DI\n\tMOVQ %s, AX\n\tMOVQ %s, R9\n\tMOVQ %s, R10", walkS, walkK, walkBlock, walkDims)
	g.P("\tSHRQ $5, R9\n\tSHRQ $5, R10\n\tMOVQ R10, R11\n\tSHLQ $10, R11") // R11: from a group of 16 keys to the next
	g.P("\tMOVQ $64, DX\n\tMOVQ $%d, CX\nscoreKeys:\n\tMOVQ %s, BX\n\tLEAQ (AX)(R11*1), SI\n\tMOVQ R10, R12", row, walkQ)
	for i := range 2 {
		for j := range cols {
			g.TileZero(2*i + j)
		}
	}
	g.P("scoreDims:")
	g.TileLoad(6, asmgen.BX, asmgen.DX, 0)
	g.TileLoad(4, asmgen.AX, asmgen.DX, 0)
	g.TileDot(0, 4, 6)
	g.TileLoad(5, asmgen.SI, asmgen.DX, 0)
	g.TileDot(2, 5, 6)
	if cols == 2 {
		g.TileLoad(7, asmgen.BX, asmgen.DX, tile)
		g.TileDot(1, 4, 7)
		g.TileDot(3, 5, 7)
	}
	g.P("\tADDQ $%d, AX\n\tADDQ $%d, SI\n\tADDQ $%d, BX\n\tDECQ R12\n\tJNZ scoreDims", tile, tile, 2*tile)
	for i := range 2 {
		for j := range cols {
			g.TileStore(2*i+j, asmgen.DI, asmgen.CX, 16*row*i+64*j)
		}
	}
	g.P("\tADDQ R11, AX\n\tADDQ $%d, DI\n\tDECQ R9\n\tJNZ scoreKeys", 32*row)
}

// valuesAMX adds Vᵀ·P of a block to o[dim][lane], 32 dims at a time. V is tiled [32 keys][16 dims],
// p [32 keys][column].
func (g *gen) valuesAMX(cols int) {
	g.P("\tMOVQ %s, DI\n\tMOVQ %s, R8\n\tMOVQ %s, R9\n\tMOVQ %s, R10", walkO, walkV, walkBlock, walkDims)
	g.P("\tSHRQ $5, R9\n\tMOVQ R10, R11\n\tSHLQ $6, R11\n\tSHRQ $5, R10") // R11: from 32 keys to the next
	g.P("\tMOVQ $64, DX\n\tMOVQ $%d, CX\nvalueDims:\n\tMOVQ %s, BX\n\tMOVQ R8, AX\n\tMOVQ R9, R12", row, walkP)
	g.P("\tCMPQ %s, $0\n\tJNE valueLoad", walkStarted)
	for i := range 2 {
		for j := range cols {
			g.TileZero(2*i + j)
		}
	}
	g.P("\tJMP valueKeys\nvalueLoad:")
	for i := range 2 {
		for j := range cols {
			g.TileLoad(2*i+j, asmgen.DI, asmgen.CX, 16*row*i+64*j)
		}
	}
	g.P("valueKeys:")
	g.TileLoad(6, asmgen.BX, asmgen.DX, 0)
	g.TileLoad(4, asmgen.AX, asmgen.DX, 0)
	g.TileDot(0, 4, 6)
	g.TileLoad(5, asmgen.AX, asmgen.DX, tile)
	g.TileDot(2, 5, 6)
	if cols == 2 {
		g.TileLoad(7, asmgen.BX, asmgen.DX, tile)
		g.TileDot(1, 4, 7)
		g.TileDot(3, 5, 7)
	}
	g.P("\tADDQ R11, AX\n\tADDQ $%d, BX\n\tDECQ R12\n\tJNZ valueKeys", 2*tile)
	for i := range 2 {
		for j := range cols {
			g.TileStore(2*i+j, asmgen.DI, asmgen.CX, 16*row*i+64*j)
		}
	}
	g.P("\tADDQ $%d, R8\n\tADDQ $%d, DI\n\tDECQ R10\n\tJNZ valueDims", 2*tile, 32*row)
}

// loadQAMX rounds rows of queries to bf16 and turns them into tiles [32 dims][column] of pairs.
func (g *gen) loadQAMX() {
	g.fn("loadQAMX", "dst unsafe.Pointer, rows *[lanes]unsafe.Pointer, dims, cols int", "dst:DI", "rows:SI", "cols:CX")
	g.P("column:\n\tMOVQ DI, R12\n\tMOVQ dims+16(FP), R11\n\tXORQ DX, DX\ndim:")
	g.mask("R11", 16, "K1")
	g.P("\tLEAQ -16(R11), R13")
	g.mask("R13", 16, "K2")
	for i := range 16 {
		a, b := 16+i%8*2, 17+i%8*2
		g.P("\tMOVQ %d(SI), R8\n\tVMOVUPS.Z (R8)(DX*1), K1, Z%d\n\tVMOVUPS.Z 64(R8)(DX*1), K2, Z%d", pointer*i, a, b)
		g.CvtNE2PS2BF16(i, b, a)
	}
	g.transpose()
	for i := range 16 {
		g.P("\tVMOVUPS Z%d, %d(R12)", i, 64*i)
	}
	g.P("\tADDQ $%d, R12\n\tADDQ $128, DX\n\tSUBQ $32, R11\n\tJGT dim", 2*tile)
	g.P("\tADDQ $%d, DI\n\tADDQ $%d, SI\n\tDECQ CX\n\tJNZ column", tile, 16*pointer)
	g.ret()
}

// packAMX packs 32 rows of K and of V: K as tiles of 16 keys × 32 dims, V transposed as tiles of
// 16 dims × 32 keys.
func (g *gen) packAMX() {
	g.fn("packAMX", "k, v unsafe.Pointer, src *sources, dims, padded, vPanel int", "k:DI", "src:SI", "padded:R10",
		"dims:R11")
	g.P("\tSHLQ $5, R10\n\tXORQ DX, DX\nkeys:\n\tLEAQ (DI)(R10*1), R13")
	g.mask("R11", 32, "K1")
	for i := range 32 {
		base := "DI"
		if i >= 16 {
			base = "R13"
		}
		g.P("\tMOVQ %d(SI), R8\n\tVMOVDQU16.Z (R8)(DX*1), K1, Z%d\n\tVMOVDQU64 Z%d, %d(%s)", pointer*i, i%8, i%8, 64*(i%16),
			base)
	}
	g.P("\tADDQ $%d, DI\n\tADDQ $64, DX\n\tSUBQ $32, R11\n\tJGT keys", tile)
	g.P("\tMOVQ v+8(FP), DI\n\tMOVQ dims+24(FP), R11\n\tMOVQ padded+32(FP), CX\n\tSHRQ $4, CX\n\tADDQ $%d, SI\n\tXORQ "+
		"DX, DX\nvalues:", 32*pointer)
	g.mask("R11", 16, "K1")
	for i := range 16 {
		t := 16 + i%8
		g.P("\tMOVQ %d(SI), R8\n\tMOVQ %d(SI), R9", pointer*2*i, pointer*(2*i+1))
		g.P("\tVPMOVZXWD.Z (R8)(DX*1), K1, Z%d\n\tVPMOVZXWD.Z (R9)(DX*1), K1, Z%d", i, t)
		g.P("\tVPSLLD $16, Z%d, Z%d\n\tVPORD Z%d, Z%d, Z%d", t, t, t, i, i)
	}
	g.transpose()
	for i := range 16 {
		g.P("\tVMOVDQU64 Z%d, %d(DI)", i, 64*i)
	}
	g.P("\tADDQ $%d, DI\n\tADDQ $32, DX\n\tSUBQ $16, R11\n\tDECQ CX\n\tJNZ values", tile)
	g.ret()
}

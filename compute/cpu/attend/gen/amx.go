package main

import (
	"fmt"

	"grebe/compute/cpu/internal/asmgen"
)

func amx(g *gen) {
	for cols := 1; cols <= 2; cols++ {
		g.scoresAMX(cols)
		g.valuesAMX(cols)
	}
	g.softmax("softmaxAMX", true)
	g.loadQAMX()
	g.packAMX()
}

// configure loads the tile configuration: eight tiles of 16 rows of 64 bytes.
func (g *gen) configure() {
	g.P("\tLEAQ ·tileConfig(SB), AX")
	g.TileConfig()
}

// scoresAMX multiplies 32 keys at a time by 16 or 32 queries: s[key][lane] = K·Qᵀ. K is tiled
// [16 keys][32 dims], q [32 dims][column].
func (g *gen) scoresAMX(cols int) {
	g.fn(fmt.Sprintf("scoresAMX%d", cols), "s, k, q unsafe.Pointer, keys, dims int")
	g.configure()
	g.P("\tMOVQ s+0(FP), DI\n\tMOVQ k+8(FP), AX\n\tMOVQ keys+24(FP), R9\n\tMOVQ dims+32(FP), R10")
	g.P("\tSHRQ $5, R9\n\tSHRQ $5, R10\n\tMOVQ R10, R11\n\tSHLQ $10, R11") // R11: from a group of 16 keys to the next
	g.P("\tMOVQ $64, DX\n\tMOVQ $%d, CX\nkeys:\n\tMOVQ q+16(FP), BX\n\tLEAQ (AX)(R11*1), SI\n\tMOVQ R10, R12", row)
	for i := range 2 {
		for j := range cols {
			g.TileZero(2*i + j)
		}
	}
	g.P("dims:")
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
	g.P("\tADDQ $%d, AX\n\tADDQ $%d, SI\n\tADDQ $%d, BX\n\tDECQ R12\n\tJNZ dims", tile, tile, 2*tile)
	for i := range 2 {
		for j := range cols {
			g.TileStore(2*i+j, asmgen.DI, asmgen.CX, 16*row*i+64*j)
		}
	}
	g.P("\tADDQ R11, AX\n\tADDQ $%d, DI\n\tDECQ R9\n\tJNZ keys", 32*row)
	g.TileRelease()
	g.ret()
}

// valuesAMX adds Vᵀ·P to o[dim][lane], 32 dims at a time. V is tiled [32 keys][16 dims], p
// [32 keys][column].
func (g *gen) valuesAMX(cols int) {
	g.fn(fmt.Sprintf("valuesAMX%d", cols), "o, v, p unsafe.Pointer, keys, dims int")
	g.configure()
	g.P("\tMOVQ o+0(FP), DI\n\tMOVQ v+8(FP), R8\n\tMOVQ keys+24(FP), R9\n\tMOVQ dims+32(FP), R10")
	g.P("\tSHRQ $5, R9\n\tMOVQ R10, R11\n\tSHLQ $6, R11\n\tSHRQ $5, R10") // R11: from 32 keys to the next
	g.P("\tMOVQ $64, DX\n\tMOVQ $%d, CX\ndims:\n\tMOVQ p+16(FP), BX\n\tMOVQ R8, AX\n\tMOVQ R9, R12", row)
	for i := range 2 {
		for j := range cols {
			g.TileLoad(2*i+j, asmgen.DI, asmgen.CX, 16*row*i+64*j)
		}
	}
	g.P("keys:")
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
	g.P("\tADDQ R11, AX\n\tADDQ $%d, BX\n\tDECQ R12\n\tJNZ keys", 2*tile)
	for i := range 2 {
		for j := range cols {
			g.TileStore(2*i+j, asmgen.DI, asmgen.CX, 16*row*i+64*j)
		}
	}
	g.P("\tADDQ $%d, R8\n\tADDQ $%d, DI\n\tDECQ R10\n\tJNZ dims", 2*tile, 32*row)
	g.TileRelease()
	g.ret()
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
	g.fn("packAMX", "k, v unsafe.Pointer, src *sources, dims, padded, vPanel int", "k:DI", "src:SI", "padded:R10", "dims:R11")
	g.P("\tSHLQ $5, R10\n\tXORQ DX, DX\nkeys:\n\tLEAQ (DI)(R10*1), R13")
	g.mask("R11", 32, "K1")
	for i := range 32 {
		base := "DI"
		if i >= 16 {
			base = "R13"
		}
		g.P("\tMOVQ %d(SI), R8\n\tVMOVDQU16.Z (R8)(DX*1), K1, Z%d\n\tVMOVDQU64 Z%d, %d(%s)", pointer*i, i%8, i%8, 64*(i%16), base)
	}
	g.P("\tADDQ $%d, DI\n\tADDQ $64, DX\n\tSUBQ $32, R11\n\tJGT keys", tile)
	g.P("\tMOVQ v+8(FP), DI\n\tMOVQ dims+24(FP), R11\n\tMOVQ padded+32(FP), CX\n\tSHRQ $4, CX\n\tADDQ $%d, SI\n\tXORQ DX, DX\nvalues:", 32*pointer)
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

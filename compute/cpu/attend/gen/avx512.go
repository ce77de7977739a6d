package main

func avx512(g *gen) {
	g.product512()
	g.softmax512()
	g.pointwise512()
	g.weigh512()
	g.rescale512()
	g.loadQ512()
	g.storeO512()
	g.packF32(false)
	g.packF32(true)
}

// product512 multiplies panels of 8 rows by up to 32 columns: c[8·panels][32] (+)= aᵀ·b, with a as
// [panel][depth][8] and b as [depth][32]. depth is a multiple of 4.
func (g *gen) product512() {
	g.fn("productAVX512", "c, a, b unsafe.Pointer, panels, depth, panelBytes, cols, add int",
		"c:DI", "a:SI", "b:BX", "panels:R10", "panelBytes:R11", "cols:R12", "add:R13")
	g.P("\tCMPQ R12, $1\n\tJEQ one")
	for _, n := range []int{2, 1} {
		at := map[int]string{1: "one", 2: "two"}[n]
		g.P("%s:\n\tMOVQ SI, AX\n\tMOVQ BX, DX\n\tMOVQ depth+32(FP), CX\n\tSHRQ $2, CX", at)
		g.P("\tTESTQ R13, R13\n\tJZ %szero", at)
		for i := range 8 {
			for j := range n {
				g.P("\tVMOVUPS %d(DI), Z%d", row*i+64*j, n*i+j)
			}
		}
		g.P("\tJMP %sloop\n%szero:", at, at)
		for i := range 8 * n {
			g.P("\tVPXORD Z%d, Z%d, Z%d", i, i, i)
		}
		g.P("\tPCALIGN $32\n%sloop:", at)
		for u := range 4 {
			for j := range n {
				g.P("\tVMOVUPS %d(DX), Z%d", row*u+64*j, 28+2*(u%2)+j)
			}
			for i := range 8 {
				t := 20 + i
				g.P("\tVBROADCASTSS %d(AX), Z%d", 4*(8*u+i), t)
				for j := range n {
					g.P("\tVFMADD231PS Z%d, Z%d, Z%d", 28+2*(u%2)+j, t, n*i+j)
				}
			}
		}
		g.P("\tADDQ $128, AX\n\tADDQ $%d, DX\n\tDECQ CX\n\tJNZ %sloop", 4*row, at)
		for i := range 8 {
			for j := range n {
				g.P("\tVMOVUPS Z%d, %d(DI)", n*i+j, row*i+64*j)
			}
		}
		g.P("\tADDQ R11, SI\n\tADDQ $%d, DI\n\tDECQ R10\n\tJNZ %s", 8*row, at)
		g.ret()
	}
}

func (g *gen) softmax512() {
	g.fn("softmaxAVX512", "s unsafe.Pointer, state *state, keys, cols, first, masked int, scale float32",
		"s:AX", "state:DX", "cols:R12", "masked:R13")
	x := softmax{gen: g, keys: "keys+16(FP)", first: "first+32(FP)", state: "DX"}
	x.constants("scale+48(FP)")
	x.step()
	g.P("\tMOVQ state+8(FP), DX\n\tMOVQ R10, %d(DX)", changed)
	g.ret()
}

// weigh512 adds the probabilities of each key, times the lanes' factors, to its row of 16 sums: those of lanes l
// and l+16 to the same. Maxima are final.
func (g *gen) weigh512() {
	g.fn("weighAVX512", "s unsafe.Pointer, state *state, sums unsafe.Pointer, keys, cols, first, masked int, scale "+
		"float32",
		"s:AX", "state:DX", "sums:BX", "cols:R12", "masked:R13")
	x := softmax{gen: g}
	x.constants("scale+56(FP)")
	g.P("column:\n\tVMOVUPS %d(DX), Z24\n\tVMOVUPS %d(DX), Z25\n\tVMOVDQU32 %d(DX), Z27\n\tVPBROADCASTD first+40(FP), Z29",
		maxes, factors, limits)
	g.P("\tMOVQ AX, SI\n\tMOVQ BX, DI\n\tMOVQ keys+24(FP), CX\n\tTESTQ R13, R13\n\tJNZ edge")
	for _, at := range []string{"full", "edge"} {
		g.P("\tPCALIGN $32\n%s:", at)
		for i := range 4 {
			t, f, p, mask := 3*i, 3*i+1, 3*i+2, ""
			g.P("\tVMOVUPS %d(SI), Z%d\n\tVFMSUB213PS Z24, Z22, Z%d", row*i, t, t)
			x.exp2(t, f, p)
			if at == "edge" {
				mask = "K1, "
				g.P("\tVPCMPD $2, Z27, Z29, K1\n\tVPADDD Z23, Z29, Z29")
			}
			g.P("\tVMOVUPS %d(DI), Z%d\n\tVFMADD231PS Z25, Z%d, %sZ%d\n\tVMOVUPS Z%d, %d(DI)", 64*i, t, p, mask, t, t, 64*i)
		}
		g.P("\tADDQ $%d, SI\n\tADDQ $256, DI\n\tSUBQ $4, CX\n\tJNZ %s", 4*row, at)
		if at == "full" {
			g.P("\tJMP next")
		}
	}
	g.P("next:\n\tADDQ $64, AX\n\tADDQ $64, DX\n\tDECQ R12\n\tJNZ column")
	g.ret()
}

// rescale512 multiplies each lane of rows of 32 values by its factor.
func (g *gen) rescale512() {
	g.fn("rescaleAVX512", "o unsafe.Pointer, state *state, rows int", "o:AX", "state:BX", "rows:CX")
	g.rescaling()
	g.ret()
}

// rescaling is rescale512 on CX rows at AX with the state at BX. The number of rows is a multiple of 4.
func (g *gen) rescaling() {
	g.P("\tVMOVUPS %d(BX), Z0\n\tVMOVUPS %d(BX), Z1\nrescale:", factors, factors+64)
	for i := range 4 {
		for j := range 2 {
			g.P("\tVMULPS %d(AX), Z%d, Z%d\n\tVMOVUPS Z%d, %d(AX)", row*i+64*j, j, 2+2*i+j, 2+2*i+j, row*i+64*j)
		}
	}
	g.P("\tADDQ $%d, AX\n\tSUBQ $4, CX\n\tJNZ rescale", 4*row)
}

// loadQ512 turns rows of queries into [dim][lane].
func (g *gen) loadQ512() {
	g.fn("loadQAVX512", "dst unsafe.Pointer, rows *[lanes]unsafe.Pointer, dims, cols int", "dst:DI", "rows:SI", "cols:CX")
	g.P("column:\n\tMOVQ DI, R12\n\tMOVQ dims+16(FP), R11\n\tXORQ DX, DX\ndim:")
	g.mask("R11", 16, "K1")
	for i := range 16 {
		g.P("\tMOVQ %d(SI), R8\n\tVMOVUPS.Z (R8)(DX*1), K1, Z%d", pointer*i, i)
	}
	g.transpose()
	for i := range 16 {
		g.P("\tVMOVUPS Z%d, %d(R12)", i, row*i)
	}
	g.P("\tADDQ $%d, R12\n\tADDQ $64, DX\n\tSUBQ $16, R11\n\tJGT dim", 16*row)
	g.P("\tADDQ $64, DI\n\tADDQ $%d, SI\n\tDECQ CX\n\tJNZ column", 16*pointer)
	g.ret()
}

// storeO512 divides each lane of [dim][lane] by its sum and writes it to its row.
func (g *gen) storeO512() {
	g.fn("storeOAVX512", "o unsafe.Pointer, state *state, rows *[lanes]unsafe.Pointer, dims, cols int",
		"o:DI", "state:BX", "rows:SI", "cols:CX")
	g.bits("Z", 0, 0x3f800000)
	for j := range 2 {
		g.P("\tVDIVPS %d(BX), Z0, Z1\n\tVMOVUPS Z1, %d(BX)", sums+64*j, factors+64*j)
	}
	g.P("column:\n\tMOVQ DI, R12\n\tMOVQ dims+24(FP), R11\n\tXORQ DX, DX\ndim:")
	g.mask("R11", 16, "K1")
	g.P("\tVMOVUPS %d(BX), Z31", factors)
	for i := range 16 {
		g.P("\tVMULPS %d(R12), Z31, Z%d", row*i, i)
	}
	g.transpose()
	for i := range 16 {
		g.P("\tMOVQ %d(SI), R8\n\tVMOVUPS Z%d, K1, (R8)(DX*1)", pointer*i, i)
	}
	g.P("\tADDQ $%d, R12\n\tADDQ $64, DX\n\tSUBQ $16, R11\n\tJGT dim", 16*row)
	g.P("\tADDQ $64, DI\n\tADDQ $64, BX\n\tADDQ $%d, SI\n\tDECQ CX\n\tJNZ column", 16*pointer)
	g.ret()
}

// packF32 packs 32 rows of K and of V: K as panels of 8 keys [dim][8], V as panels of 8 dims
// [key][8], vPanel bytes apart.
func (g *gen) packF32(bf16 bool) {
	name, size := "packF32AVX512", 4
	if bf16 {
		name, size = "packBF16AVX512", 2
	}
	load := func(z int) {
		if bf16 {
			g.P("\tVPMOVZXWD.Z (R8)(DX*1), K1, Z%d\n\tVPSLLD $16, Z%d, Z%d", z, z, z)
			return
		}
		g.P("\tVMOVUPS.Z (R8)(DX*1), K1, Z%d", z)
	}
	g.fn(name, "k, v unsafe.Pointer, src *sources, dims, padded, vPanel int", "k:DI", "src:SI", "padded:R10")
	g.P("\tSHLQ $5, R10\n\tMOVQ $2, CX") // bytes of a panel of keys
	g.P("group:\n\tMOVQ DI, R12\n\tMOVQ dims+24(FP), R11\n\tXORQ DX, DX\ndim:")
	g.mask("R11", 16, "K1")
	for i := range 16 {
		g.P("\tMOVQ %d(SI), R8", pointer*i)
		load(i)
	}
	g.transpose()
	g.P("\tLEAQ (R12)(R10*1), R13")
	for i := range 16 {
		g.P("\tVMOVUPS Y%d, %d(R12)\n\tVEXTRACTF64X4 $1, Z%d, %d(R13)", i, 32*i, i, 32*i)
	}
	g.P("\tADDQ $512, R12\n\tADDQ $%d, DX\n\tSUBQ $16, R11\n\tJGT dim", 16*size)
	g.P("\tLEAQ (DI)(R10*2), DI\n\tADDQ $%d, SI\n\tDECQ CX\n\tJNZ group", 16*pointer)
	// SI is at the rows of V now.
	g.P("\tMOVQ v+8(FP), DI\n\tMOVQ vPanel+40(FP), R10\n\tMOVQ dims+24(FP), R11\n\tXORQ DX, DX\nvalues:")
	g.mask("R11", 16, "K1")
	g.P("\tLEAQ (DI)(R10*1), R13")
	for i := range 32 {
		g.P("\tMOVQ %d(SI), R8", pointer*i)
		load(i % 8)
		g.P("\tVMOVUPS Y%d, %d(DI)\n\tVEXTRACTF64X4 $1, Z%d, %d(R13)", i%8, 32*i, i%8, 32*i)
	}
	g.P("\tLEAQ (DI)(R10*2), DI\n\tADDQ $%d, DX\n\tSUBQ $16, R11\n\tJGT values", 16*size)
	g.ret()
}

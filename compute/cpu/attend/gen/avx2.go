package main

func avx2(g *gen) {
	g.productAVX2()
	g.softmaxAVX2()
	g.pointwiseAVX2()
	g.rescaleAVX2()
	g.loadQ8()
	g.storeO8()
	g.pack8(false)
	g.pack8(true)
}

// productAVX2 is product512 in blocks of 4 rows × 16 columns.
func (g *gen) productAVX2() {
	g.fn("productAVX2", "c, a, b unsafe.Pointer, panels, depth, panelBytes, cols, add int",
		"c:DI", "a:SI", "panels:R10", "panelBytes:R11", "add:R13")
	g.P("panel:\n\tXORQ R12, R12\ncolumn:\n\tXORQ R9, R9\nhalf:") // R12: bytes of columns, R9: bytes of rows of a
	g.P("\tLEAQ (SI)(R9*1), AX\n\tMOVQ b+16(FP), DX\n\tADDQ R12, DX\n\tMOVQ depth+32(FP), CX\n\tSHRQ $2, CX")
	g.P("\tMOVQ R9, R8\n\tSHLQ $5, R8\n\tADDQ DI, R8\n\tADDQ R12, R8") // 4 rows of c, 128 bytes each, for 16 bytes of a
	g.P("\tTESTQ R13, R13\n\tJZ zero")
	for i := range 4 {
		g.P("\tVMOVUPS %d(R8), Y%d\n\tVMOVUPS %d(R8), Y%d", row*i, 2*i, row*i+32, 2*i+1)
	}
	g.P("\tJMP loop\nzero:")
	for i := range 8 {
		g.P("\tVXORPS Y%d, Y%d, Y%d", i, i, i)
	}
	g.P("\tPCALIGN $32\nloop:")
	for u := range 4 {
		g.P("\tVMOVUPS %d(DX), Y8\n\tVMOVUPS %d(DX), Y9", row*u, row*u+32)
		for i := range 4 {
			g.P("\tVBROADCASTSS %d(AX), Y%d", 32*u+4*i, 10+i)
			g.P("\tVFMADD231PS Y8, Y%d, Y%d\n\tVFMADD231PS Y9, Y%d, Y%d", 10+i, 2*i, 10+i, 2*i+1)
		}
	}
	g.P("\tADDQ $128, AX\n\tADDQ $%d, DX\n\tDECQ CX\n\tJNZ loop", 4*row)
	for i := range 4 {
		g.P("\tVMOVUPS Y%d, %d(R8)\n\tVMOVUPS Y%d, %d(R8)", 2*i, row*i, 2*i+1, row*i+32)
	}
	g.P("\tADDQ $16, R9\n\tCMPQ R9, $32\n\tJNE half")
	g.P("\tADDQ $64, R12\n\tMOVQ cols+48(FP), R8\n\tSHLQ $6, R8\n\tCMPQ R12, R8\n\tJNE column")
	g.P("\tADDQ R11, SI\n\tADDQ $%d, DI\n\tDECQ R10\n\tJNZ panel", 8*row)
	g.ret()
}

// softmaxAVX2 is softmax without tiles, 8 lanes at a time.
func (g *gen) softmaxAVX2() {
	g.tableAVX2()
	g.fn("softmaxAVX2", "s unsafe.Pointer, state *state, keys, cols, first, masked int, scale float32",
		"s:AX", "state:DX", "cols:R12", "masked:R13")
	g.P("\tLEAQ exp2<>(SB), R11\n\tVBROADCASTSS scale+48(FP), Y15\n\tADDQ R12, R12\n\tXORQ R10, R10")
	g.P("column:\n\tTESTQ R13, R13\n\tJNZ masked")
	g.columnAVX2(false)
	g.P("masked:")
	g.columnAVX2(true)
	g.P("next:\n\tADDQ $32, AX\n\tADDQ $32, DX\n\tDECQ R12\n\tJNZ column\n\tMOVQ state+8(FP), DX\n\tMOVQ R10, %d(DX)",
		changed)
	g.ret()
}

// columnAVX2 keeps the scale in Y15, the maximum in Y14, the factor in Y13, sums in Y12 and Y11, and
// in edge blocks the limits in Y10 and the index of the key in Y9.
func (g *gen) columnAVX2(masked bool) {
	at := "full"
	if masked {
		at = "edge"
	}
	start := func() {
		g.P("\tMOVQ AX, SI\n\tMOVQ keys+16(FP), CX")
		if masked {
			g.P("\tVPBROADCASTD first+32(FP), Y9\n\tVMOVDQU %d(DX), Y10", limits)
		}
	}
	hidden := func(r int) { // all ones where the key lies beyond the limit
		g.P("\tVPCMPGTD Y10, Y9, Y%d\n\tVPADDD 256(R11), Y9, Y9", r)
	}
	g.bits("Y", 0, 0xff800000)
	g.P("\tVMOVAPS Y0, Y1\n\tVMOVAPS Y0, Y4")
	start()
	g.P("%smax:", at)
	for i := range 4 {
		if masked {
			hidden(2)
			g.P("\tVMOVUPS %d(SI), Y3\n\tVBLENDVPS Y2, Y4, Y3, Y3\n\tVMAXPS Y3, Y%d, Y%d", row*i, i%2, i%2)
			continue
		}
		g.P("\tVMAXPS %d(SI), Y%d, Y%d", row*i, i%2, i%2)
	}
	g.P("\tADDQ $%d, SI\n\tSUBQ $4, CX\n\tJNZ %smax", 4*row, at)
	g.P("\tVMAXPS Y1, Y0, Y0\n\tVMULPS Y15, Y0, Y0\n\tVMOVUPS %d(DX), Y1", maxes)
	g.bits("Y", 2, slack)
	g.P("\tVADDPS Y2, Y1, Y2\n\tVCMPPS $14, Y2, Y0, Y2\n\tVMOVMSKPS Y2, R8\n\tORQ R8, R10")
	g.P("\tVBLENDVPS Y2, Y0, Y1, Y14\n\tVMOVUPS Y14, %d(DX)\n\tVSUBPS Y14, Y1, Y0", maxes)
	g.exp2AVX2(0, 1, 13)
	g.P("\tVMOVUPS Y13, %d(DX)\n\tVXORPS Y12, Y12, Y12\n\tVXORPS Y11, Y11, Y11", factors)
	start()
	g.P("%sexp:", at)
	for i := range 2 {
		t, f, p := 3*i, 3*i+1, 3*i+2
		g.P("\tVMOVUPS %d(SI), Y%d\n\tVFMSUB213PS Y14, Y15, Y%d", row*i, t, t)
		g.exp2AVX2(t, f, p)
		if masked {
			hidden(f)
			g.P("\tVANDNPS Y%d, Y%d, Y%d", p, f, p)
		}
		g.P("\tVADDPS Y%d, Y%d, Y%d\n\tVMOVUPS Y%d, %d(SI)", p, 11+i, 11+i, p, row*i)
	}
	g.P("\tADDQ $%d, SI\n\tSUBQ $2, CX\n\tJNZ %sexp", 2*row, at)
	g.P("\tVADDPS Y12, Y11, Y11\n\tVMOVUPS %d(DX), Y0\n\tVFMADD213PS Y11, Y13, Y0\n\tVMOVUPS Y0, %d(DX)", sums, sums)
	if !masked {
		g.P("\tJMP next")
	}
}

func (g *gen) rescaleAVX2() {
	g.fn("rescaleAVX2", "o unsafe.Pointer, state *state, rows int", "o:AX", "state:BX", "rows:CX")
	for j := range 4 {
		g.P("\tVMOVUPS %d(BX), Y%d", factors+32*j, j)
	}
	g.P("loop:")
	for j := range 4 {
		g.P("\tVMULPS %d(AX), Y%d, Y%d\n\tVMOVUPS Y%d, %d(AX)", 32*j, j, 4+j, 4+j, 32*j)
	}
	g.P("\tADDQ $%d, AX\n\tDECQ CX\n\tJNZ loop", row)
	g.ret()
}

// transpose8 turns rows of 8 values in Y0…Y7 into columns, in Y8…Y15.
func (g *gen) transpose8() {
	for i := 0; i < 8; i += 2 {
		g.P("\tVUNPCKLPS Y%d, Y%d, Y%d\n\tVUNPCKHPS Y%d, Y%d, Y%d", i+1, i, 8+i, i+1, i, 9+i)
	}
	for q := 0; q < 8; q += 4 {
		g.P("\tVUNPCKLPD Y%d, Y%d, Y%d\n\tVUNPCKHPD Y%d, Y%d, Y%d", 10+q, 8+q, q, 10+q, 8+q, q+1)
		g.P("\tVUNPCKLPD Y%d, Y%d, Y%d\n\tVUNPCKHPD Y%d, Y%d, Y%d", 11+q, 9+q, q+2, 11+q, 9+q, q+3)
	}
	for j := range 4 {
		g.P("\tVPERM2F128 $0x20, Y%d, Y%d, Y%d\n\tVPERM2F128 $0x31, Y%d, Y%d, Y%d", 4+j, j, 8+j, 4+j, j, 12+j)
	}
}

// loadQ8 turns rows of queries into [dim][lane]. For it and all that follow dims need no padding.
func (g *gen) loadQ8() {
	g.fn("loadQ8", "dst unsafe.Pointer, rows *[lanes]unsafe.Pointer, dims, cols int", "dst:DI", "rows:SI", "cols:CX")
	g.P("\tADDQ CX, CX\ncolumn:\n\tMOVQ DI, R12\n\tMOVQ dims+16(FP), R11\n\tXORQ DX, DX\ndim:")
	for i := range 8 {
		g.P("\tMOVQ %d(SI), R8\n\tVMOVUPS (R8)(DX*1), Y%d", pointer*i, i)
	}
	g.transpose8()
	for i := range 8 {
		g.P("\tVMOVUPS Y%d, %d(R12)", 8+i, row*i)
	}
	g.P("\tADDQ $%d, R12\n\tADDQ $32, DX\n\tSUBQ $8, R11\n\tJNZ dim", 8*row)
	g.P("\tADDQ $32, DI\n\tADDQ $%d, SI\n\tDECQ CX\n\tJNZ column", 8*pointer)
	g.ret()
}

// storeO8 divides each lane of [dim][lane] by its sum and writes it to its row.
func (g *gen) storeO8() {
	g.fn("storeO8", "o unsafe.Pointer, state *state, rows *[lanes]unsafe.Pointer, dims, cols int",
		"o:DI", "state:BX", "rows:SI", "cols:CX")
	g.bits("Y", 0, one)
	for j := range 4 {
		g.P("\tVDIVPS %d(BX), Y0, Y1\n\tVMOVUPS Y1, %d(BX)", sums+32*j, factors+32*j)
	}
	g.P("\tADDQ CX, CX\ncolumn:\n\tMOVQ DI, R12\n\tMOVQ dims+24(FP), R11\n\tXORQ DX, DX\ndim:\n\tVMOVUPS %d(BX), Y15",
		factors)
	for i := range 8 {
		g.P("\tVMULPS %d(R12), Y15, Y%d", row*i, i)
	}
	g.transpose8()
	for i := range 8 {
		g.P("\tMOVQ %d(SI), R8\n\tVMOVUPS Y%d, (R8)(DX*1)", pointer*i, 8+i)
	}
	g.P("\tADDQ $%d, R12\n\tADDQ $32, DX\n\tSUBQ $8, R11\n\tJNZ dim", 8*row)
	g.P("\tADDQ $32, DI\n\tADDQ $32, BX\n\tADDQ $%d, SI\n\tDECQ CX\n\tJNZ column", 8*pointer)
	g.ret()
}

// pack8 is packF32 for dims that need no padding.
func (g *gen) pack8(bf16 bool) {
	name, size := "pack8F32", 4
	if bf16 {
		name, size = "pack8BF16", 2
	}
	load := func(r int) {
		if bf16 {
			g.P("\tVPMOVZXWD (R8)(DX*1), Y%d\n\tVPSLLD $16, Y%d, Y%d", r, r, r)
			return
		}
		g.P("\tVMOVUPS (R8)(DX*1), Y%d", r)
	}
	g.fn(name, "k, v unsafe.Pointer, src *sources, dims, padded, vPanel int", "k:DI", "src:SI", "padded:R10")
	g.P("\tSHLQ $5, R10\n\tMOVQ $4, CX\ngroup:\n\tMOVQ DI, R12\n\tMOVQ dims+24(FP), R11\n\tXORQ DX, DX\ndim:")
	for i := range 8 {
		g.P("\tMOVQ %d(SI), R8", pointer*i)
		load(i)
	}
	g.transpose8()
	for i := range 8 {
		g.P("\tVMOVUPS Y%d, %d(R12)", 8+i, 32*i)
	}
	g.P("\tADDQ $256, R12\n\tADDQ $%d, DX\n\tSUBQ $8, R11\n\tJNZ dim", 8*size)
	g.P("\tADDQ R10, DI\n\tADDQ $%d, SI\n\tDECQ CX\n\tJNZ group", 8*pointer)
	// SI is at the rows of V now.
	g.P("\tMOVQ v+8(FP), DI\n\tMOVQ vPanel+40(FP), R10\n\tMOVQ dims+24(FP), R11\n\tXORQ DX, DX\nvalues:")
	for i := range 32 {
		g.P("\tMOVQ %d(SI), R8", pointer*i)
		load(i % 8)
		g.P("\tVMOVUPS Y%d, %d(DI)", i%8, 32*i)
	}
	g.P("\tADDQ R10, DI\n\tADDQ $%d, DX\n\tSUBQ $8, R11\n\tJNZ values", 8*size)
	g.ret()
}

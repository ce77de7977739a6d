package main

const (
	minusLog2E = 0xbfb8aa3b
	// lowest, −83, bounds what goes into SiLU: nothing is left there, and 1 + 2^120 has a reciprocal.
	lowest = 0xc2a60000
)

// named returns the name of a softmax's kernel or of its pointwise sister.
func named(pointwise bool, softmax, point string) string {
	if pointwise {
		return point
	}
	return softmax
}

// pointwiseColumn turns the scores of 16 lanes into SiLU(scale·score), 0 where the lane does not see the key:
// because it lies beyond the lane's limit, in Z27, or before its low, in Z24. Z30 is −log₂e, Z31 the lowest.
func (g softmax) pointwiseColumn(at string, masked bool) {
	if masked {
		g.P("\tMOVQ %s, R8\n\tVPBROADCASTD R8, Z29\n\tVMOVDQU32 %d(DX), Z27\n\tVMOVDQU32 %d(DX), Z24", g.first, limits, lows)
	}
	g.P("\tMOVQ AX, SI\n\tMOVQ %s, CX\n\tMOVQ BX, DI\n\tPCALIGN $32\n%sexp:", g.keys, at)
	const step = 4
	for i := range step {
		z, t, f, p := 4*i, 4*i+1, 4*i+2, 4*i+3
		if masked {
			g.P("\tVPCMPD $2, Z27, Z29, K2\n\tVPCMPD $5, Z24, Z29, K2, K1\n\tVPADDD Z23, Z29, Z29")
		}
		g.P("\tVMULPS %d(SI), Z22, Z%d", row*i, z)
		g.silu(z, t, f, p)
		if masked {
			g.P("\tVMOVAPS.Z Z%d, K1, Z%d", p, p)
		}
		switch {
		case !g.tiles:
			g.P("\tVMOVUPS Z%d, %d(SI)", p, row*i)
		case i%2 == 1:
			g.CvtNE2PS2BF16(t, p, p-4)
			g.P("\tVPERMW Z%d, Z28, Z%d\n\tVMOVDQU64 Z%d, %d(DI)", t, t, t, 32*(i-1))
		}
	}
	g.P("\tADDQ $%d, SI", step*row)
	if g.tiles { // the other column's tile lies between those of this one
		g.P("\tADDQ $%d, DI\n\tSUBQ $%d, CX\n\tTESTQ $31, CX\n\tJNZ %sexp\n\tADDQ $%d, DI\n\tTESTQ CX, CX\n\tJNZ %sexp",
			32*step, step, at, tile, at)
	} else {
		g.P("\tSUBQ $%d, CX\n\tJNZ %sexp", step, at)
	}
}

// silu sets Z[p] = z/(1+2^(−z·log₂e)) of Z[z], with Z[t] and Z[f] as scratch. The reciprocal has 14 bits,
// which is enough for bf16, and one step of Newton's more for float32.
func (g softmax) silu(z, t, f, p int) {
	g.P("\tVMAXPS Z%d, Z31, Z%d\n\tVMULPS Z%d, Z30, Z%d", z, z, z, t)
	g.exp2(t, f, p)
	g.P("\tVADDPS Z21, Z%d, Z%d\n\tVRCP14PS Z%d, Z%d", p, p, p, f)
	if !g.tiles {
		g.P("\tVMOVAPS Z21, Z%d\n\tVFNMADD231PS Z%d, Z%d, Z%d\n\tVFMADD231PS Z%d, Z%d, Z%d", t, f, p, t, f, t, f)
	}
	g.P("\tVMULPS Z%d, Z%d, Z%d", f, z, p)
}

func (g *gen) pointwise512() {
	g.fn("pointwiseAVX512", "s unsafe.Pointer, state *state, keys, cols, first, masked int, scale float32",
		"s:AX", "state:DX", "cols:R12", "masked:R13")
	x := softmax{gen: g, keys: "keys+16(FP)", first: "first+32(FP)", state: "DX", pointwise: true}
	x.constants("scale+48(FP)")
	x.step()
	g.ret()
}

// pointwiseAVX2 is pointwise512, 8 lanes at a time.
func (g *gen) pointwiseAVX2() {
	g.fn("pointwiseAVX2", "s unsafe.Pointer, state *state, keys, cols, first, masked int, scale float32",
		"s:AX", "state:DX", "cols:R12", "masked:R13")
	g.P("\tLEAQ exp2<>(SB), R11\n\tVBROADCASTSS scale+48(FP), Y15\n\tADDQ R12, R12")
	g.bits("Y", 14, minusLog2E)
	g.bits("Y", 13, lowest)
	g.bits("Y", 12, one)
	g.P("column:\n\tMOVQ AX, SI\n\tMOVQ keys+16(FP), CX")
	g.P("\tVPBROADCASTD first+32(FP), Y9\n\tVMOVDQU %d(DX), Y10\n\tVMOVDQU %d(DX), Y11\nexp:", limits, lows)
	for i := range 2 {
		z, t, f, p := 4*i, 4*i+1, 4*i+2, 4*i+3
		g.P("\tVMULPS %d(SI), Y15, Y%d\n\tVMAXPS Y%d, Y13, Y%d\n\tVMULPS Y%d, Y14, Y%d", row*i, z, z, z, z, t)
		g.exp2AVX2(t, f, p)
		g.P("\tVADDPS Y12, Y%d, Y%d\n\tVDIVPS Y%d, Y%d, Y%d", p, p, p, z, p)
		g.P("\tTESTQ R13, R13\n\tJZ seen%d", i)
		g.P("\tVPCMPGTD Y10, Y9, Y%d\n\tVANDNPS Y%d, Y%d, Y%d", t, p, t, p)
		g.P("\tVPCMPGTD Y9, Y11, Y%d\n\tVANDNPS Y%d, Y%d, Y%d", t, p, t, p)
		g.P("seen%d:\n\tVPADDD 256(R11), Y9, Y9\n\tVMOVUPS Y%d, %d(SI)", i, p, row*i)
	}
	g.P("\tADDQ $%d, SI\n\tSUBQ $2, CX\n\tJNZ exp", 2*row)
	g.P("\tADDQ $32, AX\n\tADDQ $32, DX\n\tDECQ R12\n\tJNZ column")
	g.ret()
}

package main

import "fmt"

// Polynomials of 2^f for f in [0, 1): minimax in relative error with p(0) = 1, lowest power first,
// the 1 left out. The errors are 8e-8 and 3e-6; the second is for probabilities rounded to bf16.
var (
	exp5 = []uint32{0x3f31725d, 0x3e75edab, 0x3d648e74, 0x3c13bc29, 0x3af4ba83}
	exp4 = []uint32{0x3f316b63, 0x3e771229, 0x3d55fc34, 0x3c5bfb9a}
)

const (
	one   = 0x3f800000
	slack = 0x41000000 // 8
)

// softmax emits one step of the online softmax: scores [key][lane] become probabilities; maxima,
// sums and factors of the state move on. Lanes are independent of each other.
//
// A maximum is followed only when it rises by more than 8 in powers of two: probabilities up to 2⁸
// are as good as those up to 1, and former outputs seldom need rescaling.
//
// The maximum m is kept in the base-2 domain, m = max(s)·scale, so that p = 2^(s·scale − m) takes
// one fused operation, and 2^(m−m) = 1 exactly where the maximum stays.
//
// With tiles, probabilities are written as pairs of keys in bf16, [32 keys][column][16 pairs][16
// lanes][2]; otherwise they replace the scores.
type softmax struct {
	*gen
	tiles       bool
	keys, first string // operands: the number of keys, and the index of the first
	state       string // register
	// pointwise steps have no softmax: see pointwise.go.
	pointwise bool
}

// constants loads what all steps need; it uses R8.
func (g softmax) constants(scale string) {
	poly := exp5
	if g.tiles {
		poly = exp4
		g.P("\tVMOVDQU64 interleave<>(SB), Z28")
	}
	for i, c := range poly {
		g.bits("Z", 16+i, c)
	}
	g.bits("Z", 21, one)
	g.P("\tVBROADCASTSS %s, Z22\n\tMOVL $1, R8\n\tVPBROADCASTD R8, Z23", scale)
	if g.pointwise {
		g.bits("Z", 30, minusLog2E)
		g.bits("Z", 31, lowest)
	}
}

// step expects the scores in AX, the probabilities in BX, the state in DX, the number of columns in
// R12 and in R13 whether there is a mask; it leaves in R10 whether a maximum changed.
func (g softmax) step() {
	g.P("\tXORQ R10, R10\ncolumn:\n\tTESTQ R13, R13\n\tJNZ masked")
	g.column(false)
	g.P("\tJMP next\nmasked:")
	g.column(true)
	g.P("next:\n\tADDQ $64, AX\n\tADDQ $64, DX")
	if g.tiles {
		g.P("\tADDQ $%d, BX", tile)
	}
	g.P("\tDECQ R12\n\tJNZ column")
}

// tableOfPairs adds the order that makes pairs of two halves of 16 words.
func (g *gen) tableOfPairs() {
	pairs := make([]uint32, 16)
	for i := range pairs {
		pairs[i] = uint32(i) | uint32(16+i)<<16
	}
	g.table("interleave", pairs)
}

// column handles 16 lanes. Z0…Z15 are free; Z24 is the maximum, Z25 and Z26 sums, Z27 the limits,
// Z29 the index of the key, Z30 the old maximum, Z31 the factor.
func (g softmax) column(masked bool) {
	at := "full"
	if masked {
		at = "edge"
	}
	if g.pointwise {
		g.pointwiseColumn(at, masked)
		return
	}
	start := func() {
		if masked {
			g.P("\tMOVQ %s, R8\n\tVPBROADCASTD R8, Z29\n\tVMOVDQU32 %d(DX), Z27", g.first, limits)
		}
		g.P("\tMOVQ AX, SI\n\tMOVQ %s, CX", g.keys)
	}
	// visible sets K1 where the lane sees the key, and goes on to the next key.
	visible := func() {
		if masked {
			g.P("\tVPCMPD $2, Z27, Z29, K1\n\tVPADDD Z23, Z29, Z29")
		}
	}
	g.noMaximum()
	start()
	g.P("%smax:", at)
	for i := range 8 {
		visible()
		if masked {
			g.P("\tVMAXPS %d(SI), Z%d, K1, Z%d", row*i, i%4, i%4)
			continue
		}
		g.P("\tVMAXPS %d(SI), Z%d, Z%d", row*i, i%4, i%4)
	}
	g.P("\tADDQ $%d, SI\n\tSUBQ $8, CX\n\tJNZ %smax", 8*row, at)
	g.newMaximum()
	start()
	g.P("\tMOVQ BX, DI\n\tPCALIGN $32\n%sexp:", at)
	const step = 4
	for i := range step {
		t, f, p := 3*i, 3*i+1, 3*i+2
		visible()
		g.P("\tVMOVUPS %d(SI), Z%d\n\tVFMSUB213PS Z24, Z22, Z%d", row*i, t, t)
		g.exp2(t, f, p)
		if masked {
			g.P("\tVMOVAPS.Z Z%d, K1, Z%d", p, p)
		}
		g.P("\tVADDPS Z%d, Z%d, Z%d", p, 25+i%2, 25+i%2)
		switch {
		case !g.tiles:
			g.P("\tVMOVUPS Z%d, %d(SI)", p, row*i)
		case i%2 == 1:
			g.CvtNE2PS2BF16(t, p, p-3)
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
	g.addSums()
}

// noMaximum starts four maxima in Z0…Z3.
func (g softmax) noMaximum() {
	g.bits("Z", 0, 0xff800000)
	for i := 1; i < 4; i++ {
		g.P("\tVMOVAPS Z0, Z%d", i)
	}
}

// newMaximum takes the maxima of the block in Z0…Z3 into account: it sets the maximum, the factor
// and R10, and starts the sums.
func (g softmax) newMaximum() {
	g.P("\tVMOVUPS %d(%s), Z30", maxes, g.state)
	g.P("\tVMAXPS Z2, Z0, Z0\n\tVMAXPS Z3, Z1, Z1\n\tVMAXPS Z1, Z0, Z0\n\tVMULPS Z22, Z0, Z0")
	g.bits("Z", 1, slack)
	g.P("\tVADDPS Z1, Z30, Z1\n\tVCMPPS $14, Z1, Z0, K2\n\tKMOVW K2, R8\n\tORQ R8, R10")
	g.P("\tVMOVAPS Z30, Z24\n\tVMOVAPS Z0, K2, Z24\n\tVMOVUPS Z24, %d(%s)", maxes, g.state)
	g.P("\tVSUBPS Z24, Z30, Z31")
	g.exp2(31, 0, 1)
	g.P("\tVMOVAPS Z1, Z31\n\tVMOVUPS Z31, %d(%s)", factors, g.state)
	g.P("\tVPXORD Z25, Z25, Z25\n\tVPXORD Z26, Z26, Z26")
}

// addSums adds the sums of the block to those before.
func (g softmax) addSums() {
	if g.pointwise {
		return
	}
	g.P("\tVADDPS Z26, Z25, Z25\n\tVMOVUPS %d(%s), Z0\n\tVFMADD213PS Z25, Z31, Z0\n\tVMOVUPS Z0, %d(%s)", sums, g.state,
		sums, g.state)
}

// exp2 sets Z[p] = 2^Z[t], with Z[f] as scratch: the fraction by a polynomial, the whole part,
// which VSCALEFPS takes from t itself, as exponent.
func (g softmax) exp2(t, f, p int) {
	top := 16 + len(exp5) - 1
	if g.tiles {
		top = 16 + len(exp4) - 1
	}
	g.P("\tVREDUCEPS $9, Z%d, Z%d\n\tVMOVAPS Z%d, Z%d", t, f, top, p)
	for c := top - 1; c >= 16; c-- {
		g.P("\tVFMADD213PS Z%d, Z%d, Z%d", c, f, p)
	}
	g.P("\tVFMADD213PS Z21, Z%d, Z%d\n\tVSCALEFPS Z%d, Z%d, Z%d", f, p, t, p, p)
}

// tableAVX2 adds the constants of exp2AVX2.
func (g *gen) tableAVX2() {
	rows := []uint32{exp5[4], exp5[3], exp5[2], exp5[1], exp5[0], one, 0xc2fe0000, 127, 1}
	var words []uint32
	for _, r := range rows {
		words = append(words, r, r, r, r, r, r, r, r)
	}
	g.table("exp2", words)
}

// exp2AVX2 is exp2 on Y registers with constants in memory at (R11): coefficients from the highest
// to 1, then the lowest argument −127, at which the result is 0, and the integers 127 and 1. The maximum
// has the argument second, which it returns when that is NaN: what is no number stays none.
func (g *gen) exp2AVX2(t, f, p int) {
	at := func(i int) string { return fmt.Sprintf("%d(R11)", 32*i) }
	n := len(exp5) + 1
	g.P("\tVMOVUPS %s, Y%d\n\tVMAXPS Y%d, Y%d, Y%d\n\tVROUNDPS $1, Y%d, Y%d\n\tVSUBPS Y%d, Y%d, Y%d", at(n), p, t, p, t, t,
		p, p, t, f)
	g.P("\tVCVTTPS2DQ Y%d, Y%d\n\tVPADDD %s, Y%d, Y%d\n\tVPSLLD $23, Y%d, Y%d", p, t, at(n+1), t, t, t, t)
	g.P("\tVMOVUPS %s, Y%d", at(0), p)
	for i := 1; i < n; i++ {
		g.P("\tVFMADD213PS %s, Y%d, Y%d", at(i), f, p)
	}
	g.P("\tVMULPS Y%d, Y%d, Y%d", t, p, p)
}

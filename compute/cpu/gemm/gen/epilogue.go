package main

import (
	"fmt"
	"math"
)

// Epilogues read rows of 32 sums, 128 bytes apart, while they are in the cache.

// Constants of silu, in the order of their registers.
var siluConsts = []struct {
	name string
	v    float64
}{
	{"limit", 87}, {"-limit", -87}, {"-log2 e", -math.Log2E},
	{"ln 2, high", 0.693359375}, {"ln 2, low", -2.12194440e-4},
	// exp(-q) = Σ cᵢ qⁱ for |q| ≤ ln2/2
	{"c6", 1.0 / 720}, {"c5", -1.0 / 120}, {"c4", 1.0 / 24}, {"c3", -1.0 / 6}, {"c2", 0.5}, {"c1", -1}, {"c0", 1},
}

const (
	cLimit = iota
	cMinus
	cLog2e
	cHigh
	cLow
	c6
	c5
	c4
	c3
	c2
	c1
	c0
)

func epilogueFile(g *generator) {
	g.P("")
	for i, c := range siluConsts {
		g.P("DATA siluConsts<>+%d(SB)/4, $0x%08x // %s", 4*i, math.Float32bits(float32(c.v)), c.name)
	}
	g.P("GLOBL siluConsts<>(SB), RODATA|NOPTR, $%d", 4*len(siluConsts))
	for _, wide := range []bool{true, false} {
		isa := "256"
		if wide {
			isa = "512"
		}
		const args = "rows int, sums, bias, dst unsafe.Pointer, stride int"
		g.function("store"+isa, "sets rows of 32 values to sums + bias.", args, 5)
		linear(g, wide, false)
		g.function("add"+isa, "adds sums + bias to rows of 32 values.", args, 5)
		linear(g, wide, true)
		const gated = "rows int, gate, up, bias, dst unsafe.Pointer, stride int"
		g.function("gated"+isa, "sets rows of 32 values to silu(gate)·up; bias holds gate's 32 and up's 32.", gated, 6)
		if wide {
			gated512(g, false)
			g.function("gatedBF16", "is gated512 with results rounded to bf16.", gated, 6)
			gated512(g, true)
		} else {
			gated256(g)
		}
	}
}

// linear writes store and add.
func linear(g *generator, wide, add bool) {
	reg, size, n := "Y", 32, 4
	if wide {
		reg, size, n = "Z", 64, 2
	}
	g.P("\tMOVQ rows+0(FP), CX\n\tMOVQ sums+8(FP), AX\n\tMOVQ bias+16(FP), BX\n\tMOVQ dst+24(FP), DI\n\tMOVQ " +
		"stride+32(FP), SI")
	for i := range n {
		g.P("\tVMOVUPS %d(BX), %s%d", size*i, reg, 8+i)
	}
	g.P("loop:")
	for i := range n {
		g.P("\tVADDPS %d(AX), %s%d, %s%d", size*i, reg, 8+i, reg, i)
	}
	for i := range n {
		if add {
			g.P("\tVADDPS %d(DI), %s%d, %s%d", size*i, reg, i, reg, i)
		}
		g.P("\tVMOVUPS %s%d, %d(DI)", reg, i, size*i)
	}
	g.P("\tADDQ $128, AX\n\tADDQ SI, DI\n\tDECQ CX\n\tJNZ loop\n\tVZEROUPPER\n\tRET")
}

func gatedStart(g *generator) {
	g.P("\tMOVQ rows+0(FP), CX\n\tMOVQ gate+8(FP), AX\n\tMOVQ up+16(FP), DX\n\tMOVQ bias+24(FP), BX")
	g.P("\tMOVQ dst+32(FP), DI\n\tMOVQ stride+40(FP), SI")
}

// gated512 does both halves of a row side by side. The reciprocal is the 14-bit estimate and one
// Newton step; below -limit silu is 0.
func gated512(g *generator, bf16 bool) {
	k := func(c int) string { return fmt.Sprintf("Z%d", 20+c) }
	gatedStart(g)
	for i := range siluConsts {
		g.P("\tVBROADCASTSS siluConsts<>+%d(SB), %s", 4*i, k(i))
	}
	for i := range 2 {
		g.P("\tVMOVUPS %d(BX), Z%d\n\tVMOVUPS %d(BX), Z%d", 64*i, 16+i, 128+64*i, 18+i)
	}
	g.P("loop:")
	// x in Z0,1; y in Z2,3; n in Z4,5; q in Z2,3; p in Z6,7
	each := func(f func(i int)) { f(0); f(1) }
	each(func(i int) { g.P("\tVADDPS %d(AX), Z%d, Z%d", 64*i, 16+i, i) })
	each(func(i int) { g.P("\tVMINPS %s, Z%d, Z%d", k(cLimit), i, 2+i) })
	each(func(i int) { g.P("\tVMAXPS %s, Z%d, Z%d", k(cMinus), 2+i, 2+i) })
	each(func(i int) { g.P("\tVMULPS %s, Z%d, Z%d", k(cLog2e), 2+i, 4+i) })
	each(func(i int) { g.P("\tVRNDSCALEPS $8, Z%d, Z%d", 4+i, 4+i) })
	each(func(i int) { g.P("\tVFMADD231PS %s, Z%d, Z%d", k(cHigh), 4+i, 2+i) })
	each(func(i int) { g.P("\tVFMADD231PS %s, Z%d, Z%d", k(cLow), 4+i, 2+i) })
	each(func(i int) { g.P("\tVMOVAPS %s, Z%d", k(c6), 6+i) })
	for c := c5; c <= c0; c++ {
		each(func(i int) { g.P("\tVFMADD213PS %s, Z%d, Z%d", k(c), 2+i, 6+i) })
	}
	each(func(i int) { g.P("\tVCVTPS2DQ Z%d, Z%d", 4+i, 4+i) })
	each(func(i int) { g.P("\tVPSLLD $23, Z%d, Z%d", 4+i, 4+i) })
	each(func(i int) { g.P("\tVPADDD Z%d, Z%d, Z%d", 4+i, 6+i, 6+i) })
	each(func(i int) { g.P("\tVADDPS %s, Z%d, Z%d", k(c0), 6+i, 6+i) })
	each(func(i int) { g.P("\tVRCP14PS Z%d, Z%d", 6+i, 8+i) })
	each(func(i int) { g.P("\tVMOVAPS %s, Z%d", k(c0), 10+i) })
	each(func(i int) { g.P("\tVFNMADD231PS Z%d, Z%d, Z%d", 6+i, 8+i, 10+i) })
	each(func(i int) { g.P("\tVFMADD231PS Z%d, Z%d, Z%d", 8+i, 10+i, 8+i) })
	each(func(i int) { g.P("\tVCMPPS $5, %s, Z%d, K%d", k(cMinus), i, 1+i) }) // not less than
	each(func(i int) { g.P("\tVMULPS.Z Z%d, Z%d, K%d, Z%d", 8+i, i, 1+i, i) })
	each(func(i int) { g.P("\tVADDPS %d(DX), Z%d, Z%d", 64*i, 18+i, 12+i) })
	each(func(i int) { g.P("\tVMULPS Z%d, Z%d, Z%d", 12+i, i, i) })
	if bf16 {
		g.CvtNE2PS2BF16(2, 1, 0)
		g.P("\tVMOVUPS Z2, (DI)")
	} else {
		g.P("\tVMOVUPS Z0, (DI)\n\tVMOVUPS Z1, 64(DI)")
	}
	g.P("\tADDQ $128, AX\n\tADDQ $128, DX\n\tADDQ SI, DI\n\tDECQ CX\n\tJNZ loop\n\tVZEROUPPER\n\tRET")
}

func gated256(g *generator) {
	gatedStart(g)
	k := func(c, reg int) { g.P("\tVBROADCASTSS siluConsts<>+%d(SB), Y%d", 4*c, reg) }
	for c, reg := range map256() {
		k(c, reg)
	}
	g.P("loop:\n\tMOVQ $4, R8\n\tXORQ R9, R9")
	g.P("part:")
	g.P("\tVMOVUPS (AX)(R9*1), Y0\n\tVADDPS (BX)(R9*1), Y0, Y0")
	g.P("\tVMINPS Y5, Y0, Y1\n\tVMAXPS Y6, Y1, Y1\n\tVMULPS Y7, Y1, Y2\n\tVROUNDPS $8, Y2, Y2")
	g.P("\tVFMADD231PS Y8, Y2, Y1\n\tVFMADD231PS Y9, Y2, Y1")
	k(c6, 3)
	for i, c := range []int{c5, c4, c3, c2} {
		g.P("\tVFMADD213PS Y%d, Y1, Y3 // c%d", 10+i, 5-(c-c5))
	}
	g.P("\tVFMADD213PS Y14, Y1, Y3\n\tVFMADD213PS Y15, Y1, Y3")
	g.P("\tVCVTPS2DQ Y2, Y2\n\tVPSLLD $23, Y2, Y2\n\tVPADDD Y2, Y3, Y3\n\tVADDPS Y15, Y3, Y3")
	g.P("\tVDIVPS Y3, Y0, Y4\n\tVCMPPS $5, Y6, Y0, Y0\n\tVANDPS Y0, Y4, Y4") // not less than
	g.P("\tVMOVUPS (DX)(R9*1), Y0\n\tVADDPS 128(BX)(R9*1), Y0, Y0\n\tVMULPS Y0, Y4, Y4")
	g.P("\tVMOVUPS Y4, (DI)(R9*1)\n\tADDQ $32, R9\n\tDECQ R8\n\tJNZ part")
	g.P("\tADDQ $128, AX\n\tADDQ $128, DX\n\tADDQ SI, DI\n\tDECQ CX\n\tJNZ loop\n\tVZEROUPPER\n\tRET")
}

// map256 yields the constants that stay in registers with AVX2, in order; c6 is loaded each time.
func map256() func(yield func(c, reg int) bool) {
	return func(yield func(c, reg int) bool) {
		reg := 5
		for c := range siluConsts {
			if c == c6 {
				continue
			}
			if !yield(c, reg) {
				return
			}
			reg++
		}
	}
}

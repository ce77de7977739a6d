package main

// pointwise has what the layers of HSTU need.
func (g *gen) pointwise() {
	g.fn("addScaled", "x, y *float32, n int, a float32", "", 28, "x:AX", "y:BX", "n:DX")
	g.P("\tVBROADCASTSS a+24(FP), %s", g.r(15))
	g.loop(func(v, off int) {
		r := g.r(v)
		g.P("\tVMOVUPS %d(AX), %s\n\tVFMADD231PS %d(BX), %s, %s\n\tVMOVUPS %s, %d(AX)", 4*off, r, 4*off, g.r(15), r, r, 4*off)
	}, map[string]int{"AX": 4, "BX": 4})
	g.ret()

	g.fn("multiply", "x, y *float32, n int", "", 24, "x:AX", "y:BX", "n:DX")
	g.loop(func(v, off int) {
		r := g.r(v)
		g.P("\tVMOVUPS %d(AX), %s\n\tVMULPS %d(BX), %s, %s\n\tVMOVUPS %s, %d(AX)", 4*off, r, 4*off, r, r, r, 4*off)
	}, map[string]int{"AX": 4, "BX": 4})
	g.ret()

	g.fn("affine", "dst, x, gain, shift *float32, n int, m, s float32", "", 48, "dst:AX", "x:BX", "gain:CX", "shift:SI",
		"n:DX")
	g.P("\tVBROADCASTSS m+40(FP), %s\n\tVBROADCASTSS s+44(FP), %s", g.r(15), g.r(14))
	g.loop(func(v, off int) {
		x, gain := g.r(v%4), g.r(4+v%4)
		g.P("\tVMOVUPS %d(BX), %s\n\tVSUBPS %s, %s, %s\n\tVMULPS %s, %s, %s", 4*off, x, g.r(15), x, x, g.r(14), x, x)
		g.P("\tVMOVUPS %d(CX), %s\n\tVFMADD213PS %d(SI), %s, %s\n\tVMOVUPS %s, %d(AX)", 4*off, gain, 4*off, gain, x, x, 4*off)
	}, map[string]int{"AX": 4, "BX": 4, "CX": 4, "SI": 4})
	g.ret()
	g.silu()

	n := 4 * g.per
	g.fn("sum", "x *float32, n int", "float32", 20, "x:AX", "n:DX")
	g.zero(n)
	g.loop(func(v, off int) {
		g.P("\tVADDPS %d(AX), %s, %s", 4*off, g.r(v), g.r(v))
	}, map[string]int{"AX": 4})
	g.reduce("VADDPS", n, 16)

	g.fn("deviation", "x *float32, n int, m float32", "float32", 28, "x:AX", "n:DX")
	g.zero(n)
	g.P("\tVBROADCASTSS m+16(FP), %s", g.r(15))
	g.loop(func(v, off int) {
		t := g.r(n + v%4)
		g.P("\tVMOVUPS %d(AX), %s\n\tVSUBPS %s, %s, %s\n\tVFMADD231PS %s, %s, %s", 4*off, t, g.r(15), t, t, t, t, g.r(v))
	}, map[string]int{"AX": 4})
	g.reduce("VADDPS", n, 24)
}

// silu sets x = x/(1+2^(−x·log₂e)). 2^f for f in [0, 1) is a polynomial with a relative error of 8e-8; x is
// taken as −83 below that, where nothing is left of it; NaN stays NaN.
func (g *gen) silu() {
	const one, poly = 11, 10 // registers; the polynomial's coefficients go down from poly
	g.fn("silu", "x *float32, n int", "", 16, "x:AX", "n:DX")
	for i, c := range []uint32{0x3af4ba83, 0x3c13bc29, 0x3d648e74, 0x3e75edab, 0x3f31725d} {
		g.bits(poly-i, c)
	}
	g.bits(one, 0x3f800000)
	g.bits(12, 0xbfb8aa3b) // −log₂e
	g.bits(13, 0xc2a60000) // −83
	g.bits(14, 0xc2fc0000) // −126
	g.bits(15, 127)
	round := "VROUNDPS"
	if g.reg == "Z" {
		round = "VRNDSCALEPS"
	}
	g.loop(func(_, off int) {
		x, t, e, p := g.r(0), g.r(1), g.r(2), g.r(3)
		g.P("\tVMAXPS %d(AX), %s, %s\n\tVMULPS %s, %s, %s\n\tVMAXPS %s, %s, %s", 4*off, g.r(13), x, x, g.r(12), t, g.r(14), t,
			t)
		g.P("\t%s $1, %s, %s\n\tVSUBPS %s, %s, %s", round, t, e, e, t, t)
		g.P("\tVCVTTPS2DQ %s, %s\n\tVPADDD %s, %s, %s\n\tVPSLLD $23, %s, %s", e, e, g.r(15), e, e, e, e)
		g.P("\tVMOVAPS %s, %s", g.r(poly), p)
		for c := poly - 1; c > poly-5; c-- {
			g.P("\tVFMADD213PS %s, %s, %s", g.r(c), t, p)
		}
		g.P("\tVFMADD213PS %s, %s, %s\n\tVFMADD213PS %s, %s, %s", g.r(one), t, p, g.r(one), e, p)
		g.P("\tVDIVPS %s, %s, %s\n\tVMOVUPS %s, %d(AX)", p, x, p, p, 4*off)
	}, map[string]int{"AX": 4})
	g.ret()
}

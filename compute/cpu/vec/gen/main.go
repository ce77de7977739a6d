// Command gen writes the assembly of package vec.
//
// Every kernel runs over n values, a positive multiple of 16: one register of AVX-512 or two of
// AVX2 make a unit of 16 values, and the main loop takes four units.
package main

import (
	"fmt"
	"go/format"
	"log"
	"os"
	"strings"

	"grebe/compute/cpu/internal/asmgen"
)

// isa is a width of registers.
type isa struct {
	name string
	reg  string // "Z" or "Y"
	size int    // bytes of a register
	per  int    // registers of a unit
}

var isas = []isa{{"avx512", "Z", 64, 1}, {"avx2", "Y", 32, 2}}

type gen struct {
	asmgen.Buf
	isa
	decl *strings.Builder
}

func (g *gen) r(i int) string { return fmt.Sprintf("%s%d", g.reg, i) }

// fn starts a function with the given parameters, "name:type", and loads the pointers and the
// count into the registers named by load.
func (g *gen) fn(op, params, ret string, args int, load ...string) {
	name := op + strings.ToUpper(g.name[:1]) + g.name[1:]
	if ret != "" {
		ret = " " + ret
	}
	fmt.Fprintf(g.decl, "\n//go:noescape\nfunc %s(%s)%s\n", name, params, ret)
	g.P("\n// func %s(%s)%s\nTEXT ·%s(SB), NOSPLIT, $0-%d", name, params, ret, name, args)
	for i, l := range load {
		arg, reg, _ := strings.Cut(l, ":")
		g.P("\tMOVQ %s+%d(FP), %s", arg, 8*i, reg)
	}
}

// loop runs step for every register of every unit; step gets the number of the register in the
// iteration and its offset in values; advance says how many bytes a value has behind each pointer.
func (g *gen) loop(step func(v, off int), advance map[string]int) {
	elems := g.size / 4
	body := func(units int) {
		for v := range units * g.per {
			step(v, v*elems)
		}
		for _, p := range []string{"AX", "BX", "CX", "SI"} {
			if a, ok := advance[p]; ok {
				g.P("\tADDQ $%d, %s", a*units*16, p)
			}
		}
	}
	g.P("\tMOVQ DX, R9\n\tSHRQ $6, R9\n\tJZ units\n\tPCALIGN $32\nfour:")
	body(4)
	g.P("\tDECQ R9\n\tJNZ four\nunits:\n\tANDQ $63, DX\n\tSHRQ $4, DX\n\tJZ done\nunit:")
	body(1)
	g.P("\tDECQ DX\n\tJNZ unit\ndone:")
}

func (g *gen) ret() { g.P("\tVZEROUPPER\n\tRET") }

// bits broadcasts a constant.
func (g *gen) bits(r int, v uint32) {
	g.P("\tMOVL $%#x, R8\n\tVMOVD R8, X%d\n\tVPBROADCASTD X%d, %s", v, r, r, g.r(r))
}

func (g *gen) zero(n int) {
	for i := range n {
		g.P("\tVXORPS X%d, X%d, X%d", i, i, i)
	}
}

// reduce folds the accumulators 0..n-1 to one float, returned at off.
func (g *gen) reduce(op string, n, off int) {
	for s := n / 2; s > 0; s /= 2 {
		for i := range s {
			g.P("\t%s %s, %s, %s", op, g.r(i+s), g.r(i), g.r(i))
		}
	}
	if g.reg == "Z" {
		g.P("\tVEXTRACTF64X4 $1, Z0, Y1\n\t%s Y1, Y0, Y0", op)
	}
	g.P("\tVEXTRACTF128 $1, Y0, X1\n\t%s X1, X0, X0", op)
	g.P("\tVPSHUFD $0x4E, X0, X1\n\t%s X1, X0, X0\n\tVPSHUFD $0xB1, X0, X1\n\t%s X1, X0, X0", op, op)
	g.P("\tVMOVSS X0, ret+%d(FP)", off)
	g.ret()
}

func (g *gen) elementwise() {
	g.fn("add", "x, y *float32, n int", "", 24, "x:AX", "y:BX", "n:DX")
	g.loop(func(v, off int) {
		g.P("\tVMOVUPS %d(AX), %s\n\tVADDPS %d(BX), %s, %s\n\tVMOVUPS %s, %d(AX)", 4*off, g.r(v), 4*off, g.r(v), g.r(v),
			g.r(v), 4*off)
	}, map[string]int{"AX": 4, "BX": 4})
	g.ret()

	g.fn("scale", "x *float32, n int, a float32", "", 20, "x:AX", "n:DX")
	g.P("\tVBROADCASTSS a+16(FP), %s", g.r(15))
	g.loop(func(v, off int) {
		g.P("\tVMULPS %d(AX), %s, %s\n\tVMOVUPS %s, %d(AX)", 4*off, g.r(15), g.r(v), g.r(v), 4*off)
	}, map[string]int{"AX": 4})
	g.ret()

	g.fn("norm", "dst, x, gain *float32, n int, s float32", "", 36, "dst:AX", "x:BX", "gain:CX", "n:DX")
	g.P("\tVBROADCASTSS s+32(FP), %s", g.r(15))
	g.loop(func(v, off int) {
		g.P("\tVMULPS %d(BX), %s, %s\n\tVMULPS %d(CX), %s, %s\n\tVMOVUPS %s, %d(AX)", 4*off, g.r(15), g.r(v), 4*off, g.r(v),
			g.r(v), g.r(v), 4*off)
	}, map[string]int{"AX": 4, "BX": 4, "CX": 4})
	g.ret()

	g.fn("rotate", "lo, hi, cos, sin *float32, n int", "", 40, "lo:AX", "hi:BX", "cos:CX", "sin:SI", "n:DX")
	g.loop(func(v, off int) {
		a, b, c, d := g.r(v%2*6), g.r(v%2*6+1), g.r(v%2*6+2), g.r(v%2*6+3)
		e, f := g.r(v%2*6+4), g.r(v%2*6+5)
		g.P("\tVMOVUPS %d(AX), %s\n\tVMOVUPS %d(BX), %s\n\tVMOVUPS %d(CX), %s\n\tVMOVUPS %d(SI), %s", 4*off, a, 4*off, b,
			4*off, c, 4*off, d)
		g.P("\tVMULPS %s, %s, %s\n\tVMULPS %s, %s, %s", b, d, e, a, d, f)
		g.P("\tVFMSUB231PS %s, %s, %s\n\tVFMADD231PS %s, %s, %s", a, c, e, b, c, f)
		g.P("\tVMOVUPS %s, %d(AX)\n\tVMOVUPS %s, %d(BX)", e, 4*off, f, 4*off)
	}, map[string]int{"AX": 4, "BX": 4, "CX": 4, "SI": 4})
	g.ret()
}

// load16 loads 16-bit values of the given format at (BX) as floats.
func (g *gen) load16(format string, off int, r string) {
	if format == "F16" {
		g.P("\tVCVTPH2PS %d(BX), %s", 2*off, r)
		return
	}
	g.P("\tVPMOVZXWD %d(BX), %s\n\tVPSLLD $16, %s, %s", 2*off, r, r, r)
}

func (g *gen) conversions() {
	for _, f := range []string{"BF16", "F16"} {
		g.fn("from"+f, "dst *float32, src *uint16, n int", "", 24, "dst:AX", "src:BX", "n:DX")
		g.loop(func(v, off int) {
			g.load16(f, off, g.r(v))
			g.P("\tVMOVUPS %s, %d(AX)", g.r(v), 4*off)
		}, map[string]int{"AX": 4, "BX": 2})
		g.ret()
	}
	g.fn("toBF16", "dst *uint16, src *float32, n int", "", 24, "dst:AX", "src:BX", "n:DX")
	g.bits(13, 1)
	g.bits(14, 0x7fff)
	g.bits(15, 0x40)
	g.loop(g.roundBF16, map[string]int{"AX": 2, "BX": 4})
	g.ret()
}

// roundBF16 rounds to the nearest bf16, ties to even; NaN stays NaN and becomes quiet.
func (g *gen) roundBF16(v, off int) {
	x, t, q := g.r(3*(v%2)), g.r(3*(v%2)+1), g.r(3*(v%2)+2)
	if g.reg == "Z" {
		g.P("\tVMOVUPS %d(BX), %s\n\tVPSRLD $16, %s, %s\n\tVPANDD Z13, %s, %s", 4*off, x, x, q, q, t)
		g.P("\tVPADDD Z14, %s, %s\n\tVPADDD %s, %s, %s\n\tVPSRLD $16, %s, %s", t, t, x, t, t, t, t)
		g.P("\tVCMPPS $3, %s, %s, K1\n\tVPORD Z15, %s, K1, %s\n\tVPMOVDW %s, %d(AX)", x, x, q, t, t, 2*off)
		return
	}
	g.P("\tVMOVUPS %d(BX), %s\n\tVPSRLD $16, %s, %s\n\tVPAND Y13, %s, %s", 4*off, x, x, q, q, t)
	g.P("\tVPADDD Y14, %s, %s\n\tVPADDD %s, %s, %s\n\tVPSRLD $16, %s, %s", t, t, x, t, t, t, t)
	g.P("\tVPOR Y15, %s, %s\n\tVCMPPS $3, %s, %s, %s\n\tVBLENDVPS %s, %s, %s, %s", q, q, x, x, x, x, q, t, t)
	if v%2 == 1 { // both halves of a unit are ready
		g.P("\tVPACKUSDW Y4, Y1, Y1\n\tVPERMQ $0xD8, Y1, Y1\n\tVMOVDQU Y1, %d(AX)", 2*(off-8))
	}
}

func (g *gen) reductions() {
	n := 4 * g.per
	g.fn("sumSquares", "x *float32, n int", "float32", 20, "x:AX", "n:DX")
	g.zero(n)
	g.loop(func(v, off int) {
		t := g.r(n + v%4)
		g.P("\tVMOVUPS %d(AX), %s\n\tVFMADD231PS %s, %s, %s", 4*off, t, t, t, g.r(v))
	}, map[string]int{"AX": 4})
	g.reduce("VADDPS", n, 16)

	g.fn("max", "x *float32, n int", "float32", 20, "x:AX", "n:DX")
	for i := range n {
		g.bits(i, 0xff800000)
	}
	g.loop(func(v, off int) {
		g.P("\tVMAXPS %d(AX), %s, %s", 4*off, g.r(v), g.r(v))
	}, map[string]int{"AX": 4})
	g.reduce("VMAXPS", n, 16)

	g.fn("dot", "x, row *float32, n int", "float32", 28, "x:AX", "row:BX", "n:DX")
	g.zero(n)
	g.loop(func(v, off int) {
		t := g.r(n + v%4)
		g.P("\tVMOVUPS %d(AX), %s\n\tVFMADD231PS %d(BX), %s, %s", 4*off, t, 4*off, t, g.r(v))
	}, map[string]int{"AX": 4, "BX": 4})
	g.reduce("VADDPS", n, 24)

	for _, f := range []string{"BF16", "F16"} {
		g.fn("dot"+f, "x *float32, row *uint16, n int", "float32", 28, "x:AX", "row:BX", "n:DX")
		g.zero(n)
		g.loop(func(v, off int) {
			t := g.r(n + v%4)
			g.load16(f, off, t)
			g.P("\tVFMADD231PS %d(AX), %s, %s", 4*off, t, g.r(v))
		}, map[string]int{"AX": 4, "BX": 2})
		g.reduce("VADDPS", n, 24)
	}
}

var ops = []string{"add", "scale", "norm", "rotate", "fromBF16", "fromF16", "toBF16", "sumSquares", "max", "dot",
	"dotBF16", "dotF16",
	"addScaled", "multiply", "affine", "silu", "sum", "deviation"}

func main() {
	var decl strings.Builder
	decl.WriteString("// Code generated by gen; DO NOT EDIT.\n\n//go:build !noasm\n\npackage vec\n")
	for _, s := range isas {
		g := &gen{isa: s, decl: &decl}
		g.elementwise()
		g.conversions()
		g.reductions()
		g.pointwise()
		suffix := strings.ToUpper(s.name[:1]) + s.name[1:]
		fmt.Fprintf(&decl, "\nvar %s = kernels{\n", s.name)
		for _, op := range ops {
			fmt.Fprintf(&decl, "\t%s: %s%s,\n", op, op, suffix)
		}
		decl.WriteString("}\n")
		if err := g.WriteFile(s.name + "_amd64.s"); err != nil {
			log.Fatal(err)
		}
	}
	if err := writeGo("kernels_amd64.go", decl.String()); err != nil {
		log.Fatal(err)
	}
}

// writeGo formats and writes Go source.
func writeGo(name, src string) error {
	b, err := format.Source([]byte(src))
	if err != nil {
		return err
	}
	return os.WriteFile(name, b, 0o644)
}

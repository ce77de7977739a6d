package main

import (
	"fmt"

	"grebe/compute/cpu/internal/asmgen"
)

// pipe is walkAMX for heads of a fixed number of dims, two columns and whole blocks that all lanes
// see in full. While the vector units compute the probabilities of a block, the tiles multiply: the
// values of the block before in the pass over the first column, the scores of the block behind in
// that over the second. Every lane goes through the same operations as in walkAMX.
//
// Two buffers of scores take turns. Probabilities replace the scores they come from: pairs of keys
// take the place of the first of the two rows, so rows of their tiles lie two rows apart.
type pipe struct {
	softmax
	dims int
}

// Tile instructions take AX, SI and DI as bases and these registers as strides.
const (
	byTile = asmgen.DX // 64
	byRow  = asmgen.CX // row
	byPair = asmgen.BX // 2·row
)

func (g pipe) strides() { g.P("\tMOVQ $64, DX\n\tMOVQ $%d, CX\n\tMOVQ $%d, BX", row, 2*row) }

// scores returns the tile instructions for 32 keys at AX, queries at SI, scores at DI.
func (g pipe) scores() (ops []func()) {
	add := func(f func()) { ops = append(ops, f) }
	for c := range 4 {
		add(func() { g.TileZero(c) })
	}
	for step := range g.dims / 32 {
		at := step * tile
		add(func() { g.TileLoad(6, asmgen.SI, byTile, 2*at) })
		add(func() { g.TileLoad(4, asmgen.AX, byTile, at) })
		add(func() { g.TileDot(0, 4, 6) })
		add(func() { g.TileLoad(5, asmgen.AX, byTile, at+g.dims/32*tile) })
		add(func() { g.TileDot(2, 5, 6) })
		add(func() { g.TileLoad(7, asmgen.SI, byTile, 2*at+tile) })
		add(func() { g.TileDot(1, 4, 7) })
		add(func() { g.TileDot(3, 5, 7) })
	}
	for c := range 4 {
		add(func() { g.TileStore(c, asmgen.DI, byRow, c/2*16*row+c%2*64) })
	}
	add(func() { g.P("\tADDQ $%d, AX\n\tADDQ $%d, DI", g.dims/16*tile, 32*row) })
	return ops
}

// values returns the tile instructions for 32 dims of a block: values at AX, probabilities at SI,
// outputs at DI.
func (g pipe) values() (ops []func()) {
	add := func(f func()) { ops = append(ops, f) }
	for c := range 4 {
		add(func() { g.TileLoad(c, asmgen.DI, byRow, c/2*16*row+c%2*64) })
	}
	for step := range blockKeys / 32 {
		v, p := step*g.dims/16*tile, step*32*row
		add(func() { g.TileLoad(6, asmgen.SI, byPair, p) })
		add(func() { g.TileLoad(4, asmgen.AX, byTile, v) })
		add(func() { g.TileDot(0, 4, 6) })
		add(func() { g.TileLoad(5, asmgen.AX, byTile, v+tile) })
		add(func() { g.TileDot(2, 5, 6) })
		add(func() { g.TileLoad(7, asmgen.SI, byPair, p+64) })
		add(func() { g.TileDot(1, 4, 7) })
		add(func() { g.TileDot(3, 5, 7) })
	}
	for c := range 4 {
		add(func() { g.TileStore(c, asmgen.DI, byRow, c/2*16*row+c%2*64) })
	}
	add(func() { g.P("\tADDQ $%d, AX\n\tADDQ $%d, DI", 2*tile, 32*row) })
	return ops
}

// repeat runs ops n times.
func (g pipe) repeat(label string, n int, ops []func()) {
	g.P("\tMOVQ $%d, R11\n%s:", n, label)
	for _, op := range ops {
		op()
	}
	g.P("\tDECQ R11\n\tJNZ %s", label)
}

// exps computes the probabilities of n times keys keys at R9, each time with ops strewn in.
func (g pipe) exps(label string, n, keys int, ops []func()) {
	g.P("\tMOVQ $%d, R11\n\tPCALIGN $32\n%s:", n, label)
	done := 0
	for i := range keys {
		t, f, p, before := 3*(i%4), 3*(i%4)+1, 3*(i%4)+2, 3
		if g.pointwise {
			t, p, before = 4*(i%4)+1, 4*(i%4)+3, 4
			g.P("\tVMULPS %d(R9), Z22, Z%d", row*i, t-1)
			g.silu(t-1, t, t+1, p)
		} else {
			g.P("\tVMOVUPS %d(R9), Z%d\n\tVFMSUB213PS Z24, Z22, Z%d", row*i, t, t)
			g.exp2(t, f, p)
			g.P("\tVADDPS Z%d, Z%d, Z%d", p, 25+i%2, 25+i%2)
		}
		if i%2 == 1 {
			g.CvtNE2PS2BF16(t, p, p-before)
			g.P("\tVPERMW Z%d, Z28, Z%d\n\tVMOVDQU64 Z%d, %d(R9)", t, t, t, row*(i-1))
		}
		for ; done < len(ops)*(i+1)/keys; done++ {
			ops[done]()
		}
	}
	g.P("\tADDQ $%d, R9\n\tDECQ R11\n\tJNZ %s", keys*row, label)
}

// maximum finds the maxima of a column of the block at R9.
func (g pipe) maximum(label string) {
	if g.pointwise {
		return
	}
	g.noMaximum()
	g.P("\tMOVQ R9, R8\n\tMOVQ $%d, R11\n%s:", blockKeys/16, label)
	for i := range 16 {
		g.P("\tVMAXPS %d(R8), Z%d, Z%d", row*i, i%4, i%4)
	}
	g.P("\tADDQ $%d, R8\n\tDECQ R11\n\tJNZ %s", 16*row, label)
	g.newMaximum()
}

// walk goes through the keys of a walk, a multiple of blockKeys. The walk's block says whether there
// is a block whose values are not added yet.
func (g pipe) walk() {
	block := g.dims * 2 * blockKeys // bytes of its keys, and of its values
	const chunks = blockKeys / 32
	g.fn(fmt.Sprintf("%sAMX%d", named(g.pointwise, "pipe", "pointPipe"), g.dims), "w *walk", "w:R15")
	g.P("\tLEAQ tiles<>(SB), AX")
	g.TileConfig()
	g.constants(walkScale)
	g.strides()
	g.P("\tMOVQ %s, AX\n\tMOVQ %s, SI\n\tMOVQ %s, DI\n\tMOVQ DI, R12", walkK, walkQ, walkS)
	g.repeat("scores", chunks, g.scores())
	g.P("\tADDQ $%d, %s\n\tMOVQ $0, %s", block, walkK, walkBlock)

	g.P("block:\n\tXORQ R10, R10\n\tMOVQ %s, R13\n\tMOVQ R12, R9", walkState)
	g.maximum("max0")
	g.P("\tCMPQ %s, $0\n\tJEQ alone0", walkBlock)
	g.P("\tMOVQ %s, AX\n\tMOVQ %s, SI\n\tMOVQ %s, DI\n\tADDQ $%d, %s", walkV, walkP, walkO, block, walkV)
	g.exps("values0", g.dims/32, blockKeys/(g.dims/32), g.values())
	g.P("\tJMP column1\nalone0:")
	g.exps("exp0", blockKeys/4, 4, nil)
	g.P("column1:")
	g.addSums()

	g.P("\tADDQ $64, R13\n\tLEAQ 64(R12), R9")
	g.maximum("max1")
	g.P("\tCMPQ %s, $%d\n\tJEQ alone1", walkKeys, blockKeys)
	g.P("\tMOVQ %s, AX\n\tMOVQ %s, SI\n\tMOVQ %s, DI\n\tADDQ $%d, %s", walkK, walkQ, walkP, block, walkK)
	g.exps("scores1", chunks, 32, g.scores())
	g.P("\tJMP next\nalone1:")
	g.exps("exp1", blockKeys/4, 4, nil)
	g.P("next:")
	g.addSums()

	if !g.pointwise {
		g.P("\tTESTQ R10, R10\n\tJZ same\n\tCMPQ %s, $0\n\tJEQ same", walkStarted)
		g.P("\tMOVQ %s, AX\n\tMOVQ %s, BX\n\tMOVQ $%d, CX", walkO, walkState, g.dims)
		g.rescaling()
		g.strides()
	}
	g.P("same:\n\tMOVQ %s, R8\n\tMOVQ R12, %s\n\tMOVQ R8, R12", walkP, walkP)
	g.P("\tMOVQ $1, %s\n\tMOVQ $1, %s\n\tADDQ $%d, %s\n\tSUBQ $%d, %s\n\tJNZ block", walkStarted, walkBlock, blockKeys,
		walkFirst, blockKeys, walkKeys)

	g.P("\tMOVQ %s, AX\n\tMOVQ %s, SI\n\tMOVQ %s, DI\n\tADDQ $%d, %s\n\tMOVQ R12, %s", walkV, walkP, walkO, block, walkV,
		walkS)
	g.repeat("values", g.dims/32, g.values())
	g.TileRelease()
	g.ret()
}

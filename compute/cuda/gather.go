package cuda

import "slices"

// gathers plans when the cached K and V of a batch's layers are copied into attention's scratch.
//
// The scratch has a number of buffers, and layer l uses buffer l mod buffers. One launch copies a few consecutive
// layers. It is put into the stream ahead of the first of them, so it MUST NOT hold more layers than there are buffers:
// the last of them would overwrite the first before that one was read.
//
// A batch may be launched in pieces, because its caller asks for results between layers (Received) or wants the GPU to
// begin (Start). What earlier pieces copied is still in the buffers, and is not copied again.
type gathers struct {
	layers, buffers int
	parts           []part
	held            held
	began           held   // held, when the last call of plan began
	steps           []step // of the last call of plan
}

// part is the layers, from first to the beginning of the next part, whose cached KV becomes readable together.
type part struct {
	first  int
	source int // an index of staging.done: its event is waited for; or one of the values below
}

const (
	onDevice = -1 // the chunks are in the GPU's memory, or the part's event was waited for before
	inPlace  = -2 // the chunks are read where they lie, in the host's memory
)

// held is what is in the scratch.
type held struct {
	from, to int // layers; those of one copy
	waited   int // a bit for each part's event that the stream has waited for
}

// step is layers that one launch copies, ahead of the first of them.
type step struct {
	first, layers int
	source        int // as in part
}

// begin forgets what the scratch holds, for a batch whose cached KV comes in parts.
func (g *gathers) begin(parts []part) { g.parts, g.held = parts, held{} }

// plan makes the steps for operations that run the given layers, in their order.
func (g *gathers) plan(layers func(yield func(int) bool)) {
	g.began, g.steps = g.held, g.steps[:0]
	for layer := range layers {
		if layer >= g.held.from && layer < g.held.to {
			continue
		}
		g.steps = append(g.steps, g.next(layer))
	}
}

// next is the step that begins with a layer: as many layers of its part as there are buffers.
func (g *gathers) next(layer int) step {
	p, end := g.parts[0], g.layers
	for _, q := range g.parts[1:] {
		if q.first > layer {
			end = min(end, q.first) // a model may have fewer layers than parts begin with
			break
		}
		p = q
	}
	s := step{first: layer, layers: min(g.buffers, end-layer), source: p.source}
	if p.source >= 0 {
		if g.held.waited&(1<<p.source) != 0 {
			s.source = onDevice
		}
		g.held.waited |= 1 << p.source
	}
	g.held.from, g.held.to = layer, layer+s.layers
	return s
}

// ahead takes the first step out of the others if it reads chunks in place: it needs no layer to have run, and may be
// put into the stream ahead of all.
func (g *gathers) ahead() (s step, ok bool) {
	if len(g.steps) == 0 || g.steps[0].source != inPlace {
		return step{}, false
	}
	s = g.steps[0]
	g.steps = slices.Delete(g.steps, 0, 1)
	return s, true
}

// at returns the step that begins with a layer; nil: there is none.
func (g *gathers) at(layer int) *step {
	for i := range g.steps {
		if g.steps[i].first == layer {
			return &g.steps[i]
		}
	}
	return nil
}

// waits reports whether some part's event has not been waited for.
func (g *gathers) waits() bool {
	for _, p := range g.parts {
		if p.source >= 0 && p.first < g.layers && g.held.waited&(1<<p.source) == 0 {
			return true
		}
	}
	return false
}

package ref

import (
	"errors"
	"fmt"
	"math"

	"grebe/compute"
)

// Received reads what attendHead added up.
func (r *runner) Received(out []float32) error {
	if r.err != nil {
		return r.err
	}
	var err error
	switch {
	case r.received == nil || r.att == nil:
		err = errors.New("no attention of all rows was just computed")
	case len(out) != len(r.b.Tokens):
		err = fmt.Errorf("room for %d of %d rows", len(out), len(r.b.Tokens))
	}
	if err != nil {
		return fmt.Errorf("ref: received: %w", err)
	}
	key := 0
	for i := range r.b.Segments {
		g := &r.b.Segments[i]
		for token := range g.Len {
			if token >= g.Cached {
				out[g.First+token-g.Cached] = float32(r.received[key] / float64(r.s.Heads))
			}
			key++
		}
	}
	return nil
}

// Place copies at once.
func (r *runner) Place(from int, parts []compute.Part) {
	if r.err != nil {
		return
	}
	var err error
	if from < 0 || from > r.s.Layers {
		err = fmt.Errorf("from layer %d of %d", from, r.s.Layers)
	}
	if r.failed("place", errors.Join(err, r.checkDecoder(), r.b.CheckPartsHost(&r.s, parts))) {
		return
	}
	for i := range parts {
		for layer := from; layer < r.s.Layers; layer++ {
			for token := range parts[i].Tokens {
				r.placeToken(&parts[i], layer, token)
			}
		}
	}
}

func (r *runner) placeToken(p *compute.Part, layer, token int) {
	from := compute.Segment{Chunks: []compute.Chunk{p.From}}
	for head := range r.s.KVHeads {
		for kv := range 2 {
			src := r.place(&from, layer, kv, head, p.First+token)
			dst := r.place(&r.b.Segments[p.Segment], layer, kv, head, p.At+token)
			if kv == 1 || p.Turn == 0 {
				copy(dst.data, src.data)
				continue
			}
			k := src.get()
			rotate(k, p.Turn, r.s.Rope.InvFreq, 1)
			dst.set(k)
		}
	}
}

// rotate turns the pairs of a head to a position, or by some, with cosines and sines scaled.
//
//go:norace
func rotate(head []float64, position int, inverse []float32, scale float32) {
	half := len(head) / 2
	for i := range half {
		angle := float64(float32(position) * inverse[i])
		cos, sin := math.Cos(angle)*float64(scale), math.Sin(angle)*float64(scale)
		a, b := head[i], head[i+half]
		head[i], head[i+half] = a*cos-b*sin, b*cos+a*sin
	}
}

package cpu

import (
	"errors"
	"fmt"
	"math"

	"grebe/compute"
	"grebe/compute/cpu/internal/team"
)

// placing is what Place was asked for. It is done layer by layer, right before the layer's own K and V are
// written: then what is placed is in the cache when attention reads it, and rows that go on are left out.
type placing struct {
	job      team.Job
	parts    []compute.Part
	next     int       // layer; all from there on are to be done
	cos, sin []float32 // of the parts' turns, [part][HeadDim/2]
	pieces   []piece
	rows     [][]float32 // a head of scratch per worker
}

// piece is the part of a part that goes to one chunk; a task.
type piece struct {
	part  int32
	first int32 // token of the part
	n     int32
	row   int32 // of the batch
}

// maxPiece bounds the tokens of a task.
const maxPiece = 64

func (r *runner) Place(from int, parts []compute.Part) {
	if r.err != nil {
		return
	}
	if from < 0 || from > r.shape.Layers {
		r.fail(fmt.Errorf("cpu: place KV of layers from %d on, of %d", from, r.shape.Layers))
		return
	}
	if err := r.batch.CheckPartsHost(&r.shape, parts); err != nil {
		r.fail(fmt.Errorf("cpu: %w", err))
		return
	}
	r.dev.mu.Lock()
	defer r.dev.mu.Unlock()
	r.placeUpTo(r.shape.Layers)
	p := &r.placed
	p.parts, p.next, p.pieces = parts, from, p.pieces[:0]
	half := r.shape.HeadDim / 2
	p.cos, p.sin = grow(p.cos, len(parts)*half), grow(p.sin, len(parts)*half)
	for i := range parts {
		if parts[i].Turn != 0 {
			r.turns(i, parts[i].Turn)
		}
		r.cutPart(i)
	}
}

// turns sets the cosines and sines of a part.
func (r *runner) turns(part, turn int) {
	half := r.shape.HeadDim / 2
	cos, sin := r.placed.cos[part*half:][:half], r.placed.sin[part*half:][:half]
	for i, f := range r.shape.Rope.InvFreq {
		s, c := math.Sincos(float64(float32(turn) * f))
		cos[i], sin[i] = float32(c), float32(s)
	}
}

// cutPart cuts a part at the ends of chunks.
func (r *runner) cutPart(i int) {
	part := &r.placed.parts[i]
	g := &r.batch.Segments[part.Segment]
	row := g.First + part.At - g.Cached
	for first := 0; first < part.Tokens; {
		at := r.home[row+first]
		n := min(part.Tokens-first, at.chunk.Tokens-at.token, maxPiece)
		r.placed.pieces = append(r.placed.pieces, piece{int32(i), int32(first), int32(n), int32(row + first)})
		first += n
	}
}

// placeUpTo does what is left of the layers below end.
func (r *runner) placeUpTo(end int) {
	p := &r.placed
	for ; p.next < end; p.next++ {
		r.dev.team.Run(len(p.pieces), &p.job)
	}
	if p.next >= r.shape.Layers {
		p.parts, p.pieces = nil, p.pieces[:0] // do not keep chunks alive
	}
}

// placePiece does a layer of a piece.
func (r *runner) placePiece(w, task int) {
	s, p := &r.shape, &r.placed
	c := &p.pieces[task]
	part, at := &p.parts[c.part], r.home[c.row]
	size, half := s.HeadDim*s.KV.Size(), s.HeadDim/2
	for i := range 2 * s.KVHeads {
		src := part.From.Bytes[s.TokenAt(p.next, i, part.First+int(c.first), part.From.Tokens):][:int(c.n)*size]
		dst := at.chunk.Bytes[s.TokenAt(p.next, i, at.token, at.chunk.Tokens):][:int(c.n)*size]
		turned := i < s.KVHeads && part.Turn != 0
		for t := 0; t < int(c.n); {
			n := r.gap(int(c.row)+t, int(c.n)-t)
			if n == 0 {
				t++
				continue // the row is computed
			}
			if from, to := src[t*size:(t+n)*size], dst[t*size:(t+n)*size]; !turned {
				copy(to, from)
			} else {
				r.turn(to, from, p.cos[int(c.part)*half:][:half], p.sin[int(c.part)*half:][:half], p.rows[w])
			}
			t += n
		}
	}
}

// gap returns how many of n rows from row on are dropped; all where Keep was not called.
func (r *runner) gap(row, n int) int {
	if !r.kept {
		return n
	}
	for i, at := range r.place[row : row+n] {
		if at >= 0 {
			return i
		}
	}
	return n
}

// turn rotates heads of K.
func (r *runner) turn(dst, src []byte, cos, sin, head []float32) {
	size := r.shape.HeadDim * r.shape.KV.Size()
	for ; len(src) > 0; dst, src = dst[size:], src[size:] {
		if r.shape.KV == compute.F32 {
			copy(head, view[float32](src[:size]))
			r.dev.ops.Rotate(head, cos, sin)
			copy(view[float32](dst[:size]), head)
			continue
		}
		r.dev.ops.FromBF16(head, view[uint16](src[:size]))
		r.dev.ops.Rotate(head, cos, sin)
		r.dev.ops.ToBF16(view[uint16](dst[:size]), head)
	}
}

func (r *runner) Received(out []float32) error {
	switch {
	case r.err != nil:
		return r.err
	case r.kept || r.attended < 0 || r.shape.Pointwise != nil:
		return errors.New("cpu: attention received, but no attention of all rows was just computed")
	case len(out) != r.rows:
		return fmt.Errorf("cpu: attention received by %d rows into %d values", r.rows, len(out))
	case r.rows == 0:
		return nil
	}
	r.dev.mu.Lock()
	defer r.dev.mu.Unlock()
	r.att.Received(r.q, out)
	return nil
}

func (r *runner) Keep(rows []int32) {
	if r.err != nil {
		return
	}
	last := int32(-1)
	for _, id := range rows {
		if id <= last || r.at(id) < 0 {
			r.fail(fmt.Errorf("cpu: Keep of row %d after %d, of %d rows of which %d are left", id, last, len(r.batch.Tokens),
				r.rows))
			return
		}
		last = id
	}
	h, n := r.shape.Hidden, r.shape.Heads*r.shape.HeadDim
	for to, id := range rows {
		from := r.at(id)
		copy(r.x[to*h:][:h], r.x[from*h:][:h])
		copy(r.o[to*n:][:n], r.o[from*n:][:n])
		if r.shape.Pointwise != nil {
			copy(r.qkv[to*4*n:][:n], r.qkv[from*4*n:][:n])
		}
	}
	r.place = grow(r.place, len(r.batch.Tokens))
	for i := range r.place {
		r.place[i] = -1
	}
	for to, id := range rows {
		r.place[id] = int32(to)
	}
	r.ids = append(r.ids[:0], rows...)
	r.kept, r.rows, r.attended = true, len(rows), -1
}

// narrow has attention go on with the rows that were kept, and reports whether it can.
func (r *runner) narrow() bool {
	if !r.kept || r.narrowed == r.rows {
		return true
	}
	err := r.batch.CheckKept(&r.shape, r.ids)
	if err == nil {
		err = r.att.Keep(r.ids)
	}
	if err != nil {
		r.fail(fmt.Errorf("cpu: go on with %d rows: %w", r.rows, err))
		return false
	}
	r.narrowed = r.rows
	return true
}

// grow returns a slice of n values, s where it has room.
func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/4)
	}
	return s[:n]
}

package ref

import (
	"errors"
	"fmt"
	"math"

	"grebe/compute"
)

// Attend is dense attention: all tokens of all segments are keys, and a mask says which ones a row
// sees.
func (r *runner) Attend(layer int) {
	var err error
	if r.q == nil || r.layer != layer {
		err = fmt.Errorf("there are no queries of layer %d", layer)
	}
	if r.failed("attend", errors.Join(err, r.checkLayer(layer))) {
		return
	}
	if r.s.Pointwise != nil {
		r.attendPointwise()
		return
	}
	k, v := r.read(layer)
	r.att, r.received = make([][]float64, len(r.q)), make([]float64, len(k))
	all := mask(r.b)
	for i, row := range r.rows {
		r.att[i] = make([]float64, r.s.Heads*r.s.HeadDim)
		for h := range r.s.Heads {
			r.attendHead(h, r.q[i], r.att[i], all[row], k, v)
		}
	}
	if r.q = nil; len(r.rows) < len(r.b.Tokens) {
		r.received = nil
	}
}

// mask returns for every row how many times it sees each key: more than once where it sees a segment more than once.
// Keys are the tokens of the segments in order.
func mask(b *compute.Batch) [][]int {
	first, keys := make([]int, len(b.Segments)), 0
	for i := range b.Segments {
		first[i] = keys
		keys += b.Segments[i].Len
	}
	var m [][]int
	for i := range b.Segments {
		g := &b.Segments[i]
		for token := g.Cached; token < g.Len; token++ {
			sees := make([]int, keys)
			for _, j := range g.Sees {
				for t := range b.Segments[j].Len {
					sees[first[j]+t]++
				}
			}
			for t := 0; t <= token; t++ {
				sees[first[i]+t]++
			}
			m = append(m, sees)
		}
	}
	return m
}

// attendHead computes query head h of one row.
//
//go:norace
func (r *runner) attendHead(h int, q, out []float64, sees []int, k, v [][]float64) {
	n := r.s.HeadDim
	kv := h / (r.s.Heads / r.s.KVHeads) * n
	query := make([]float64, n)
	for i := range query {
		query[i] = r.dev.operand(products(r.s.KV), q[h*n+i])
	}
	scores, largest := make([]float64, len(sees)), math.Inf(-1)
	for key := range sees {
		if sees[key] > 0 {
			scores[key] = dot(query, k[key][kv:kv+n]) / math.Sqrt(float64(n))
			largest = math.Max(largest, scores[key])
		}
	}
	sum := 0.0
	for key := range sees {
		if sees[key] > 0 {
			p, times := math.Exp(scores[key]-largest), float64(sees[key])
			sum += times * p
			p = times * r.dev.operand(products(r.s.KV), p)
			for i := range n {
				out[h*n+i] += p * v[key][kv+i]
			}
		}
	}
	for i := range n {
		out[h*n+i] /= sum
	}
	for key := range sees {
		if sees[key] > 0 {
			r.received[key] += float64(sees[key]) * math.Exp(scores[key]-largest) / sum
		}
	}
}

// products is the format of attention's operands for chunks in dt.
func products(dt compute.DType) compute.DType {
	if dt == compute.FP8 {
		return compute.BF16 // which holds every value of it
	}
	return dt
}

// write rounds K and V of all heads of one token into the segment's chunks.
func (r *runner) write(g *compute.Segment, layer, token int, k, v []float64) {
	n := r.s.HeadDim
	for h := range r.s.KVHeads {
		for kv, from := range [][]float64{k, v} {
			r.place(g, layer, kv, h, token).set(from[h*n : (h+1)*n])
		}
	}
}

// read returns K and V of all heads for every token of every segment.
func (r *runner) read(layer int) (k, v [][]float64) {
	for i := range r.b.Segments {
		for token := range r.b.Segments[i].Len {
			k = append(k, r.readToken(&r.b.Segments[i], layer, 0, token))
			v = append(v, r.readToken(&r.b.Segments[i], layer, 1, token))
		}
	}
	return k, v
}

func (r *runner) readToken(g *compute.Segment, layer, kv, token int) []float64 {
	out := make([]float64, 0, r.s.KVHeads*r.s.HeadDim)
	for h := range r.s.KVHeads {
		out = append(out, r.place(g, layer, kv, h, token).get()...)
	}
	return out
}

// place returns where a head of a token's K (kv 0) or V (kv 1) lies: chunks are
// [layer][k|v][head][token][dim].
func (r *runner) place(g *compute.Segment, layer, kv, head, token int) vectorInChunk {
	chunk := 0
	for token >= g.Chunks[chunk].Tokens {
		token -= g.Chunks[chunk].Tokens
		chunk++
	}
	c := &g.Chunks[chunk]
	if c.Transient {
		layer = 0
	}
	i := kv*r.s.KVHeads + head
	first := r.s.TokenAt(layer, i, 0, c.Tokens)
	at := r.s.TokenAt(layer, i, token, c.Tokens)
	return vectorInChunk{dt: r.s.KV, scale: c.Bytes[first-r.s.ScaleBytes() : first], first: token == 0,
		data: c.Bytes[at : at+r.s.HeadDim*r.s.KV.Size()]}
}

// vectorInChunk is a head of one token's K or V.
type vectorInChunk struct {
	dt    compute.DType
	scale []byte // of the head in the chunk; empty where there is none
	first bool   // the token is the chunk's first
	data  []byte
}

// set rounds v to the chunk's format.
func (p vectorInChunk) set(v []float64) {
	if p.dt != compute.FP8 {
		for i := range v {
			store(p.dt, p.data, i, v[i])
		}
		return
	}
	if p.first {
		store(compute.F32, p.scale, 0, scaleFP8(v))
	}
	scale := load(compute.F32, p.scale, 0)
	for i := range v {
		p.data[i] = toFP8(v[i] / scale)
	}
}

func (p vectorInChunk) get() []float64 {
	out := make([]float64, len(p.data)/p.dt.Size())
	for i := range out {
		if p.dt == compute.FP8 {
			out[i] = fromFP8(p.data[i]) * load(compute.F32, p.scale, 0)
			continue
		}
		out[i] = load(p.dt, p.data, i)
	}
	return out
}

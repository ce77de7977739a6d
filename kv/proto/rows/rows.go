// Package rows reads the keys and values of entries as numbers, with keys re-rotated to position 0. So two occurrences
// of a token can be compared wherever they stand.
package rows

import (
	"encoding/binary"
	"fmt"
	"math"

	"grebe/compute"
	"grebe/kv"
)

// Chunk has the bytes of one chunk in the host's memory.
type Chunk struct {
	Bytes  []byte
	Tokens int // that it has room for
	First  int // of the entry's tokens
	Len    int
}

// Read copies an entry's chunks to the host.
func Read(m compute.Memory, s *compute.Shape, e *kv.Entry) ([]Chunk, error) {
	var out []Chunk
	first := 0
	for _, c := range e.AppendChunks(nil) {
		raw := make([]byte, s.ChunkBytes(c.Tokens, false))
		if c.Bytes != nil {
			copy(raw, c.Bytes)
		} else if err := m.Read(raw, compute.Block{Addr: c.Addr, Size: len(raw)}); err != nil {
			return nil, fmt.Errorf("rows: read KV: %w", err)
		}
		n := min(c.Tokens, e.Len()-first)
		out = append(out, Chunk{Bytes: raw, Tokens: c.Tokens, First: first, Len: n})
		first += n
	}
	return out, nil
}

// Find returns the chunk of a token of the entry, and its place there.
func Find(chunks []Chunk, token int) (*Chunk, int) {
	for i := range chunks {
		if c := &chunks[i]; token < c.First+c.Len {
			return c, token - c.First
		}
	}
	return nil, 0
}

// Copy copies a token's keys and values, of all layers, from one chunk to another. The format has no scales.
func Copy(s *compute.Shape, dst []byte, to, room int, src *Chunk, from int) {
	n := s.HeadDim * s.KV.Size()
	for l := range s.Layers {
		for i := range 2 * s.KVHeads {
			copy(dst[s.TokenAt(l, i, to, room):][:n], src.Bytes[s.TokenAt(l, i, from, src.Tokens):])
		}
	}
}

// Width returns the length of a token's keys, or values, of one layer.
func Width(s *compute.Shape) int { return s.KVHeads * s.HeadDim }

// Keys sets dst, Width long, to a token's keys of a layer, turned back from its position.
func (c *Chunk) Keys(dst []float32, s *compute.Shape, layer, token, position int) {
	for h := range s.KVHeads {
		k := dst[h*s.HeadDim : (h+1)*s.HeadDim]
		floats(k, c.Bytes[s.TokenAt(layer, h, token, c.Tokens):], s.KV)
		turnBack(k, s.Rope.InvFreq, position)
	}
}

// Values sets dst, Width long, to a token's values of a layer.
func (c *Chunk) Values(dst []float32, s *compute.Shape, layer, token int) {
	for h := range s.KVHeads {
		floats(dst[h*s.HeadDim:(h+1)*s.HeadDim], c.Bytes[s.TokenAt(layer, s.KVHeads+h, token, c.Tokens):], s.KV)
	}
}

func floats(dst []float32, src []byte, format compute.DType) {
	for i := range dst {
		if format == compute.BF16 {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
			continue
		}
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

// turnBack undoes the rotation of a head's key.
func turnBack(k, frequencies []float32, position int) {
	half := len(k) / 2
	for i, f := range frequencies {
		sin, cos := math.Sincos(float64(float32(position) * f))
		a, b := float64(k[i]), float64(k[half+i])
		k[i], k[half+i] = float32(a*cos+b*sin), float32(b*cos-a*sin)
	}
}

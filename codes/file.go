package codes

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
)

// Saved is a codebook as a file has it: the centroids, and the items that have codes. Later items get codes that
// none of these has.
//
// The file, little-endian: "GREBECB1"; dims and number of levels, uint32; the size of each level, uint32; the number of
// items, uint64; the centroids, float32; per item its codes, uint32, the length of its id, uint32, and the id; the
// CRC-32C of all before, uint32.
type Saved struct {
	Book
	IDs   []string
	Paths []int32 // of the items, one after the other
}

const magic = "GREBECB1"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Write writes the file.
func (s *Saved) Write(w io.Writer) error {
	sizes := s.Sizes()
	if len(s.Paths) != len(s.IDs)*len(sizes) {
		return fmt.Errorf("codes: %d codes for %d items and %d levels", len(s.Paths), len(s.IDs), len(sizes))
	}
	sum := crc32.New(castagnoli)
	out := &block{w: io.MultiWriter(w, sum)}
	out.data = append(out.data, magic...)
	out.number(uint32(s.Dims), uint32(len(sizes)))
	for _, k := range sizes {
		out.number(uint32(k))
	}
	out.data = binary.LittleEndian.AppendUint64(out.data, uint64(len(s.IDs)))
	for _, centroids := range s.Levels {
		for _, v := range centroids {
			out.number(math.Float32bits(v))
		}
	}
	for i, id := range s.IDs {
		for _, c := range s.Paths[i*len(sizes):][:len(sizes)] {
			out.number(uint32(c))
		}
		out.number(uint32(len(id)))
		out.data = append(out.data, id...)
	}
	out.flush()
	if out.err != nil {
		return out.err
	}
	_, err := w.Write(binary.LittleEndian.AppendUint32(nil, sum.Sum32()))
	return err
}

// block collects what is written.
type block struct {
	w    io.Writer
	data []byte
	err  error
}

func (b *block) number(values ...uint32) {
	for _, v := range values {
		b.data = binary.LittleEndian.AppendUint32(b.data, v)
	}
	if len(b.data) >= 1<<16 {
		b.flush()
	}
}

func (b *block) flush() {
	if b.err == nil {
		_, b.err = b.w.Write(b.data)
	}
	b.data = b.data[:0]
}

// errDamaged is that of a file that was changed or cut off.
var errDamaged = errors.New("the codebook is damaged: take a copy, or make codes again")

// Read returns what the bytes of a file say.
func Read(data []byte) (*Saved, error) {
	if !bytes.HasPrefix(data, []byte(magic)) {
		return nil, errors.New("not a codebook of grebe codes")
	}
	if len(data) < len(magic)+4 {
		return nil, errDamaged
	}
	body, sum := data[:len(data)-4], binary.LittleEndian.Uint32(data[len(data)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return nil, errDamaged
	}
	r := &reader{data: body[len(magic):]}
	s := &Saved{Book: Book{Dims: int(r.number())}}
	levels := r.number()
	if levels == 0 || levels > MaxLevels || s.Dims == 0 {
		return nil, errDamaged
	}
	sizes := make([]int, levels)
	for l := range sizes {
		sizes[l] = int(r.number())
	}
	items := r.long()
	if r.short || checkSizes(sizes) != nil {
		return nil, errDamaged
	}
	for _, k := range sizes {
		if uint64(k)*uint64(s.Dims) > uint64(len(r.data)/4) {
			return nil, errDamaged
		}
		centroids := make([]float32, k*s.Dims)
		for i := range centroids {
			centroids[i] = math.Float32frombits(r.number())
		}
		s.Levels = append(s.Levels, centroids)
	}
	if items > uint64(len(r.data)/4) {
		return nil, errDamaged
	}
	s.IDs, s.Paths = make([]string, 0, items), make([]int32, 0, items*uint64(levels))
	for range items {
		for l := range sizes {
			c := r.number()
			if uint64(c) >= uint64(sizes[l]) {
				return nil, errDamaged
			}
			s.Paths = append(s.Paths, int32(c))
		}
		s.IDs = append(s.IDs, r.text())
	}
	if r.short || len(r.data) > 0 {
		return nil, errDamaged
	}
	return s, nil
}

// reader takes values off data. It returns zeros when there are too few.
type reader struct {
	data  []byte
	short bool
}

func (r *reader) take(n int) []byte {
	if n > len(r.data) {
		r.short, r.data = true, nil
		return make([]byte, min(n, 8))
	}
	out := r.data[:n]
	r.data = r.data[n:]
	return out
}

func (r *reader) number() uint32 { return binary.LittleEndian.Uint32(r.take(4)) }
func (r *reader) long() uint64   { return binary.LittleEndian.Uint64(r.take(8)) }
func (r *reader) text() string   { return string(r.take(int(r.number()))) }

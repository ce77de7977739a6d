package proto

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"unsafe"

	"grebe/internal/durable"
)

// The file is described in FORMAT.md.
const (
	magic      = "grebepr1"
	headBytes  = 512
	align      = 64
	maxTokens  = 1 << 24 // largest vocabulary
	generation = 48      // bytes of one
)

// head is the beginning of a file. Its fields are read and written in order.
type head struct {
	Magic       [8]byte
	Model       [32]byte
	Seed        uint64
	Left        [Scales]float32
	Radius      float32
	Least, Most uint32
	Lessons     uint32
	Taught      uint32 // 1: there are images
	Steps       float32
	Reserved    uint32
	Unknown     float64
	Rows        uint64
	Prototypes  uint64
	Generations uint64
	Sums        [sections]uint32 // CRC-32C of the sections
}

// The sections, in order.
const sections = 12

// ErrDamaged says that a file is not what was written.
var ErrDamaged = errors.New("proto: the index is damaged")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// bytesOf is a slice's memory.
func bytesOf[T any](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(s[0])))
}

// Write writes the index to a file, whole or not at all. It is durable when Write returns: a power cut does not bring
// back prototypes of a user who was removed.
func (x *Index) Write(name string) error {
	if err := durable.WriteFile(name, x.encode); err != nil {
		return fmt.Errorf("proto: write %s: %w", name, err)
	}
	return nil
}

func (x *Index) encode(f io.Writer) error {
	if !littleEndian() {
		return errors.New("this processor keeps numbers in another order")
	}
	s := x.space
	prototypes, sketches, vectors := x.withoutDead()
	h := head{Model: x.model, Seed: s.cfg.Seed, Left: s.cfg.Left, Radius: s.cfg.Radius, Least: uint32(s.cfg.Least),
		Most:    uint32(s.cfg.Most),
		Lessons: uint32(s.cfg.Lessons), Steps: s.frame.steps, Unknown: s.unknown,
		Rows: uint64(len(s.rows)), Prototypes: uint64(len(x.prototypes)), Generations: uint64(len(x.parts))}
	copy(h.Magic[:], magic)
	if s.images != nil {
		h.Taught = 1
	}
	list := [sections][]byte{
		bytesOf(s.mean[:]), bytesOf(s.frame.base[:]), bytesOf(s.frame.places[:]), bytesOf(s.images), bytesOf(s.tokens),
		bytesOf(s.floors),
		bytesOf(s.rows), bytesOf(x.thresholds), bytesOf(prototypes), bytesOf(sketches), bytesOf(vectors), x.tail(),
	}
	for i, b := range list {
		h.Sums[i] = crc32.Checksum(b, castagnoli)
	}
	w := bufio.NewWriterSize(f, 1<<20)
	first := make([]byte, 0, headBytes)
	first, err := binary.Append(first, binary.LittleEndian, &h)
	if err != nil {
		return err
	}
	first = first[:headBytes-4]
	first = binary.LittleEndian.AppendUint32(first, crc32.Checksum(first, castagnoli))
	w.Write(first)
	var pad [align]byte
	for _, b := range list {
		w.Write(b)
		w.Write(pad[:padding(len(b))])
	}
	return w.Flush() // has the first error
}

// withoutDead returns what is known of prototypes, and nothing of those in pages that were removed: who was deleted
// leaves no tokens behind.
func (x *Index) withoutDead() ([]Prototype, []uint64, [][Width]int8) {
	if !slices.Contains(x.dead, true) {
		return x.prototypes, x.sketches, x.vectors
	}
	prototypes, sketches, vectors := slices.Clone(x.prototypes), slices.Clone(x.sketches), slices.Clone(x.vectors)
	for i := range prototypes {
		if x.dead[i/Page] {
			prototypes[i], sketches[i], vectors[i] = Prototype{}, 0, [Width]int8{}
		}
	}
	return prototypes, sketches, vectors
}

func padding(n int) int { return -n & (align - 1) }

// tail has the generations, then a byte for each page.
func (x *Index) tail() []byte {
	var out []byte
	for _, g := range x.parts {
		out = binary.LittleEndian.AppendUint64(out, uint64(g.First))
		out = binary.LittleEndian.AppendUint64(out, uint64(g.Len))
		out = append(out, g.Digest[:]...)
	}
	for _, d := range x.dead {
		b := byte(0)
		if d {
			b = 1
		}
		out = append(out, b)
	}
	return out
}

func littleEndian() bool {
	one := uint16(1)
	return *(*byte)(unsafe.Pointer(&one)) == 1
}

// Open maps the index in a file. The caller MUST Close it when no lookup runs any more.
func Open(name string) (*Index, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("proto: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("proto: %w", err)
	}
	if st.Size() < headBytes || st.Size() != int64(int(st.Size())) {
		return nil, fmt.Errorf("%w: %s has %d bytes", ErrDamaged, name, st.Size())
	}
	data, err := syscall.Mmap(int(f.Fd()), 0, int(st.Size()), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("proto: map %s: %w", name, err)
	}
	x, err := decode(data)
	if err != nil {
		syscall.Munmap(data)
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	x.unmap = func() error { return syscall.Munmap(data) }
	// The process before may have been killed before it synced the folder: the file that it replaced could come back.
	if err := durable.SyncDir(filepath.Dir(name)); err != nil {
		return nil, errors.Join(fmt.Errorf("proto: sync the folder of %s: %w", name, err), x.Close())
	}
	return x, nil
}

// Close gives back the memory of an index that was opened.
func (x *Index) Close() error {
	if x.unmap == nil {
		return nil
	}
	err := x.unmap()
	x.unmap = nil
	return err
}

// decode makes an index of a file's bytes, which it refers to.
func decode(data []byte) (*Index, error) {
	if !littleEndian() {
		return nil, errors.New("proto: this processor keeps numbers in another order")
	}
	var h head
	if len(data) < headBytes || string(data[:8]) != magic {
		return nil, fmt.Errorf("%w: no file of prototypes of this version", ErrDamaged)
	}
	if crc32.Checksum(data[:headBytes-4], castagnoli) != binary.LittleEndian.Uint32(data[headBytes-4:]) {
		return nil, fmt.Errorf("%w: the head's sum is wrong", ErrDamaged)
	}
	if _, err := binary.Decode(data, binary.LittleEndian, &h); err != nil {
		return nil, err
	}
	cfg := Config{Seed: h.Seed, Left: h.Left, Radius: h.Radius, Least: int(h.Least), Most: int(h.Most),
		Lessons: int(h.Lessons)}
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if h.Rows < 1 || h.Rows > maxTokens || h.Prototypes > maxPrototypes || h.Generations > h.Prototypes || h.Taught > 1 ||
		!(h.Steps > 0) || math.IsInf(float64(h.Steps), 1) {
		return nil, fmt.Errorf("%w: %d rows, %d prototypes, %d generations", ErrDamaged, h.Rows, h.Prototypes, h.Generations)
	}
	return h.read(cfg, data[headBytes:])
}

// read takes the sections. Counts are within bounds, so that their sizes do not overflow.
func (h *head) read(cfg Config, data []byte) (*Index, error) {
	rowCount, n, parts := int(h.Rows), int(h.Prototypes), int(h.Generations)
	pages := (n + Page - 1) / Page
	sizes := [sections]int{
		Width * 4, dims * 4, dims * 4, int(h.Taught) * features * Width * 4, rowCount * 4, rowCount * 4,
		rowCount * Scales * dims * 2, rowCount * Planes * 4, n * int(unsafe.Sizeof(Prototype{})), n * 8, n * Width,
		parts*generation + pages,
	}
	var list [sections][]byte
	for i, size := range sizes {
		if len(data) < size+padding(size) {
			return nil, fmt.Errorf("%w: it ends within section %d", ErrDamaged, i)
		}
		list[i] = data[:size:size]
		if crc32.Checksum(list[i], castagnoli) != h.Sums[i] {
			return nil, fmt.Errorf("%w: the sum of section %d is wrong", ErrDamaged, i)
		}
		data = data[size+padding(size):]
	}
	if len(data) != 0 {
		return nil, fmt.Errorf("%w: %d bytes too many", ErrDamaged, len(data))
	}
	s := newSpace(cfg)
	s.centred, s.frame.steps, s.unknown = true, h.Steps, h.Unknown
	copy(bytesOf(s.mean[:]), list[0])
	copy(bytesOf(s.frame.base[:]), list[1])
	copy(bytesOf(s.frame.places[:]), list[2])
	s.images = sliceOf[float32](list[3])
	s.tokens, s.floors, s.rows = sliceOf[int32](list[4]), sliceOf[float32](list[5]), sliceOf[rows](list[6])
	x := &Index{space: s, model: h.Model, thresholds: sliceOf[[Planes]float32](list[7]),
		prototypes: sliceOf[Prototype](list[8]),
		sketches:   sliceOf[uint64](list[9]), vectors: sliceOf[[Width]int8](list[10])}
	if err := x.takeTail(list[11], parts); err != nil {
		return nil, err
	}
	return x, x.check()
}

func sliceOf[T any](b []byte) []T {
	var one T
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(one)))
}

func (x *Index) takeTail(b []byte, parts int) error {
	end := 0
	for range parts {
		g := Generation{First: int(binary.LittleEndian.Uint64(b)), Len: int(binary.LittleEndian.Uint64(b[8:]))}
		copy(g.Digest[:], b[16:])
		if g.First < end || g.First%Page != 0 || g.First > len(x.prototypes) || g.Len < 1 ||
			g.Len > len(x.prototypes)-g.First {
			return fmt.Errorf("%w: a generation of %d prototypes from %d", ErrDamaged, g.Len, g.First)
		}
		end = g.First + g.Len
		x.parts = append(x.parts, g)
		b = b[generation:]
	}
	for _, d := range b {
		x.dead = append(x.dead, d != 0)
	}
	return nil
}

// check looks at what lookups index by, and makes the tables.
func (x *Index) check() error {
	s := x.space
	for r, t := range s.tokens {
		if r == 0 {
			continue
		}
		if t < 0 || t >= maxTokens || s.known(t) {
			return fmt.Errorf("%w: row %d is of token %d", ErrDamaged, r, t)
		}
		if n := int(t) + 1 - len(s.rowOf); n > 0 {
			s.rowOf = append(s.rowOf, make([]int32, n)...)
		}
		s.rowOf[t] = int32(r)
	}
	for i := range x.prototypes {
		p := &x.prototypes[i]
		if p.Count > 0 && (!s.known(p.Token) || p.Place < 0) {
			return fmt.Errorf("%w: prototype %d is of token %d at %d", ErrDamaged, i, p.Token, p.Place)
		}
	}
	x.fill()
	return nil
}

// Remove has the prototypes of a source matched no more, with all that share pages with them, and returns those
// pages: whoever keeps their KV deletes it. The index MUST NOT be in use.
func (x *Index) Remove(source uint64) (pages []int) {
	for i := range x.prototypes {
		if p := i / Page; x.prototypes[i].Count > 0 && x.prototypes[i].Source == source && !x.dead[p] {
			x.dead[p] = true
			pages = append(pages, p)
		}
	}
	if len(pages) > 0 {
		x.fill()
	}
	return pages
}

// Alive reports whether the prototypes of a page can be matched.
func (x *Index) Alive(page int) bool { return !x.dead[page] }

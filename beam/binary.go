package beam

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"unsafe"
)

// The stored form, little-endian, every section padded to 8 bytes so that a mapped file is used in place:
//
//	magic, depth, items, per level {size, nodes}           32 bits each but for the magic
//	per level: codes (16 or 32 bits each), runs of children (a bit per node of the next level)
//	digest of all of the above but the magic
//	items by position (32 bits each)
//	CRC-32C of everything before it, in 8 bytes
const magic = "grebeIX1"

// ErrDamaged says that stored bytes are not an index that was written.
var ErrDamaged = errors.New("the index is damaged")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// WriteTo writes the stored form.
func (ix *Index) WriteTo(w io.Writer) (int64, error) {
	sum := crc32.New(castagnoli)
	s := &sections{w: io.MultiWriter(w, sum)}
	s.bytes([]byte(magic))
	ix.tree(s)
	digest := ix.contents()
	s.bytes(digest[:])
	put(s, ix.items)
	s.bytes(binary.LittleEndian.AppendUint64(nil, uint64(sum.Sum32())))
	if s.err != nil {
		return s.n, fmt.Errorf("beam: write index: %w", s.err)
	}
	return s.n, nil
}

// contents computes the digest.
func (ix *Index) contents() Digest {
	h := sha256.New()
	ix.tree(&sections{w: h})
	return Digest(h.Sum(nil))
}

// tree writes what the digest covers: all but the items' numbers.
func (ix *Index) tree(s *sections) {
	head := []uint32{uint32(len(ix.levels)), uint32(len(ix.items))}
	for i := range ix.levels {
		head = append(head, uint32(ix.levels[i].size), uint32(ix.levels[i].codes.Len()))
	}
	put(s, head)
	for i := range ix.levels {
		l := &ix.levels[i]
		put(s, l.codes.short)
		put(s, l.codes.long)
		put(s, l.below.words)
	}
}

// sections writes padded sections until one fails.
type sections struct {
	w   io.Writer
	n   int64
	buf []byte
	err error
}

func (s *sections) bytes(b []byte) {
	if s.err != nil {
		return
	}
	n, err := s.w.Write(b)
	s.n += int64(n)
	s.err = err
}

func put[T uint16 | uint32 | uint64](s *sections, v []T) {
	const chunk = 1 << 15
	for len(v) > 0 && s.err == nil {
		part := v[:min(chunk, len(v))]
		s.buf, s.err = binary.Append(s.buf[:0], binary.LittleEndian, part)
		for len(s.buf)%8 != 0 {
			s.buf = append(s.buf, 0)
		}
		s.bytes(s.buf)
		v = v[len(part):]
	}
}

// Open reads the stored form of an index whose items have numbers below places. The index uses data in
// place where the machine's byte order and data's alignment allow it: data MUST stay as it is, and
// mapped, for as long as the index is used. The index keeps owner, which may be nil, reachable until then.
func Open(data []byte, places int, owner any) (*Index, error) {
	ix, err := parse(data, places)
	if err != nil {
		return nil, fmt.Errorf("beam: open index: %w: %w", ErrDamaged, err)
	}
	ix.owner = owner
	return ix, nil
}

func parse(data []byte, places int) (*Index, error) {
	if len(data) < len(magic)+16 || string(data[:len(magic)]) != magic {
		return nil, errors.New("it does not begin like one")
	}
	body := data[:len(data)-8]
	if got, want := uint64(crc32.Checksum(body, castagnoli)), binary.LittleEndian.Uint64(data[len(body):]); got != want {
		return nil, fmt.Errorf("checksum %08x, want %08x", got, want)
	}
	r := &reader{data: body[len(magic):]}
	ix, digest := r.index()
	if r.short || len(r.data) != 0 {
		return nil, errors.New("its length does not fit its contents")
	}
	if err := ix.check(places); err != nil {
		return nil, err
	}
	if got := ix.contents(); got != digest {
		return nil, fmt.Errorf("digest %v, want %v", got, digest)
	}
	ix.seal(places)
	return ix, nil
}

// reader takes padded sections off data.
type reader struct {
	data  []byte
	short bool
}

func (r *reader) index() (ix *Index, digest Digest) {
	head := take[uint32](r, 2)
	if r.short || uint64(head[0])*8 > uint64(len(r.data)) {
		r.short = true
		return nil, digest
	}
	depth, items := int(head[0]), head[1]
	shape := take[uint32](r, 2*depth)
	if r.short {
		return nil, digest
	}
	ix = &Index{levels: make([]level, depth)}
	for i := range ix.levels {
		l := &ix.levels[i]
		l.size = int(shape[2*i])
		nodes := int(shape[2*i+1])
		if l.size <= 1<<16 {
			l.codes.short = take[uint16](r, nodes)
		} else {
			l.codes.long = take[uint32](r, nodes)
		}
		l.below.n = items
		if i+1 < depth {
			l.below.n = shape[2*i+3]
		}
		l.below.words = take[uint64](r, wordsFor(l.below.n))
	}
	copy(digest[:], take[byte](r, len(digest)))
	ix.items = take[uint32](r, int(items))
	return ix, digest
}

func take[T byte | uint16 | uint32 | uint64](r *reader, n int) []T {
	var one T
	size := n * int(unsafe.Sizeof(one))
	padded := (size + 7) &^ 7
	if r.short || padded > len(r.data) {
		r.short = true
		return nil
	}
	section := r.data[:size]
	r.data = r.data[padded:]
	if n == 0 {
		return []T{}
	}
	p := unsafe.Pointer(unsafe.SliceData(section))
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 && uintptr(p)%unsafe.Alignof(one) == 0 {
		return unsafe.Slice((*T)(p), n)
	}
	v := make([]T, n)
	if _, err := binary.Decode(section, binary.LittleEndian, v); err != nil {
		r.short = true
	}
	return v
}

// check refuses a tree that code could not walk safely, whatever its checksum says.
func (ix *Index) check(places int) error {
	if len(ix.levels) == 0 {
		return errors.New("no levels")
	}
	if len(ix.items) > math.MaxInt32 || places > math.MaxInt32 {
		return fmt.Errorf("%d items with numbers below %d", len(ix.items), places)
	}
	starts := &runs{n: uint32(ix.levels[0].codes.Len()), words: []uint64{}} // the root has one run
	if starts.n > 0 {
		starts.words = make([]uint64, wordsFor(starts.n))
		starts.mark(0)
	}
	for i := range ix.levels {
		l := &ix.levels[i]
		if l.size < 1 || l.size > math.MaxInt32 {
			return fmt.Errorf("level %d has %d codes", i, l.size)
		}
		last := int32(-1)
		for j := range l.codes.Len() {
			if starts.words[j/64]>>(j%64)&1 != 0 {
				last = -1
			}
			c := l.codes.At(j)
			if c <= last || int(c) >= l.size {
				return fmt.Errorf("level %d: code %d of node %d after code %d", i, c, j, last)
			}
			last = c
		}
		if err := l.below.check(uint32(l.codes.Len())); err != nil {
			return fmt.Errorf("level %d: %w", i, err)
		}
		starts = &l.below
	}
	seen := make([]uint64, wordsFor(uint32(places)))
	for position, item := range ix.items {
		if int(item) >= places || seen[item/64]>>(item%64)&1 != 0 {
			return fmt.Errorf("position %d: item %d out of range or twice", position, item)
		}
		seen[item/64] |= 1 << (item % 64)
	}
	return nil
}

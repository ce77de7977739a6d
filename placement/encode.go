package placement

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
)

// FORMAT.md defines the bytes of a map.
const (
	magic   = "GPLC"
	version = 1

	flagFull  = 1
	flagTable = 2
	flagTies  = 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Encode returns the map's bytes. Equal maps have equal bytes.
func (m *Map) Encode() []byte {
	out := append([]byte(magic), 0, 0, 0, 0)
	le := binary.LittleEndian
	le.PutUint32(out[4:], version)
	out = le.AppendUint64(out, m.Epoch)
	var flags byte
	if m.full {
		flags |= flagFull
	}
	if m.table != nil {
		flags |= flagTable
	}
	if m.ties != nil {
		flags |= flagTies
	}
	out = append(out, flags)
	out = le.AppendUint32(out, uint32(m.items))
	out = le.AppendUint16(out, uint16(len(m.members)))
	out = le.AppendUint16(out, uint16(len(m.parts)))
	for _, x := range m.members {
		out = append(out, byte(len(x.Name)))
		out = append(out, x.Name...)
		out = le.AppendUint64(out, math.Float64bits(x.Weight))
	}
	for _, p := range m.parts {
		out = le.AppendUint16(out, p.owner)
		out = le.AppendUint16(out, p.second)
	}
	for _, p := range m.table {
		out = le.AppendUint16(out, p)
	}
	for _, links := range m.ties {
		out = append(out, byte(len(links)))
		for _, l := range links {
			out = le.AppendUint16(out, l.part)
			out = le.AppendUint32(out, math.Float32bits(l.weight))
		}
	}
	return le.AppendUint32(out, crc32.Checksum(out, castagnoli))
}

// Decode reads a map from its bytes. It takes memory in proportion to them, whatever they say, and every map that it
// returns is one that Encode could have written.
func Decode(data []byte) (*Map, error) {
	m, err := decode(data)
	if err != nil {
		return nil, fmt.Errorf("placement: read a map: %w", err)
	}
	return m, nil
}

func decode(data []byte) (*Map, error) {
	le := binary.LittleEndian
	if len(data) < 12 || string(data[:4]) != magic {
		return nil, errors.New("not a map of items")
	}
	if v := le.Uint32(data[4:]); v != version {
		return nil, fmt.Errorf("format version %d, want %d", v, version)
	}
	body := data[:len(data)-4]
	if crc32.Checksum(body, castagnoli) != le.Uint32(data[len(data)-4:]) {
		return nil, errors.New("the checksum is wrong: the bytes are damaged or cut off")
	}
	r := &reader{data: body[8:]}
	m := &Map{Epoch: r.u64()}
	flags := r.u8()
	m.items = int(r.u32())
	members, parts := int(r.u16()), int(r.u16())
	for range members {
		if r.short {
			break
		}
		m.members = append(m.members, Member{Name: string(r.take(int(r.u8()))), Weight: math.Float64frombits(r.u64())})
	}
	if r.short {
		return nil, errShort
	}
	if err := (&Config{Members: m.members, Items: m.items, Parts: parts}).Validate(); err != nil {
		return nil, err
	}
	if flags&^(flagFull|flagTable|flagTies) != 0 || parts == 0 ||
		flags&flagFull != 0 && flags != flagFull || flags&flagTies != 0 && flags&flagTable == 0 {
		return nil, fmt.Errorf("%d micro-parts and flags %#x", parts, flags)
	}
	m.full = flags&flagFull != 0
	if err := m.readParts(r, parts); err != nil {
		return nil, err
	}
	if flags&flagTable != 0 {
		if err := m.readTable(r); err != nil {
			return nil, err
		}
	}
	if flags&flagTies != 0 {
		if err := m.readTies(r); err != nil {
			return nil, err
		}
	}
	if r.short {
		return nil, errShort
	}
	if len(r.data) > 0 {
		return nil, fmt.Errorf("%d bytes after the end", len(r.data))
	}
	return m, nil
}

func (m *Map) readParts(r *reader, n int) error {
	if len(r.data) < 4*n {
		return errShort
	}
	live := (&Config{Members: m.members}).live()
	m.parts = make([]part, n)
	for i := range m.parts {
		p := part{r.u16(), r.u16()}
		if !m.live(int(p.owner)) || !m.live(int(p.second)) || (p.owner == p.second) != (live == 1) {
			return fmt.Errorf("micro-part %d is at %d and %d, which is not two members with a weight", i, p.owner, p.second)
		}
		m.parts[i] = p
	}
	return nil
}

func (m *Map) readTable(r *reader) error {
	if len(r.data)/2 < m.items {
		return errShort
	}
	m.table = make([]uint16, m.items)
	for i := range m.table {
		m.table[i] = r.u16()
		if m.table[i] != everywhere && int(m.table[i]) >= len(m.parts) {
			return fmt.Errorf("item %d is in micro-part %d of %d", i, m.table[i], len(m.parts))
		}
	}
	return nil
}

func (m *Map) readTies(r *reader) error {
	m.ties = make([][]link, len(m.parts))
	for p := range m.ties {
		n := int(r.u8())
		if n > tiesPerPart || len(r.data) < 6*n {
			return fmt.Errorf("micro-part %d has %d ties, or the data ends there", p, n)
		}
		seen := map[uint16]bool{}
		for range n {
			l := link{r.u16(), math.Float32frombits(r.u32())}
			if int(l.part) >= len(m.parts) || int(l.part) == p || seen[l.part] ||
				!(l.weight > 0 && l.weight <= math.MaxFloat32) {
				return fmt.Errorf("micro-part %d is tied to %d with weight %v", p, l.part, l.weight)
			}
			seen[l.part] = true
			m.ties[p] = append(m.ties[p], l)
		}
	}
	return nil
}

var errShort = errors.New("the data ends too early")

// reader takes numbers from the front of data. Behind its end it returns zeros and short is true.
type reader struct {
	data  []byte
	short bool
}

func (r *reader) take(n int) []byte {
	if len(r.data) < n {
		r.short, r.data = true, nil
		return make([]byte, n)
	}
	out := r.data[:n]
	r.data = r.data[n:]
	return out
}

func (r *reader) u8() byte    { return r.take(1)[0] }
func (r *reader) u16() uint16 { return binary.LittleEndian.Uint16(r.take(2)) }
func (r *reader) u32() uint32 { return binary.LittleEndian.Uint32(r.take(4)) }
func (r *reader) u64() uint64 { return binary.LittleEndian.Uint64(r.take(8)) }

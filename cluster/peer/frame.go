package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"grebe/cluster/protocol"
	"grebe/plan"
)

// Kinds of frames.
const (
	kindHello   = 1 // client: versions, names
	kindWelcome = 2 // server: version, or why not
	kindGet     = 3
	kindBlock   = 4 // the answer for one key; the payload and its checksum follow the frame
	kindPing    = 5
	kindPong    = 6
)

const (
	frameHeader = 12             // kind, zero, checksum of kind and length, length of the body, checksum of all
	maxBody     = MaxMeta + 1024 // of all kinds
	maxName     = 255
	sumSize     = 4 // the checksum behind a payload
	wantSize    = 32 + 4 + 8
	blockSize   = 4 + 2 + 1 + 1 + 8 + 4 // of a block's body, without its metadata
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	le         = binary.LittleEndian
)

// errGarbage means that a connection does not carry frames, or damaged ones.
var errGarbage = errors.New("not a frame")

// beginFrame appends the header of a frame whose body is appended next.
func beginFrame(b []byte, kind byte) []byte { return append(b, kind, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) }

// endFrame completes the frame that starts at b[at:] and returns its checksum.
func endFrame(b []byte, at int) uint32 {
	f := b[at:]
	le.PutUint32(f[4:], uint32(len(f)-frameHeader))
	le.PutUint16(f[2:], headSum(f))
	sum := frameSum(f)
	le.PutUint32(f[8:], sum)
	return sum
}

// headSum is the checksum of a frame's kind and length. With it a damaged length is found at once, not when the budget
// is over.
func headSum(h []byte) uint16 {
	return uint16(crc32.Update(uint32(h[0]), castagnoli, h[4:8]))
}

// frameSum is the checksum of a whole frame.
func frameSum(f []byte) uint32 {
	return crc32.Update(crc32.Update(0, castagnoli, f[:8]), castagnoli, f[frameHeader:])
}

// seal is what a payload's checksum is combined with on the wire. It ties the payload to its frame and to its key.
func seal(frame uint32, key *plan.Key) uint32 { return crc32.Update(frame, castagnoli, key[:]) }

// frameLength returns the length of the body of a frame by its header.
func frameLength(h []byte) (int, error) {
	n := le.Uint32(h[4:])
	if h[0] < kindHello || h[0] > kindPong || h[1] != 0 || n > maxBody || le.Uint16(h[2:]) != headSum(h) {
		return 0, fmt.Errorf("%w: header %x", errGarbage, h[:frameHeader])
	}
	return int(n), nil
}

// openFrame checks a whole frame and returns its body.
func openFrame(f []byte) ([]byte, error) {
	if le.Uint32(f[8:]) != frameSum(f) {
		return nil, fmt.Errorf("%w: kind %d, wrong checksum", errGarbage, f[0])
	}
	return f[frameHeader:], nil
}

// fields reads the fields of a body. After the first failure all reads return zero values. Bytes behind the last known
// field are ignored: a later version may append fields.
type fields struct {
	b      []byte
	failed bool
}

func (f *fields) take(n int) []byte {
	if f.failed || n > len(f.b) {
		f.failed = true
		return nil
	}
	out := f.b[:n]
	f.b = f.b[n:]
	return out
}

func (f *fields) u8() uint8 {
	if b := f.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (f *fields) u16() uint16 {
	if b := f.take(2); b != nil {
		return le.Uint16(b)
	}
	return 0
}

func (f *fields) u32() uint32 {
	if b := f.take(4); b != nil {
		return le.Uint32(b)
	}
	return 0
}

func (f *fields) u64() uint64 {
	if b := f.take(8); b != nil {
		return le.Uint64(b)
	}
	return 0
}

func (f *fields) name() []byte { return f.take(int(f.u8())) }

func (f *fields) err(what string) error {
	if f.failed {
		return fmt.Errorf("%w: %s ends too early", errGarbage, what)
	}
	return nil
}

func appendName(b []byte, s string) []byte {
	s = s[:min(len(s), maxName)]
	return append(append(b, byte(len(s))), s...)
}

// versions is a range of protocol versions.
type versions struct{ min, max uint16 }

// spoken are the versions that this package speaks. A new version may append fields to bodies. A change that a node of
// the version before could not ignore needs code for both versions.
var spoken = versions{uint16(protocol.Min), uint16(protocol.Max)}

func (v versions) String() string {
	if v.min == v.max {
		return fmt.Sprintf("version %d", v.min)
	}
	return fmt.Sprintf("versions %d to %d", v.min, v.max)
}

// common returns the highest version of both, or 0.
func (v versions) common(o versions) uint16 {
	if c := min(v.max, o.max); c >= max(v.min, o.min) {
		return c
	}
	return 0
}

type hello struct {
	versions versions
	from, to string // nodes
}

func (h *hello) append(b []byte) []byte {
	at := len(b)
	b = beginFrame(b, kindHello)
	b = le.AppendUint16(b, h.versions.min)
	b = le.AppendUint16(b, h.versions.max)
	b = appendName(appendName(b, h.from), h.to)
	endFrame(b, at)
	return b
}

func (h *hello) decode(body []byte) error {
	f := fields{b: body}
	h.versions = versions{f.u16(), f.u16()}
	h.from, h.to = string(f.name()), string(f.name())
	return f.err("hello")
}

type welcome struct {
	version  uint16 // 0: refused
	versions versions
	node     string
	reason   string // of a refusal
}

func (w *welcome) append(b []byte) []byte {
	at := len(b)
	b = beginFrame(b, kindWelcome)
	b = le.AppendUint16(b, w.version)
	b = le.AppendUint16(b, w.versions.min)
	b = le.AppendUint16(b, w.versions.max)
	b = appendName(appendName(b, w.node), w.reason)
	endFrame(b, at)
	return b
}

func (w *welcome) decode(body []byte) error {
	f := fields{b: body}
	w.version, w.versions = f.u16(), versions{f.u16(), f.u16()}
	w.node, w.reason = string(f.name()), string(f.name())
	return f.err("welcome")
}

// request is a GET on the wire.
type request struct {
	id     uint32
	epoch  uint64
	budget uint32 // milliseconds
	space  Space
	wants  []Want
}

// appendGet appends a GET of those wants that which lists, in its order.
func appendGet(b []byte, id uint32, g *Get, budget uint32, which []uint16) []byte {
	at := len(b)
	b = beginFrame(b, kindGet)
	b = le.AppendUint32(b, id)
	b = le.AppendUint64(b, g.Epoch)
	b = le.AppendUint32(b, budget)
	b = appendName(appendName(appendName(b, g.Space.Model), g.Space.Numerics), g.Space.Format)
	b = le.AppendUint16(b, uint16(len(which)))
	for _, i := range which {
		w := &g.Wants[i]
		b = append(b, w.Key[:]...)
		b = le.AppendUint32(b, w.Tokens)
		b = le.AppendUint64(b, w.Digest)
	}
	endFrame(b, at)
	return b
}

// decode reads a GET. It reuses the memory of r.
func (r *request) decode(body []byte) error {
	f := fields{b: body}
	r.id, r.epoch, r.budget = f.u32(), f.u64(), f.u32()
	keep(&r.space.Model, f.name())
	keep(&r.space.Numerics, f.name())
	keep(&r.space.Format, f.name())
	n := int(f.u16())
	if n > MaxWants {
		return fmt.Errorf("%w: a GET of %d keys, at most %d", errGarbage, n, MaxWants)
	}
	list := fields{b: f.take(n * wantSize), failed: f.failed}
	r.wants = r.wants[:0]
	for range n {
		var w Want
		copy(w.Key[:], list.take(len(w.Key)))
		w.Tokens, w.Digest = list.u32(), list.u64()
		if list.failed {
			break
		}
		r.wants = append(r.wants, w)
	}
	f.failed = f.failed || list.failed
	return f.err("GET")
}

// keep sets s to name. It allocates only if they differ: the requests of a connection have the same names.
func keep(s *string, name []byte) {
	if *s != string(name) {
		*s = string(name)
	}
}

// answer is the frame for one key.
type answer struct {
	id      uint32
	index   uint16 // of the key in the GET
	status  Status
	payload int64
	meta    []byte // of the frame's memory
}

// append appends the frame and returns its checksum too.
func (a *answer) append(b []byte) ([]byte, uint32) {
	at := len(b)
	b = beginFrame(b, kindBlock)
	b = le.AppendUint32(b, a.id)
	b = le.AppendUint16(b, a.index)
	b = append(b, byte(a.status), 0)
	b = le.AppendUint64(b, uint64(a.payload))
	b = le.AppendUint32(b, uint32(len(a.meta)))
	b = append(b, a.meta...)
	return b, endFrame(b, at)
}

func (a *answer) decode(body []byte) error {
	f := fields{b: body}
	a.id, a.index, a.status = f.u32(), f.u16(), Status(f.u8())
	f.u8()
	payload, meta := f.u64(), f.u32()
	if meta > MaxMeta || payload > MaxPayload {
		return fmt.Errorf("%w: a block of %d bytes with %d of metadata", errGarbage, payload, meta)
	}
	a.payload, a.meta = int64(payload), f.take(int(meta))
	if a.status < Hit || a.status > WrongEpoch || a.status != Hit && payload != 0 {
		return fmt.Errorf("%w: a block of %d bytes with %v", errGarbage, payload, a.status)
	}
	return f.err("block")
}

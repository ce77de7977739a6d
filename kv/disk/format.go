package disk

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"

	"grebe/plan"
)

// The layout is described in FORMAT.md; the two must agree.
const (
	block         = 4096 // records start at multiples of it, because file systems free whole blocks
	headerSize    = 128
	formatVersion = 1
	directPayload = 64 << 10 // payloads from this size on start at a block
	maxBytes      = 1 << 44  // largest store: block numbers and record ids have 32 bits
	segmentMagic  = 0x53564b47
	recordMagic   = 0x52564b47
	failedMarkAt  = 20 // in a segment's first block
)

// failedMark is in the first block of a segment whose sync failed.
var failedMark = []byte("GKVF")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }

// header is at the start of each record.
type header struct {
	nonce      uint64 // of the segment, so that bytes copied from elsewhere are not a record
	offset     uint64 // of the record in the segment, for the same reason
	seq        uint64 // order of writing
	key        plan.Key
	version    [32]byte
	payload    int64
	meta       int
	payloadCRC uint32
	metaCRC    uint32
}

func (h *header) payloadAt() int64 { return payloadAt(h.meta, h.payload) }

// len returns the length of the record in bytes, without padding.
func (h *header) len() int64 {
	if h.payload == 0 {
		return headerSize + int64(h.meta)
	}
	return h.payloadAt() + h.payload
}

// end returns the offset in the segment after the last byte of the record.
func (h *header) end() int64 { return int64(h.offset) + h.len() }

// payloadAt returns where the payload starts within its record.
func payloadAt(meta int, payload int64) int64 {
	if payload >= directPayload {
		return roundUp(int64(headerSize+meta), block)
	}
	return roundUp(int64(headerSize+meta), 64)
}

// recordSize returns the bytes a record takes in its segment.
func recordSize(meta int, payload int64) int64 {
	return roundUp(payloadAt(meta, payload)+payload, block)
}

func (h *header) encode(b []byte) {
	b = b[:headerSize]
	clear(b)
	le := binary.LittleEndian
	le.PutUint32(b[0:], recordMagic)
	le.PutUint32(b[4:], formatVersion)
	le.PutUint64(b[8:], h.nonce)
	le.PutUint64(b[16:], h.offset)
	le.PutUint64(b[24:], h.seq)
	copy(b[32:], h.key[:])
	copy(b[64:], h.version[:])
	le.PutUint64(b[96:], uint64(h.payload))
	le.PutUint32(b[104:], uint32(h.meta))
	le.PutUint32(b[108:], h.payloadCRC)
	le.PutUint32(b[112:], h.metaCRC)
	le.PutUint32(b[headerSize-4:], checksum(b[:headerSize-4]))
}

// decode reads the header of a record at an offset of the segment with this nonce, and reports whether it is
// valid.
func decode(b []byte, nonce uint64, offset int64) (header, bool) {
	le := binary.LittleEndian
	if len(b) < headerSize || le.Uint32(b) != recordMagic || le.Uint32(b[4:]) != formatVersion ||
		le.Uint32(b[headerSize-4:]) != checksum(b[:headerSize-4]) {
		return header{}, false
	}
	h := header{
		nonce:      le.Uint64(b[8:]),
		offset:     le.Uint64(b[16:]),
		seq:        le.Uint64(b[24:]),
		key:        plan.Key(b[32:64]),
		version:    [32]byte(b[64:96]),
		payload:    int64(le.Uint64(b[96:])),
		meta:       int(le.Uint32(b[104:])),
		payloadCRC: le.Uint32(b[108:]),
		metaCRC:    le.Uint32(b[112:]),
	}
	whole := h.payload >= 0 && h.payload <= maxBytes && h.meta <= MaxMeta
	return h, whole && h.nonce == nonce && h.offset == uint64(offset)
}

// encodeSegment returns the first block of a segment.
func encodeSegment(nonce uint64) []byte {
	b := make([]byte, block)
	le := binary.LittleEndian
	le.PutUint32(b[0:], segmentMagic)
	le.PutUint32(b[4:], formatVersion)
	le.PutUint64(b[8:], nonce)
	le.PutUint32(b[16:], checksum(b[:16]))
	return b
}

// decodeSegment reads the first block of a segment. Failed says that a sync of the segment failed.
func decodeSegment(b []byte) (nonce uint64, failed, ok bool) {
	le := binary.LittleEndian
	if len(b) < block || le.Uint32(b) != segmentMagic || le.Uint32(b[4:]) != formatVersion ||
		le.Uint32(b[16:]) != checksum(b[:16]) {
		return 0, false, false
	}
	return le.Uint64(b[8:]), bytes.Equal(b[failedMarkAt:failedMarkAt+len(failedMark)], failedMark), true
}

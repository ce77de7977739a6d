package disk

import (
	"bytes"
	"hash/crc32"
	"math"
	"testing"
)

// The bytes of FORMAT.md, written down by hand.
func TestFormat(t *testing.T) {
	h := header{nonce: 0x0807060504030201, offset: 0x3000, seq: 9, payload: 0x01020304, meta: 0x0506,
		payloadCRC: 0x0a0b0c0d, metaCRC: 0x01000002}
	for i := range 32 {
		h.key[i], h.version[i] = byte(i+1), byte(0xff-i)
	}
	want :=
		[]byte(
			"GKVR\x01\x00\x00\x00\x01\x02\x03\x04\x05\x06\x07\x08\x00\x30\x00\x00\x00\x00\x00\x00" +
				"\x09\x00\x00\x00\x00\x00\x00\x00")
	want = append(append(want, h.key[:]...), h.version[:]...)
	want = append(want, "\x04\x03\x02\x01\x00\x00\x00\x00\x06\x05\x00\x00\x0d\x0c\x0b\x0a\x02\x00\x00\x01"...)
	want = append(want, make([]byte, 8)...)
	sum := crc32.Checksum(want, crc32.MakeTable(crc32.Castagnoli))
	want = append(want, byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24))
	got := make([]byte, headerSize)
	h.encode(got)
	if !bytes.Equal(got, want) {
		t.Fatalf("header\n%x, want\n%x", got, want)
	}
	if back, ok := decode(got, h.nonce, 0x3000); !ok || back != h {
		t.Fatalf("decoded %+v %v, want %+v", back, ok, h)
	}
	if _, ok := decode(got, h.nonce, 0x4000); ok {
		t.Fatal("a header was taken at another offset")
	}
	if _, ok := decode(got, h.nonce+1, 0x3000); ok {
		t.Fatal("a header was taken in another segment")
	}
	for _, c := range []struct{ meta, payload, at, size int64 }{
		{0, 0, 128, 4096}, {1, 1, 192, 4096}, {0, 4096 - 128, 128, 4096}, {0, 4096 - 127, 128, 8192},
		{10, 65535, 192, 17 * 4096}, {10, 65536, 4096, 17 * 4096}, {4096 - 128, 65536, 4096, 17 * 4096},
		{4096 - 127, 65536, 8192, 18 * 4096},
	} {
		if at, size := payloadAt(int(c.meta), c.payload), recordSize(int(c.meta), c.payload); at != c.at || size != c.size {
			t.Errorf("meta %d, payload %d: at %d of %d, want at %d of %d", c.meta, c.payload, at, size, c.at, c.size)
		}
	}
}

// Lengths that no store writes are no record, whatever the checksums say: they would be used to compute offsets.
func TestHostileLengthsAreNoRecord(t *testing.T) {
	for _, c := range []struct {
		payload int64
		meta    uint32
		ok      bool
	}{
		{0, 0, true}, {maxBytes, MaxMeta, true}, {maxBytes, MaxMeta + 1, false}, {maxBytes + 1, MaxMeta, false},
		{-1, 0, false}, {math.MinInt64, 0, false}, {math.MaxInt64, 0, false}, {0, math.MaxUint32, false},
	} {
		h := header{nonce: 7, offset: block, seq: 1, key: keyOf(1), payload: c.payload, meta: int(c.meta)}
		b := make([]byte, block)
		h.encode(b)
		if _, ok := decode(b, 7, block); ok != c.ok {
			t.Fatalf("a payload of %d and a meta of %d bytes: a record is %v, want %v", c.payload, c.meta, ok, c.ok)
		}
		d := newMemFolder(t, true)
		s := mustOpen(t, d, Options{Budget: mib})
		mustPut(t, s, keyOf(2), nil, pattern(keyOf(2), 'p', 0, 1000))
		seg := s.segments()[0]
		h.nonce, h.offset = seg.nonce, uint64(seg.end)
		h.encode(b)
		if _, err := seg.f.WriteAt(b, seg.end); err != nil {
			t.Fatal(err)
		}
		s = mustOpen(t, d.copyOf(), Options{Budget: mib})
		if _, ok := s.Has(keyOf(1)); ok != (c.payload == 0 && c.meta == 0) {
			t.Errorf("a payload of %d and a meta of %d bytes: a record that is not there is found: %v", c.payload, c.meta, ok)
		}
		if _, p, ok := fetch(t, s, keyOf(2)); !ok || !bytes.Equal(p, pattern(keyOf(2), 'p', 0, 1000)) {
			t.Errorf("a payload of %d and a meta of %d bytes: the record before it is lost", c.payload, c.meta)
		}
	}
}

package disk

import (
	"bytes"
	"hash/crc32"
	"testing"
)

// The bytes of FORMAT.md, written down by hand.
func TestFormat(t *testing.T) {
	h := header{nonce: 0x0807060504030201, offset: 0x3000, seq: 9, payload: 0x01020304, meta: 0x0506,
		payloadCRC: 0x0a0b0c0d, metaCRC: 0x01000002}
	for i := range 32 {
		h.key[i], h.version[i] = byte(i+1), byte(0xff-i)
	}
	want := []byte("GKVR\x01\x00\x00\x00\x01\x02\x03\x04\x05\x06\x07\x08\x00\x30\x00\x00\x00\x00\x00\x00\x09\x00\x00\x00\x00\x00\x00\x00")
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
		{10, 65535, 192, 17 * 4096}, {10, 65536, 4096, 17 * 4096}, {4096 - 128, 65536, 4096, 17 * 4096}, {4096 - 127, 65536, 8192, 18 * 4096},
	} {
		if at, size := payloadAt(int(c.meta), c.payload), recordSize(int(c.meta), c.payload); at != c.at || size != c.size {
			t.Errorf("meta %d, payload %d: at %d of %d, want at %d of %d", c.meta, c.payload, at, size, c.at, c.size)
		}
	}
}

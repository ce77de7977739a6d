package compute

import (
	"strings"
	"testing"
)

// A chunk that the host cannot see is validated by its size, and refused by a device of the host's.
func TestValidateFarChunks(t *testing.T) {
	b := valid()
	c := &b.Segments[3].Chunks[0]
	*c = Chunk{Addr: 4096, Size: len(c.Bytes), Tokens: c.Tokens}
	if err := b.Validate(&small); err != nil {
		t.Error(err)
	}
	if err := b.ValidateHost(&small); err == nil || !strings.Contains(err.Error(),
		"segment 3 chunk 0 at 0x1000 is not in the host's memory") {
		t.Errorf("got %v, want an error that names the chunk", err)
	}
	c.Size--
	if err := b.Validate(&small); err == nil || !strings.Contains(err.Error(),
		"segment 3 chunk 0: 15 bytes for 1 tokens, want 16") {
		t.Errorf("got %v, want an error about a byte too few", err)
	}
	*c = Chunk{Size: 16, Tokens: 1} // nowhere
	if b.Validate(&small) == nil {
		t.Error("a chunk without address and bytes was accepted")
	}
	if err := valid().ValidateHost(&small); err != nil {
		t.Error(err)
	}
}

func TestSlice(t *testing.T) {
	b := Block{Addr: 1024, Bytes: make([]byte, 100), Size: 100}
	if s := b.Slice(40, 10); s.Addr != 1064 || s.Size != 10 || &s.Bytes[0] != &b.Bytes[40] || cap(s.Bytes) != 10 {
		t.Errorf("10 bytes at 40 are %+v", s)
	}
	if s := (Block{Bytes: b.Bytes, Size: 100}).Slice(40, 10); s.Addr != 0 {
		t.Errorf("a block without address has one: %#x", s.Addr)
	}
	defer func() {
		if recover() == nil {
			t.Error("11 bytes at 90 of 100")
		}
	}()
	b.Slice(90, 11)
}

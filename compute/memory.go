package compute

import (
	"fmt"
	"sync"
	"unsafe"

	"grebe/internal/offheap"
)

// Block is a piece of a Memory. It has an address by which the device knows it, or bytes that the host
// sees, or both: pinned memory of the host, which a device can use in place.
type Block struct {
	Addr  uint64 // 0: the device uses Bytes
	Bytes []byte // nil: the host cannot see it
	Size  int
}

// Slice returns n bytes of the block from offset at on.
func (b Block) Slice(at, n int) Block {
	if at < 0 || n < 0 || at+n > b.Size {
		panic(fmt.Sprintf("compute: %d bytes at %d of a block of %d", n, at, b.Size))
	}
	s := Block{Size: n}
	if b.Addr != 0 {
		s.Addr = b.Addr + uint64(at)
	}
	if b.Bytes != nil {
		s.Bytes = b.Bytes[at : at+n : at+n]
	}
	return s
}

// Chunk returns the block as room for the KV of some tokens.
func (b Block) Chunk(tokens int, transient bool) Chunk {
	return Chunk{Addr: b.Addr, Bytes: b.Bytes, Size: b.Size, Tokens: tokens, Transient: transient}
}

// Move copies Rows rows of Width bytes each, whose beginnings are a stride apart. Source and
// destination do not overlap.
type Move struct {
	Dst, Src             Block
	Width, Rows          int
	DstStride, SrcStride int
}

// MoveAll copies all of src.
func MoveAll(dst, src Block) Move { return Move{Dst: dst, Src: src, Width: src.Size, Rows: 1} }

// Memory is memory that a device computes in. Whoever needs the content of a block that may have no
// Bytes goes through Write, Read, Copy and Zero.
//
// They take effect in the order of the calls. What a runner does in a batch begun after a call sees its
// effect; what it did in a batch whose results were returned, or failed, is done before a call. A call
// of Write or Read is done with the host's slice when it returns. An error means that the device is
// lost, or that the arguments make no sense.
//
// A Memory is safe for concurrent use.
type Memory interface {
	// Host returns memory that the host sees: this one if it does, else memory whose blocks have
	// Bytes, and Addr too where the device can use them in place.
	Host() Memory
	// Sizes returns the bytes that are free and those that there are; 0 where it is not known.
	Sizes() (free, total int64)
	// Alloc returns a block of n bytes of any content, its base a multiple of 256. The caller owns it
	// and MUST Free it, whole. It is slow: take a large block and cut it.
	Alloc(n int) (Block, error)
	Free(b Block)
	// Write copies src to the beginning of dst.
	Write(dst Block, src []byte) error
	// Read copies the beginning of src to dst.
	Read(dst []byte, src Block) error
	// Copy makes the moves, one after the other, between blocks of this memory and of its Host's. Where
	// a block of the Host's takes part, all is done when it returns.
	Copy(moves ...Move) error
	Zero(b Block) error
}

// hostMemory is the host's own.
type hostMemory struct {
	mu     sync.Mutex
	blocks map[*byte]*offheap.Block
}

// NewHostMemory returns memory of the host, outside the Go heap, whose blocks have Bytes only.
func NewHostMemory() Memory { return &hostMemory{blocks: map[*byte]*offheap.Block{}} }

func (m *hostMemory) Host() Memory               { return m }
func (m *hostMemory) Sizes() (free, total int64) { return 0, 0 }

func (m *hostMemory) Alloc(n int) (Block, error) {
	b, err := offheap.Alloc(max(n, 1))
	if err != nil {
		return Block{}, fmt.Errorf("compute: allocate %d bytes of host memory: %w", n, err)
	}
	m.mu.Lock()
	m.blocks[unsafe.SliceData(b.Bytes)] = b
	m.mu.Unlock()
	return Block{Bytes: b.Bytes[:n:n], Size: n}, nil
}

func (m *hostMemory) Free(b Block) {
	m.mu.Lock()
	defer m.mu.Unlock()
	own := m.blocks[unsafe.SliceData(b.Bytes)]
	if own == nil {
		panic("compute: a block freed that is none of this memory's, or freed twice")
	}
	delete(m.blocks, unsafe.SliceData(b.Bytes))
	own.Free()
}

func (m *hostMemory) Write(dst Block, src []byte) error {
	if len(src) > len(dst.Bytes) {
		return fmt.Errorf("compute: write %d bytes to a block of %d", len(src), len(dst.Bytes))
	}
	copy(dst.Bytes, src)
	return nil
}

func (m *hostMemory) Read(dst []byte, src Block) error {
	if len(dst) > len(src.Bytes) {
		return fmt.Errorf("compute: read %d bytes of a block of %d", len(dst), len(src.Bytes))
	}
	copy(dst, src.Bytes)
	return nil
}

func (m *hostMemory) Copy(moves ...Move) error {
	for i := range moves {
		v := &moves[i]
		if err := v.Validate(); err != nil {
			return err
		}
		for r := range v.Rows {
			copy(v.Dst.Bytes[r*v.DstStride:][:v.Width], v.Src.Bytes[r*v.SrcStride:][:v.Width])
		}
	}
	return nil
}

func (m *hostMemory) Zero(b Block) error {
	clear(b.Bytes)
	return nil
}

// Validate checks that a move stays inside its blocks.
func (v *Move) Validate() error {
	if v.Rows == 0 || v.Width == 0 {
		return nil
	}
	if v.Rows < 0 || v.Width < 0 || v.DstStride < 0 || v.SrcStride < 0 ||
		(v.Rows-1)*v.DstStride+v.Width > v.Dst.Size || (v.Rows-1)*v.SrcStride+v.Width > v.Src.Size {
		return fmt.Errorf("compute: copy %d rows of %d bytes, %d apart in a block of %d, to %d apart in a block of %d",
			v.Rows, v.Width, v.SrcStride, v.Src.Size, v.DstStride, v.Dst.Size)
	}
	return nil
}

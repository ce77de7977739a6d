package computetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"grebe/compute"
)

// Far returns d, a device in the host's memory, as one whose memory the host cannot see: its blocks
// have addresses that are no pointers, and no Bytes. Whoever touches them other than through its Memory
// fails. With pinned, it can use blocks of its Host in place, which then have addresses too; otherwise
// it refuses them.
//
// Fresh memory holds garbage. An access outside of a block, or to one that was freed, is an error. All
// of it must be freed before the device is closed.
func Far(d compute.Device, pinned bool) compute.Device {
	f := &farDevice{Device: d}
	f.memory = &farMemory{far: true, near: d.Memory(), space: &space{next: 1 << 40}}
	f.memory.host = f.memory.near
	if pinned {
		f.memory.host = &farMemory{near: d.Memory(), space: f.memory.space}
	}
	if m, ok := d.(compute.Multiplier); ok {
		return &farMultiplier{farDevice: f, Multiplier: m}
	}
	return f
}

// farMultiplier multiplies rows of the host as the device below it does, so that both give the same numbers.
type farMultiplier struct {
	*farDevice
	compute.Multiplier
}

type farDevice struct {
	compute.Device
	memory *farMemory
}

func (d *farDevice) Name() string           { return "far " + d.Device.Name() }
func (d *farDevice) Memory() compute.Memory { return d.memory }

func (d *farDevice) Close() error {
	if n := len(d.memory.space.blocks); n > 0 {
		return fmt.Errorf("far: closed with %d blocks of memory allocated", n)
	}
	return d.Device.Close()
}

func (d *farDevice) Open(s compute.Shape, maxRows int) (compute.Runner, error) {
	r, err := d.Device.Open(s, maxRows)
	if err != nil {
		return nil, err
	}
	return &farRunner{Runner: r, space: d.memory.space, shape: s}, nil
}

// farRunner runs batches in the bytes behind the addresses.
type farRunner struct {
	compute.Runner
	space    *space
	shape    compute.Shape
	batch    compute.Batch
	segments []compute.Segment
	chunks   []compute.Chunk
	parts    []compute.Part
}

func (r *farRunner) Begin(b *compute.Batch) error {
	if err := b.Validate(&r.shape); err != nil {
		_ = r.Runner.Begin(b) // which fails too, and forgets the batch before
		return err
	}
	n := 0
	for i := range b.Segments {
		n += len(b.Segments[i].Chunks)
	}
	r.chunks = slices.Grow(r.chunks[:0], n)
	r.segments = append(r.segments[:0], b.Segments...)
	for i := range r.segments {
		from := len(r.chunks)
		for _, c := range r.segments[i].Chunks {
			size := r.shape.ChunkBytes(c.Tokens, c.Transient)
			bytes, err := r.space.bytes(c.Addr, size)
			if err != nil {
				return fmt.Errorf("far: segment %d: %w", i, err)
			}
			c.Addr, c.Bytes = 0, bytes
			r.chunks = append(r.chunks, c)
		}
		r.segments[i].Chunks = r.chunks[from:len(r.chunks):len(r.chunks)]
	}
	r.batch = compute.Batch{Tokens: b.Tokens, Positions: b.Positions, Segments: r.segments}
	return r.Runner.Begin(&r.batch)
}

// space has the bytes behind addresses.
type space struct {
	mu     sync.Mutex
	next   uint64
	blocks []farBlock // by address
}

type farBlock struct {
	addr uint64
	near compute.Block
}

// bytes returns n bytes at an address.
func (s *space) bytes(addr uint64, n int) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, found := slices.BinarySearchFunc(s.blocks, addr, func(b farBlock, a uint64) int {
		if b.addr < a {
			return -1
		}
		return int(min(b.addr-a, 1))
	})
	if !found {
		i--
	}
	if i < 0 || addr-s.blocks[i].addr+uint64(n) > uint64(s.blocks[i].near.Size) {
		return nil, fmt.Errorf("%d bytes at %#x are not allocated", n, addr)
	}
	at := int(addr - s.blocks[i].addr)
	return s.blocks[i].near.Bytes[at : at+n : at+n], nil
}

// farMemory is memory behind addresses: the device's, or pinned memory of its host.
type farMemory struct {
	far   bool
	near  compute.Memory // where it really is
	space *space
	host  compute.Memory
}

func (m *farMemory) Host() compute.Memory {
	if m.far {
		return m.host
	}
	return m
}

func (m *farMemory) Sizes() (free, total int64) { return 1 << 40, 1 << 40 }

func (m *farMemory) Alloc(n int) (compute.Block, error) {
	b, err := m.near.Alloc(n)
	if err != nil {
		return b, err
	}
	if n < 1<<24 { // of more, which nobody may fill, only the beginning
		fill(b.Bytes)
	} else {
		fill(b.Bytes[:1<<24])
	}
	s := m.space
	s.mu.Lock()
	defer s.mu.Unlock()
	out := compute.Block{Addr: s.next, Size: n}
	s.next += (uint64(n) + 1<<20) &^ 255
	s.blocks = append(s.blocks, farBlock{out.Addr, b})
	if !m.far {
		out.Bytes = b.Bytes
	}
	return out, nil
}

func fill(b []byte) {
	for i := range b {
		b[i] = 0xa5
	}
}

func (m *farMemory) Free(b compute.Block) {
	s := m.space
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.blocks, func(f farBlock) bool { return f.addr == b.Addr })
	if i < 0 || s.blocks[i].near.Size != b.Size {
		panic(fmt.Sprintf("far: %d bytes at %#x freed, but not allocated", b.Size, b.Addr))
	}
	m.near.Free(s.blocks[i].near)
	s.blocks = slices.Delete(s.blocks, i, i+1)
}

// see returns the bytes of a block of this memory or of its host's.
func (m *farMemory) see(b compute.Block) ([]byte, error) {
	if b.Addr != 0 {
		return m.space.bytes(b.Addr, b.Size)
	}
	if len(b.Bytes) != b.Size {
		return nil, fmt.Errorf("a block of %d bytes has %d", b.Size, len(b.Bytes))
	}
	return b.Bytes, nil
}

func (m *farMemory) Write(dst compute.Block, src []byte) error {
	b, err := m.see(dst)
	if err == nil && len(src) > len(b) {
		err = errors.New("too many")
	}
	if err != nil {
		return fmt.Errorf("far: write %d bytes to %d at %#x: %w", len(src), dst.Size, dst.Addr, err)
	}
	copy(b, src)
	return nil
}

func (m *farMemory) Read(dst []byte, src compute.Block) error {
	b, err := m.see(src)
	if err == nil && len(dst) > len(b) {
		err = errors.New("too many")
	}
	if err != nil {
		return fmt.Errorf("far: read %d bytes of %d at %#x: %w", len(dst), src.Size, src.Addr, err)
	}
	copy(dst, b)
	return nil
}

func (m *farMemory) Copy(moves ...compute.Move) error {
	for _, v := range moves {
		dst, err1 := m.see(v.Dst)
		src, err2 := m.see(v.Src)
		if err := errors.Join(err1, err2); err != nil {
			return fmt.Errorf("far: copy %#x to %#x: %w", v.Src.Addr, v.Dst.Addr, err)
		}
		v.Dst.Bytes, v.Src.Bytes = dst, src
		if err := m.near.Copy(v); err != nil {
			return fmt.Errorf("far: %w", err)
		}
	}
	return nil
}

func (m *farMemory) Zero(b compute.Block) error {
	bytes, err := m.see(b)
	if err != nil {
		return fmt.Errorf("far: zero: %w", err)
	}
	clear(bytes)
	return nil
}

// A far device runs layers of HSTU if the one behind it does.

func (r *farRunner) Sum(parts []compute.SumPart)           { r.Runner.(compute.STU).Sum(parts) }
func (r *farRunner) UVQK(layer int, w *compute.STUWeights) { r.Runner.(compute.STU).UVQK(layer, w) }
func (r *farRunner) Mix(w *compute.STUWeights)             { r.Runner.(compute.STU).Mix(w) }

// It blends if the one behind it does.

func (r *farRunner) Received(out []float32) error { return r.Runner.(compute.Blender).Received(out) }

func (r *farRunner) Place(from int, parts []compute.Part) {
	r.parts = append(r.parts[:0], parts...)
	if r.batch.CheckParts(&r.shape, parts) == nil {
		for i := range r.parts {
			c := &r.parts[i].From
			c.Bytes, _ = r.space.bytes(c.Addr, r.shape.ChunkBytes(c.Tokens, false)) // without them it is refused
			c.Addr = 0
		}
	}
	r.Runner.(compute.Blender).Place(from, r.parts)
}

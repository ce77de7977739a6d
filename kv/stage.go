package kv

import (
	"fmt"
	"sync"

	"grebe/compute"
)

// stage is a buffer of host memory between the disk and entries in memory that the host cannot see. It is
// used for one entry at a time.
type stage struct {
	mu     sync.Mutex
	memory compute.Memory
	block  compute.Block
}

const (
	// stageMost is the largest size of a stage. A larger entry is not written to disk.
	stageMost = 512 << 20
	// stageKept is the largest size that stays allocated.
	stageKept = 64 << 20
)

// take locks the stage and returns n bytes of it. The caller MUST call give, unless take returns an error.
func (g *stage) take(m compute.Memory, n int) (compute.Block, error) {
	if n > stageMost {
		return compute.Block{}, fmt.Errorf("kv: an entry of %d bytes, at most %d can be moved through the host's memory", n,
			stageMost)
	}
	g.mu.Lock()
	if g.block.Size < n {
		g.free()
		b, err := m.Alloc(max(n, 1<<20))
		if err != nil {
			g.mu.Unlock()
			return compute.Block{}, fmt.Errorf("kv: memory of the host's to move %d bytes through: %w", n, err)
		}
		g.memory, g.block = m, b
	}
	return g.block.Slice(0, n), nil
}

// give unlocks the stage. The n bytes that were used are zeroed, like all memory that held KV.
func (g *stage) give(n int) {
	clear(g.block.Bytes[:n])
	if g.block.Size > stageKept {
		g.free()
	}
	g.mu.Unlock()
}

func (g *stage) free() {
	if g.memory != nil {
		g.memory.Free(g.block)
		g.memory, g.block = nil, compute.Block{}
	}
}

// pieces returns the content of the entry's chunks, one after the other, as blocks of their exact size.
func (e *Entry) pieces() (blocks []compute.Block, size int) {
	for _, c := range e.chunks {
		b := c.run.Slice(0, e.store.shape.ChunkBytes(c.tokens, false))
		blocks = append(blocks, b)
		size += b.Size
	}
	return blocks, size
}

// visible returns the bytes of blocks, or false when the host cannot see them.
func visible(blocks []compute.Block) ([][]byte, bool) {
	out := make([][]byte, len(blocks))
	for i := range blocks {
		if out[i] = blocks[i].Bytes; out[i] == nil {
			return nil, false
		}
	}
	return out, true
}

// withPayload calls f with an entry's content.
func (s *Store) withPayload(e *Entry, f func(payload [][]byte) error) error {
	blocks, size := e.pieces()
	if bytes, ok := visible(blocks); ok {
		return f(bytes)
	}
	g, m := &s.staging[0], s.top.pool.Memory()
	b, err := g.take(m.Host(), size)
	if err != nil {
		return err
	}
	defer g.give(size)
	payload := cut(b, blocks)
	for i := range blocks {
		if err := m.Read(payload[i], blocks[i]); err != nil {
			return fmt.Errorf("kv: read %d bytes of the device's memory: %w", blocks[i].Size, err)
		}
	}
	return f(payload)
}

// cut divides the bytes of b into pieces of the sizes of blocks.
func cut(b compute.Block, blocks []compute.Block) [][]byte {
	out, at := make([][]byte, len(blocks)), 0
	for i := range blocks {
		out[i] = b.Bytes[at : at+blocks[i].Size]
		at += blocks[i].Size
	}
	return out
}

// filling is an entry whose content is being read from disk.
type filling struct {
	memory compute.Memory
	stage  *stage // nil: the host sees the entry
	blocks []compute.Block
	staged [][]byte
	size   int
}

// begin returns the memory to read into: the entry itself or the stage. The caller MUST call end.
func (f *filling) begin(s *Store, e *Entry) ([][]byte, error) {
	f.blocks, f.size = e.pieces()
	if bytes, ok := visible(f.blocks); ok {
		return bytes, nil
	}
	f.memory = s.top.pool.Memory()
	b, err := s.staging[1].take(f.memory.Host(), f.size)
	if err != nil {
		return nil, err
	}
	f.stage, f.staged = &s.staging[1], cut(b, f.blocks)
	return f.staged, nil
}

// end copies the content from the stage to the entry, if good is true.
func (f *filling) end(good bool) error {
	if f.stage == nil {
		return nil
	}
	defer f.stage.give(f.size)
	for i := range f.blocks {
		if !good {
			return nil
		}
		if err := f.memory.Write(f.blocks[i], f.staged[i]); err != nil {
			return fmt.Errorf("kv: write %d bytes of the device's memory: %w", f.blocks[i].Size, err)
		}
	}
	return nil
}

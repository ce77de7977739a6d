package rank

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"grebe/compute"
	"grebe/engine"
	"grebe/kv"
	"grebe/pool"
)

// warming computes, or fills a cache without computing: what is reused, kept and evicted is the same. The entries
// kept hold random numbers, or zeros where they are from an early part of the warm-up. So a long stream warms a
// cache up in seconds, and what follows takes the time that it takes after a real one.
type warming struct {
	runner
	on   atomic.Bool
	dry  dry
	fill *noise
}

func (w *warming) Backlog() (float64, int) {
	if w.on.Load() {
		return w.dry.Backlog()
	}
	return w.runner.Backlog()
}

func (w *warming) Do(ctx context.Context, j *engine.Job) (*engine.Result, error) {
	if !w.on.Load() {
		return w.runner.Do(ctx, j)
	}
	r, err := w.dry.Do(ctx, j)
	if err != nil {
		return nil, err
	}
	for i, e := range r.Kept {
		if e == nil || w.fill == nil {
			continue
		}
		if err := w.fill.entry(e, j.Segments[i].Entry); err != nil { // it is kept because the job says so
			return nil, err
		}
	}
	return r, nil
}

// noise is random KV.
type noise struct {
	memory compute.Memory
	shape  *compute.Shape
	block  compute.Block
	tokens int // that block has KV for
}

// longestChunk is how many tokens a chunk of a cache has at most: a user's piece, or an item.
const longestChunk = 512

func (s *system) newNoise() (*noise, error) {
	n := &noise{memory: s.device.Memory(), shape: &s.shape, tokens: longestChunk}
	var err error
	if n.block, err = n.memory.Alloc(s.shape.ChunkBytes(n.tokens, false)); err != nil {
		return nil, err
	}
	r := rand.New(rand.NewPCG(3, 4))
	data := make([]byte, n.block.Size)
	switch s.shape.KV {
	case compute.BF16: // between 1/4 and 2, of both signs
		for i := 0; i+1 < len(data); i += 2 {
			bits := r.Uint32()
			v := 0x3e80 + uint16(bits%0x180) | uint16(bits>>16)&0x8000
			data[i], data[i+1] = byte(v), byte(v>>8)
		}
	default: // of any format: zeros
	}
	return n, n.memory.Write(n.block, data)
}

func (n *noise) close() { n.memory.Free(n.block) }

// entry fills the chunks of an entry that it does not share with what was cached before.
func (n *noise) entry(e, cached *kv.Entry) error {
	var before []compute.Chunk
	if cached != nil {
		before = cached.AppendChunks(nil)
	}
	var moves []compute.Move
	for i, c := range e.AppendChunks(nil) {
		if i < len(before) && same(&before[i], &c) {
			continue
		}
		if c.Tokens > n.tokens {
			return fmt.Errorf("a chunk of %d tokens, at most %d can be filled", c.Tokens, n.tokens)
		}
		to := compute.Block{Addr: c.Addr, Bytes: c.Bytes, Size: n.shape.ChunkBytes(c.Tokens, false)}
		moves = append(moves, compute.MoveAll(to, n.block.Slice(0, to.Size)))
	}
	return n.memory.Copy(moves...)
}

func same(a, b *compute.Chunk) bool {
	if a.Bytes != nil && b.Bytes != nil {
		return &a.Bytes[0] == &b.Bytes[0]
	}
	return a.Addr == b.Addr
}

// clearPool zeroes a pool that is empty: what a device's memory holds at first need not be numbers.
func clearPool(p *pool.Pool) error {
	all, err := p.Alloc(int(p.Stats().Total))
	if err != nil {
		return err
	}
	defer p.Free(all)
	return p.Memory().Zero(all.Block)
}

// warm sends the stream's requests up to number n without computing.
func (v *variant) warm(ctx context.Context, fill *noise, n int) error {
	if v.warming == nil || v.cache == nil {
		return nil
	}
	v.warming.dry.model = v.warming.runner.Model()
	v.warming.on.Store(true)
	defer v.warming.on.Store(false)
	for i := range n {
		if i == n-n/4 {
			v.warming.fill = fill
		}
		if err := v.do(ctx, i); err != nil {
			return fmt.Errorf("warm up %s: request %d: %w", v.name, i, err)
		}
	}
	return nil
}

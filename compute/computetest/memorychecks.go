package computetest

import (
	"bytes"
	"errors"
	"fmt"

	"grebe/compute"
)

// memoryChecks hold a device's memory, and its host's, against what a plain slice would contain.
func memoryChecks() []check {
	return []check{{"memory/blocks", memoryBlocks}, {"memory/moves", memoryMoves}, {"memory/refuses", memoryRefuses}}
}

// region is a block and what must be in it.
type region struct {
	block compute.Block
	want  []byte
}

func (r random) region(m compute.Memory, n int) (*region, error) {
	b, err := m.Alloc(n)
	if err != nil {
		return nil, fmt.Errorf("allocate %d bytes: %w", n, err)
	}
	if b.Size != n || b.Addr%256 != 0 || b.Addr == 0 && len(b.Bytes) != n {
		return nil, fmt.Errorf("a block of %d bytes has size %d, address %#x and %d bytes", n, b.Size, b.Addr, len(b.Bytes))
	}
	g := &region{b, make([]byte, n)}
	for i := range g.want {
		g.want[i] = byte(r.IntN(256))
	}
	return g, m.Write(b, g.want)
}

// holds checks the content, read by m.
func (g *region) holds(m compute.Memory) error {
	got := make([]byte, len(g.want))
	if err := m.Read(got, g.block); err != nil {
		return err
	}
	for i := range got {
		if got[i] != g.want[i] {
			return fmt.Errorf("byte %d of %d is %#x, want %#x", i, len(got), got[i], g.want[i])
		}
	}
	if g.block.Bytes != nil && !bytes.Equal(g.block.Bytes, g.want) {
		return errors.New("the host sees other bytes than are read")
	}
	return nil
}

func memoryBlocks(d compute.Device) error {
	r := newRandom(1)
	m := d.Memory()
	if m.Host().Host() != m.Host() {
		return errors.New("the host's memory has another host")
	}
	for _, m := range []compute.Memory{m, m.Host()} {
		for _, n := range []int{1, 255, 256, 100_000, 3 << 20} {
			g, err := r.region(m, n)
			if err != nil {
				return err
			}
			if m == m.Host() && g.block.Bytes == nil {
				return errors.New("a block of the host's has no bytes")
			}
			at, size := n/3, n/2
			if err := m.Zero(g.block.Slice(at, size)); err != nil {
				return fmt.Errorf("zero: %w", err)
			}
			clear(g.want[at : at+size])
			if err := g.holds(m); err != nil {
				return fmt.Errorf("%d bytes, %d of them zeroed: %w", n, size, err)
			}
			part := []byte{1, 2, 3, 4, 5}[:min(5, n-at)]
			if err := m.Write(g.block.Slice(at, n-at), part); err != nil {
				return fmt.Errorf("write: %w", err)
			}
			copy(g.want[at:], part)
			if err := g.holds(m); err != nil {
				return fmt.Errorf("%d bytes, %d of them written: %w", n, len(part), err)
			}
			m.Free(g.block)
		}
	}
	return nil
}

// memoryMoves copies within and between the memories, each list of moves in its order.
func memoryMoves(d compute.Device) error {
	r := newRandom(2)
	m := d.Memory()
	var regions []*region
	for _, of := range []compute.Memory{m, m, m.Host(), m.Host()} {
		g, err := r.region(of, 20_000)
		if err != nil {
			return err
		}
		regions = append(regions, g)
	}
	for round := range 40 {
		var moves []compute.Move
		for range 1 + r.IntN(12) {
			to, from := r.IntN(len(regions)), r.IntN(len(regions)-1)
			if from >= to {
				from++
			}
			v := compute.Move{Width: r.IntN(300), Rows: r.IntN(20)}
			v.DstStride, v.SrcStride = v.Width+r.IntN(200), v.Width+r.IntN(200)
			dst, src := r.IntN(5000), r.IntN(5000)
			v.Dst = regions[to].block.Slice(dst, regions[to].block.Size-dst)
			v.Src = regions[from].block.Slice(src, regions[from].block.Size-src)
			moves = append(moves, v)
			for i := range v.Rows {
				copy(regions[to].want[dst+i*v.DstStride:][:v.Width], regions[from].want[src+i*v.SrcStride:])
			}
		}
		if err := m.Copy(moves...); err != nil {
			return fmt.Errorf("round %d: copy: %w", round, err)
		}
		for i, g := range regions {
			if err := g.holds(m); err != nil {
				return fmt.Errorf("round %d, %d moves: block %d (of the host's: %v): %w", round, len(moves), i, i > 1, err)
			}
		}
	}
	for i, g := range regions {
		if i < 2 {
			m.Free(g.block)
		} else {
			m.Host().Free(g.block)
		}
	}
	return nil
}

func memoryRefuses(d compute.Device) error {
	m := d.Memory()
	b, err := m.Alloc(1000)
	if err != nil {
		return err
	}
	defer m.Free(b)
	for name, err := range map[string]error{
		"a write of more than there is": m.Write(b, make([]byte, 1001)),
		"a read of more than there is":  m.Read(make([]byte, 1001), b),
		"a move beyond its source":      m.Copy(compute.Move{Dst: b, Src: b.Slice(500, 10), Width: 11, Rows: 1}),
		"a move beyond its destination": m.Copy(compute.Move{Dst: b.Slice(500, 10), Src: b, Width: 6, Rows: 2, DstStride: 6}),
		"a move with a negative stride": m.Copy(compute.Move{
			Dst: b.Slice(0, 10), Src: b.Slice(500, 10), Width: 1, Rows: 2, SrcStride: -1}),
		"a move of a negative number": m.Copy(compute.Move{Dst: b.Slice(0, 10), Src: b.Slice(500, 10), Width: 1, Rows: -1}),
	} {
		if err == nil {
			return fmt.Errorf("%s: no error", name)
		}
	}
	return nil
}

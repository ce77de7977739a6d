package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"grebe/compute"
	"grebe/compute/cuda/driver"
	"grebe/internal/offheap"
)

// memory is the GPU's. Copies run in a stream of their own, beside what runners compute; a batch begun
// after them waits for them on the GPU. A batch waits for mu, so nothing that takes long is done with it held.
type memory struct {
	d      *device
	host   *hostMemory
	mu     sync.Mutex
	stream *driver.Stream
	done   *driver.Event // behind the last copy
	busy   bool          // copies were started that the host has not waited for
	list   *driver.Host  // moves of launches
	listed int           // of list: moves of launches that may be under way
	args   *driver.Args

	extents []extent

	across across
}

// across copies between the host's memory and the GPU's for callers that wait. It has a stream of its own, so that no
// batch waits for what it copies: whoever needs that begins when the copy has ended.
type across struct {
	mu     sync.Mutex
	stream *driver.Stream
	copies driver.Copies
}

// hostMemory is pinned memory of the host, which kernels use in place.
type hostMemory struct {
	m      *memory
	mu     sync.Mutex
	blocks map[uint64]*driver.Host
}

// movesAtOnce are copied by one launch. The list has room for several launches: to wait for the one before would have
// each request of a batch wait for the GPU.
const (
	movesAtOnce = 4096
	movesListed = 4 * movesAtOnce
)

// move is a compute.Move as moves.cu takes it.
type move struct {
	dst, src                          uint64
	width, rows, dstStride, srcStride uint64
}

const moveBytes = int(unsafe.Sizeof(move{}))

func newMemory(d *device) (*memory, error) {
	m := &memory{d: d}
	m.host = &hostMemory{m: m, blocks: map[uint64]*driver.Host{}}
	var err error
	if m.stream, err = d.c.NewStream(); err != nil {
		return nil, err
	}
	if m.across.stream, err = d.c.NewStream(); err != nil {
		return nil, err
	}
	if m.done, err = d.c.NewEvent(false); err != nil {
		return nil, err
	}
	if m.list, err = d.c.AllocHost(movesListed * moveBytes); err != nil {
		return nil, err
	}
	m.args, err = driver.NewArgs()
	return m, err
}

func (m *memory) close() error {
	m.args.Free()
	for _, b := range m.host.blocks {
		_ = m.d.c.FreeHost(b)
	}
	_ = m.d.c.FreeHost(m.list)
	_ = m.done.Close()
	return errors.Join(m.across.stream.Close(), m.stream.Close())
}

func (m *memory) Host() compute.Memory { return m.host }

func (m *memory) Sizes() (free, total int64) {
	defer m.d.c.Leave()
	if m.d.c.Enter() != nil {
		return 0, m.d.c.Info().Memory
	}
	free, _ = m.d.c.FreeMemory() // 0 for a lost GPU
	return free, m.d.c.Info().Memory
}

func (m *memory) Alloc(n int) (compute.Block, error) {
	defer m.d.c.Leave()
	if err := m.d.c.Enter(); err != nil {
		return compute.Block{}, fmt.Errorf("cuda: %w", err)
	}
	p, err := m.d.alloc(max(n, 1))
	if err != nil {
		return compute.Block{}, fmt.Errorf("cuda: %d bytes of the GPU's memory: %w", n, err)
	}
	return compute.Block{Addr: uint64(p), Size: n}, nil
}

func (m *memory) Free(b compute.Block) { m.d.free(driver.Ptr(b.Addr)) }

// settle waits for the copies under way. The caller holds mu and is inside the context.
func (m *memory) settle() error {
	if !m.busy {
		return nil
	}
	m.busy = false
	err := m.stream.Sync()
	if err == nil {
		m.listed = 0
	}
	return err
}

// idle waits for the copies that were started so far. Others may start more meanwhile: batches begin.
func (m *memory) idle() error {
	defer m.d.c.Leave()
	if err := m.d.c.Enter(); err != nil {
		return err
	}
	return m.stream.Sync()
}

// within runs f inside the context, one at a time.
func (m *memory) within(what string, f func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer m.d.c.Leave()
	if err := m.d.c.Enter(); err != nil {
		return fmt.Errorf("cuda: %s: %w", what, err)
	}
	if err := f(); err != nil {
		return fmt.Errorf("cuda: %s: %w", what, err)
	}
	return nil
}

func (m *memory) Write(dst compute.Block, src []byte) error {
	return m.within("write to the GPU's memory", func() error {
		if len(src) > dst.Size {
			return fmt.Errorf("%d bytes to a block of %d", len(src), dst.Size)
		}
		if err := m.settle(); err != nil {
			return err
		}
		return m.d.c.Upload(driver.Ptr(dst.Addr), src)
	})
}

func (m *memory) Read(dst []byte, src compute.Block) error {
	return m.within("read the GPU's memory", func() error {
		if len(dst) > src.Size {
			return fmt.Errorf("%d bytes of a block of %d", len(dst), src.Size)
		}
		if err := m.settle(); err != nil {
			return err
		}
		return m.d.c.Download(dst, driver.Ptr(src.Addr))
	})
}

func (m *memory) Zero(b compute.Block) error {
	return m.within("zero the GPU's memory", func() error {
		m.busy = true
		if err := m.stream.Fill(driver.Ptr(b.Addr), 0, b.Size); err != nil {
			return err
		}
		return m.done.Record(m.stream)
	})
}

// fewMoves are left to the copy engine.
const fewMoves = 4

func (m *memory) Copy(moves ...compute.Move) error {
	host, crosses := false, true
	for i := range moves {
		v := &moves[i]
		if err := v.Validate(); err != nil {
			return fmt.Errorf("cuda: copy: %w", err)
		}
		host = host || v.Dst.Bytes != nil || v.Src.Bytes != nil
		crosses = crosses && (v.Dst.Bytes != nil) != (v.Src.Bytes != nil)
		if v.Dst.Addr == 0 || v.Src.Addr == 0 {
			return fmt.Errorf("cuda: copy: a block of %d or of %d bytes is not of this device", v.Dst.Size, v.Src.Size)
		}
	}
	moves = slices.DeleteFunc(slices.Clone(moves), func(v compute.Move) bool { return v.Rows == 0 || v.Width == 0 })
	if crosses && simple(moves) && !dependent(moves, nil) {
		return m.cross(moves)
	}
	return m.within("copy", func() error {
		m.busy = true
		for len(moves) > 0 {
			n := min(len(moves), movesAtOnce)
			if err := m.copy(moves[:n]); err != nil {
				return err
			}
			moves = moves[n:]
		}
		if err := m.done.Record(m.stream); err != nil || !host {
			return err
		}
		return m.settle() // the host reads and writes its bytes as it likes
	})
}

// cross makes moves between the host's memory and the GPU's, each one run of bytes, and waits for them. The copy engine
// makes them: the multiprocessors are left to batches.
func (m *memory) cross(moves []compute.Move) error {
	x := &m.across
	x.mu.Lock()
	defer x.mu.Unlock()
	defer m.d.c.Leave()
	err := m.d.c.Enter()
	if err == nil {
		err = m.await(x.stream) // blocks may have been filled
	}
	if err == nil {
		x.copies.Reset()
		for i := range moves {
			x.copies.Add(driver.Ptr(moves[i].Dst.Addr), driver.Ptr(moves[i].Src.Addr), moves[i].Width*moves[i].Rows)
		}
		err = errors.Join(x.stream.CopyAll(&x.copies), x.stream.Sync()) // what was started before a failure ends, too
	}
	if err != nil {
		return fmt.Errorf("cuda: copy: %w", err)
	}
	return nil
}

// copy starts up to movesAtOnce moves.
func (m *memory) copy(moves []compute.Move) error {
	if len(moves) <= fewMoves && simple(moves) {
		for i := range moves {
			if err := m.stream.Copy(driver.Ptr(moves[i].Dst.Addr), driver.Ptr(moves[i].Src.Addr),
				moves[i].Width*moves[i].Rows); err != nil {
				return err
			}
		}
		return nil
	}
	if len(moves) > 1 && dependent(moves, &m.extents) {
		half := len(moves) / 2
		if err := m.copy(moves[:half]); err != nil {
			return err
		}
		return m.copy(moves[half:])
	}
	f, err := m.d.kernel("moves.cu", "moves")
	if err != nil {
		return err
	}
	if m.listed+len(moves) > movesListed { // the list is read while launches run
		if err := m.stream.Sync(); err != nil {
			return err
		}
		m.listed = 0
	}
	at := m.listed * moveBytes
	m.listed += len(moves)
	list, largest := offheap.Slice[move](m.list.Bytes[at:], len(moves)), 0
	for i := range moves {
		v := &moves[i]
		list[i] = move{v.Dst.Addr, v.Src.Addr, uint64(v.Width), uint64(v.Rows), uint64(v.DstStride), uint64(v.SrcStride)}
		largest = max(largest, v.Width*v.Rows)
	}
	share := min(max(1, 2*m.d.c.Info().Processors/len(moves)), max(1, largest/4096), 256)
	return f.Launch(m.stream, driver.Launch{Grid: [3]int{len(moves), share}, Block: [3]int{256}},
		m.args.Reset().Ptr(m.list.Ptr.At(at)).Int(len(moves)))
}

// simple reports whether each move is one run of bytes.
func simple(moves []compute.Move) bool {
	for i := range moves {
		if v := &moves[i]; v.Rows != 1 && v.Rows*v.Width > 0 && (v.DstStride != v.Width || v.SrcStride != v.Width) {
			return false
		}
	}
	return true
}

// dependent reports whether a move may touch what another one writes: moves of one launch run in any
// order. room, unless it is nil, is memory that is used again.
func dependent(moves []compute.Move, room *[]extent) bool {
	var to []extent
	if room != nil {
		to = (*room)[:0]
	}
	for i := range moves {
		v := &moves[i]
		to = append(to, extent{v.Dst.Addr, v.Dst.Addr + uint64((v.Rows-1)*v.DstStride+v.Width)})
	}
	if room != nil {
		*room = to
	}
	slices.SortFunc(to, func(a, b extent) int { return cmp.Compare(a.from, b.from) })
	for i := 1; i < len(to); i++ {
		if to[i].from < to[i-1].to {
			return true
		}
	}
	for i := range moves {
		v := &moves[i]
		from, end := v.Src.Addr, v.Src.Addr+uint64((v.Rows-1)*v.SrcStride+v.Width)
		// The first one that ends behind the beginning; they do not overlap each other.
		k, _ := slices.BinarySearchFunc(to, from, func(e extent, a uint64) int { return cmp.Compare(e.to, a+1) })
		if k < len(to) && to[k].from < end {
			return true
		}
	}
	return false
}

// extent is a range of addresses.
type extent struct{ from, to uint64 }

// await makes a runner's stream wait for the copies so far. The caller is inside the context.
func (m *memory) await(s *driver.Stream) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.busy {
		return nil
	}
	return s.Wait(m.done)
}

func (h *hostMemory) Host() compute.Memory       { return h }
func (h *hostMemory) Sizes() (free, total int64) { return 0, 0 }

func (h *hostMemory) Alloc(n int) (compute.Block, error) {
	defer h.m.d.c.Leave()
	if err := h.m.d.c.Enter(); err != nil {
		return compute.Block{}, fmt.Errorf("cuda: %w", err)
	}
	b, err := h.m.d.c.AllocHost(max(n, 1))
	if err != nil {
		return compute.Block{}, fmt.Errorf("cuda: %d bytes of pinned memory: %w", n, err)
	}
	h.mu.Lock()
	h.blocks[uint64(b.Ptr)] = b
	h.mu.Unlock()
	return compute.Block{Addr: uint64(b.Ptr), Bytes: b.Bytes[:n:n], Size: n}, nil
}

func (h *hostMemory) Free(b compute.Block) {
	h.mu.Lock()
	own := h.blocks[b.Addr]
	delete(h.blocks, b.Addr)
	h.mu.Unlock()
	if own == nil {
		panic("cuda: a block freed that is none of this memory's, or freed twice")
	}
	// Copies from or to it may be under way; a lost GPU has none.
	_ = h.m.within("free pinned memory", func() error {
		_ = h.m.settle()
		return h.m.d.c.FreeHost(own)
	})
}

func (h *hostMemory) Write(dst compute.Block, src []byte) error {
	return h.m.within("write to pinned memory", func() error {
		if len(src) > dst.Size {
			return fmt.Errorf("%d bytes to a block of %d", len(src), dst.Size)
		}
		err := h.m.settle()
		copy(dst.Bytes, src)
		return err
	})
}

func (h *hostMemory) Read(dst []byte, src compute.Block) error {
	return h.m.within("read pinned memory", func() error {
		if len(dst) > src.Size {
			return fmt.Errorf("%d bytes of a block of %d", len(dst), src.Size)
		}
		err := h.m.settle()
		copy(dst, src.Bytes)
		return err
	})
}

func (h *hostMemory) Copy(moves ...compute.Move) error { return h.m.Copy(moves...) }

func (h *hostMemory) Zero(b compute.Block) error {
	err := h.m.idle()
	clear(b.Bytes)
	if err != nil {
		return fmt.Errorf("cuda: zero pinned memory: %w", err)
	}
	return nil
}

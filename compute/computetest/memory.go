package computetest

import (
	"slices"
	"sync"
	"unsafe"

	"grebe/compute"
)

// scope is a device whose memory remembers what was taken from it.
type scope struct {
	compute.Device
	memory scopedMemory
}

type scopedMemory struct {
	compute.Memory
	mu    sync.Mutex
	taken []compute.Block
}

func newScope(d compute.Device) *scope {
	return &scope{Device: d, memory: scopedMemory{Memory: d.Memory()}}
}

func (s *scope) Memory() compute.Memory { return &s.memory }

func (m *scopedMemory) Alloc(n int) (compute.Block, error) {
	b, err := m.Memory.Alloc(n)
	if err == nil {
		m.mu.Lock()
		m.taken = append(m.taken, b)
		m.mu.Unlock()
	}
	return b, err
}

func (m *scopedMemory) Free(b compute.Block) {
	m.mu.Lock()
	m.taken = slices.DeleteFunc(m.taken, func(t compute.Block) bool {
		return t.Addr == b.Addr && unsafe.SliceData(t.Bytes) == unsafe.SliceData(b.Bytes)
	})
	m.mu.Unlock()
	m.Memory.Free(b)
}

// free gives back what was not.
func (m *scopedMemory) free() {
	for _, b := range m.taken {
		m.Memory.Free(b)
	}
	m.taken = nil
}

// heap is a host's memory on the Go heap, which needs no Free.
type heap struct{ compute.Memory }

func (heap) Alloc(n int) (compute.Block, error) {
	return compute.Block{Bytes: make([]byte, n), Size: n}, nil
}

package driver

import (
	"fmt"
	"unsafe"

	"grebe/internal/offheap"
)

// Module is compiled code on a GPU.
type Module struct {
	c      *Context
	name   string
	handle uintptr
}

// Load loads machine code, as Compile returns it. name is for errors. The caller MUST Close it.
func (c *Context) Load(name string, code []byte) (*Module, error) {
	m := &Module{c: c, name: name}
	if err := c.call(cu.moduleLoad, uintptr(unsafe.Pointer(&m.handle)), uintptr(unsafe.Pointer(&code[0]))); err != nil {
		return nil, fmt.Errorf("load %s: %w", name, err)
	}
	return m, nil
}

// Close unloads the code, of which nothing may be running.
func (m *Module) Close() error { return m.c.call(cu.moduleUnload, m.handle) }

// Function is a kernel.
type Function struct {
	c      *Context
	name   string
	handle uintptr
}

// Function finds a kernel by its C name.
func (m *Module) Function(name string) (*Function, error) {
	f := &Function{c: m.c, name: name}
	if err := m.c.call(cu.moduleFunction, uintptr(unsafe.Pointer(&f.handle)), m.handle,
		uintptr(unsafe.Pointer(cString(name)))); err != nil {
		return nil, fmt.Errorf("function %s of %s: %w", name, m.name, err)
	}
	return f, nil
}

// Attributes of a function, as cuda.h numbers them.
const (
	functionStaticShared = 1
	functionLocal        = 3
	functionRegisters    = 4
	functionMaxDynamic   = 8
)

// AllowShared lets the kernel be launched with up to n bytes of dynamic shared memory.
func (f *Function) AllowShared(n int) error {
	if err := f.c.call(cu.functionSet, f.handle, functionMaxDynamic, uintptr(n)); err != nil {
		return fmt.Errorf("%d bytes of shared memory for %s: %w", n, f.name, err)
	}
	return nil
}

// Resources are what the compiler gave a kernel.
type Resources struct {
	Registers int // per thread
	Local     int // bytes of stack and spills per thread
	Shared    int // bytes of static shared memory per block
}

// Resources asks for them.
func (f *Function) Resources() (Resources, error) {
	var v [3]int32
	for i, a := range []uintptr{functionRegisters, functionLocal, functionStaticShared} {
		if err := f.c.call(cu.functionGet, uintptr(unsafe.Pointer(&v[i])), a, f.handle); err != nil {
			return Resources{}, err
		}
	}
	return Resources{int(v[0]), int(v[1]), int(v[2])}, nil
}

// Occupancy returns how many blocks fit a multiprocessor.
func (f *Function) Occupancy(threads, shared int) (int, error) {
	var n int32
	err := f.c.call(cu.occupancy, uintptr(unsafe.Pointer(&n)), f.handle, uintptr(threads), uintptr(shared))
	return int(n), err
}

// Launch says how a kernel is launched. Zero sizes count as 1.
type Launch struct {
	Grid    [3]int
	Block   [3]int
	Shared  int // bytes of dynamic shared memory
	Cluster int // blocks along the first axis that share their memory; 0: none
	// Overlap lets the kernel start before the one ahead of it in the stream has finished: it MUST
	// wait (griddepcontrol.wait) before it touches what that one writes.
	Overlap bool
}

// Args holds the parameters of a launch outside the Go heap. The driver copies them during the
// launch, so that one Args serves one launch after the other; it is for one goroutine at a time.
type Args struct {
	block  *offheap.Block
	slots  []uint64 // addresses of the values, then the configuration, then the values
	count  int
	values int // next free word
}

const (
	maxArgs     = 32
	configWords = 7
	attrWords   = 9 // of one launch attribute
	configAt    = maxArgs
	attrsAt     = configAt + configWords + 1
	valuesAt    = 64
	argWords    = 512
)

// NewArgs returns room for the parameters of one launch. The caller MUST Free it.
func NewArgs() (*Args, error) {
	b, err := offheap.Alloc(argWords * 8)
	if err != nil {
		return nil, err
	}
	return (&Args{block: b, slots: offheap.Slice[uint64](b.Bytes, argWords)}).Reset(), nil
}

// Free gives the memory back.
func (a *Args) Free() { a.block.Free() }

// Reset forgets the parameters.
func (a *Args) Reset() *Args {
	a.count, a.values = 0, valuesAt
	return a
}

// address returns where word i of the block lies.
func (a *Args) address(i int) uintptr { return uintptr(unsafe.Pointer(&a.slots[i])) }

// add takes words for a value, aligned to as many bytes as align words have.
func (a *Args) add(words, align int) []uint64 {
	at := (a.values + align - 1) / align * align
	a.slots[:maxArgs][a.count] = uint64(a.address(at))
	a.count++
	a.values = at + words
	return a.slots[at:a.values]
}

// Ptr adds an address.
func (a *Args) Ptr(p Ptr) *Args { a.add(1, 1)[0] = uint64(p); return a }

// Int adds an int of 32 bits.
func (a *Args) Int(v int) *Args { a.add(1, 1)[0] = uint64(uint32(int32(v))); return a }

// Int64 adds a long of 64 bits.
func (a *Args) Int64(v int64) *Args { a.add(1, 1)[0] = uint64(v); return a }

// Float adds a float of 32 bits.
func (a *Args) Float(v float32) *Args {
	*(*float32)(unsafe.Pointer(&a.add(1, 1)[0])) = v
	return a
}

// Map adds a tensor map, which the kernel takes as a __grid_constant__ parameter.
func (a *Args) Map(m *TensorMap) *Args { copy(a.add(tensorMapWords, 8), m.words[:]); return a }

// Launch attributes, as cuda.h numbers them.
const (
	attributeCluster = 4
	attributeOverlap = 6
)

// Launch puts the kernel into the stream.
func (f *Function) Launch(s *Stream, l Launch, a *Args) error {
	word := func(lo, hi int) uint64 { return uint64(uint32(max(lo, 1))) | uint64(uint32(max(hi, 1)))<<32 }
	n := 0
	attribute := func(id, lo, hi uint64) {
		at := a.slots[attrsAt+n*attrWords:][:attrWords]
		clear(at)
		at[0], at[1], at[2] = id, lo, hi
		n++
	}
	if l.Cluster > 1 {
		attribute(attributeCluster, uint64(l.Cluster)|1<<32, 1)
	}
	if l.Overlap {
		attribute(attributeOverlap, 1, 0)
	}
	c := a.slots[configAt:][:configWords]
	c[0], c[1], c[2] = word(l.Grid[0], l.Grid[1]), word(l.Grid[2], l.Block[0]), word(l.Block[1], l.Block[2])
	c[3], c[4], c[5], c[6] = uint64(uint32(l.Shared)), uint64(s.handle), uint64(a.address(attrsAt)), uint64(n)
	if a.count < maxArgs {
		a.slots[a.count] = 0 // ends the list for a Hook: the driver knows how many there are
	}
	if err := f.c.hot(&cu.launch, a.address(configAt), f.handle, a.address(0), 0); err != nil {
		return fmt.Errorf("launch %s with %+v: %w", f.name, l, err)
	}
	return nil
}

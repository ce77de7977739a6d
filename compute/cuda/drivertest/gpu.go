// Package drivertest simulates a GPU below package driver, so that tests of what uses the driver run on machines
// without one.
//
// Memory is real: copies move bytes. A kernel does what the test registered for its name, or nothing. Streams run as
// late as they can: an operation is executed when something waits for it, in the order that streams and events
// prescribe, and not before. So whoever forgets to wait reads what was there before, and Pending says what may still be
// under way.
//
// Every call can be made to fail, which tests use to fail each one in turn.
package drivertest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"grebe/compute/cuda/driver"
	"grebe/internal/offheap"
)

// GPU is a simulated one. Its methods are for one goroutine, but for Bytes, which is for kernels. The driver's calls
// may come from several, such as those of finalizers.
type GPU struct {
	// Name is the device's, and MPS whether its contexts are shared through MPS.
	Name string
	MPS  bool
	// Kernels are executed for launches, by the C name of the kernel.
	Kernels map[string]func(*Launch)
	// Fail, if it is not nil, is asked ahead of each call: a code other than 0 makes the call fail with it.
	Fail func(call string) int32
	// Launched are the names of the kernels that were executed, and of copies, fills and products.
	Launched []string
	// Errors are what calls did wrong: addresses that are nobody's.
	Errors []string

	memory   []*region // by address
	streams  map[uintptr]*stream
	events   map[uintptr]*event
	graphs   map[uintptr]*graph
	programs map[uintptr]*program
	modules  map[uintptr]*program
	kernels  map[uintptr]*kernel
	others   map[uintptr]string // the matrix library's objects
	next     uintptr
	undo     func()
	mu       sync.Mutex // held during calls
}

// Launch is a kernel's launch.
type Launch struct {
	Name    string
	Defines map[string]string
	Grid    [3]int
	Args    []uint64 // a 64-bit word each; of a tensor map, the first
}

type region struct {
	base  uintptr
	block *offheap.Block
	host  bool
}

func (r *region) end() uintptr { return r.base + uintptr(len(r.block.Bytes)) }

// find returns where the region that begins at an address is, or would be.
func (g *GPU) find(base uintptr) (int, bool) {
	return slices.BinarySearchFunc(g.memory, base, func(r *region, at uintptr) int { return cmp.Compare(r.base, at) })
}

type kernel struct {
	name string
	of   *program
}

type program struct {
	name    string
	options []string
}

// op is one operation of a stream.
type op struct {
	name   string
	run    func()
	wait   uintptr // an event to wait for
	marker *marker // of that, when the operation was put into a stream
	record uintptr // an event to record
}

type stream struct {
	ops      []op
	done     int
	captures *graph
}

// marker is a point in a stream.
type marker struct {
	s  *stream
	at int // operations before it
}

type event struct{ last *marker }

type graph struct{ ops []op }

// New replaces the libraries of package driver by a simulation. The caller MUST Close it.
func New() *GPU {
	g := &GPU{Name: "simulated", Kernels: map[string]func(*Launch){}, streams: map[uintptr]*stream{0: {}},
		events: map[uintptr]*event{}, graphs: map[uintptr]*graph{}, programs: map[uintptr]*program{},
		modules: map[uintptr]*program{}, kernels: map[uintptr]*kernel{}, others: map[uintptr]string{}, next: 1 << 8}
	g.undo = driver.SetHook(func(call string, args []uintptr, _ func() int32) int32 {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.Fail != nil {
			if code := g.Fail(call); code != 0 {
				if call == "cuStreamEndCapture" { // which ends it all the same
					g.streams[args[0]].captures = nil
				}
				return code
			}
		}
		return g.call(call, args)
	}, true)
	return g
}

// Close gives the simulation's memory back, and package driver its libraries.
func (g *GPU) Close() {
	g.undo()
	for _, r := range g.memory {
		r.block.Free()
	}
}

// Pending returns the operations that were started and that nothing has waited for, but for those of the default
// stream: calls that use it wait by themselves.
func (g *GPU) Pending() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []string
	for _, k := range slices.Sorted(maps.Keys(g.streams)) {
		s := g.streams[k]
		if k == 0 {
			continue
		}
		for _, o := range s.ops[s.done:] {
			if o.run != nil {
				out = append(out, o.name)
			}
		}
	}
	return out
}

// Held returns what was created and not given back: blocks of memory, streams and so on.
func (g *GPU) Held() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []string
	for _, r := range g.memory {
		out = append(out, fmt.Sprintf("memory of %d bytes", len(r.block.Bytes)))
	}
	for k, n := range map[string]int{"stream": len(g.streams) - 1, "event": len(g.events), "graph": len(g.graphs),
		"program": len(g.programs), "module": len(g.modules)} {
		for range n {
			out = append(out, k)
		}
	}
	for _, k := range g.others {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// Bytes views n bytes at an address, or returns nil and notes an error where not all of them are memory.
func (g *GPU) Bytes(addr uint64, n int) []byte {
	i, _ := slices.BinarySearchFunc(g.memory, uintptr(addr),
		func(r *region, at uintptr) int { return cmp.Compare(r.end(), at+1) })
	if i < len(g.memory) {
		r := g.memory[i]
		if off := int(uintptr(addr) - r.base); uintptr(addr) >= r.base && n <= len(r.block.Bytes)-off {
			return r.block.Bytes[off : off+n]
		}
	}
	g.wrong("%d bytes at %#x are nobody's", n, addr)
	return nil
}

func (g *GPU) wrong(format string, args ...any) {
	g.Errors = append(g.Errors, fmt.Sprintf(format, args...))
}

func (g *GPU) handle() uintptr {
	g.next += 8
	return g.next
}

// set writes a value where a call wants it.
func set[T any](to uintptr, v T) { *(*T)(*(*unsafe.Pointer)(unsafe.Pointer(&to))) = v }

func get[T any](from uintptr) T { return *(*T)(*(*unsafe.Pointer)(unsafe.Pointer(&from))) }

func text(from uintptr) string {
	var b strings.Builder
	for ; get[byte](from) != 0; from++ {
		b.WriteByte(get[byte](from))
	}
	return b.String()
}

// Codes of the driver.
const (
	invalid   = 1
	badHandle = 400
)

// drain executes a stream's operations up to a point, and what they wait for.
func (g *GPU) drain(s *stream, to int) {
	for s.done < to {
		o := &s.ops[s.done]
		if o.marker != nil {
			g.drain(o.marker.s, o.marker.at)
		}
		s.done++
		if o.run != nil {
			g.Launched = append(g.Launched, o.name)
			o.run()
		}
	}
}

func (g *GPU) drainAll() {
	for _, k := range slices.Sorted(maps.Keys(g.streams)) {
		g.drain(g.streams[k], len(g.streams[k].ops))
	}
}

// put adds an operation to a stream, or to what it captures.
func (g *GPU) put(handle uintptr, o op) int32 {
	s := g.streams[handle]
	if s == nil {
		g.wrong("%s: no stream %#x", o.name, handle)
		return badHandle
	}
	if s.captures != nil {
		s.captures.ops = append(s.captures.ops, o)
		return 0
	}
	if o.wait != 0 {
		o.marker = g.events[o.wait].last
	}
	s.ops = append(s.ops, o)
	if o.record != 0 {
		g.events[o.record].last = &marker{s, len(s.ops)}
	}
	return 0
}

// copyOp copies n bytes.
func (g *GPU) copyOp(dst, src uintptr, n uintptr) op {
	return op{name: "copy", run: func() {
		to, from := g.Bytes(uint64(dst), int(n)), g.Bytes(uint64(src), int(n))
		if to != nil && from != nil {
			copy(to, from)
		}
	}}
}

// known notes an error unless the bytes at an address are memory.
func (g *GPU) known(addr, n uintptr) bool { return g.Bytes(uint64(addr), int(n)) != nil }

package driver

import (
	"fmt"
	"runtime"
	"unsafe"
)

// copyBatch is the driver's call for many copies at once, which those before CUDA 12.8 do not have.
var copyBatch = symbol{name: "cuMemcpyBatchAsync"}

// Copies are copies between memory of the GPU and pinned memory that are started together. The zero value is none.
type Copies struct {
	to, from, bytes []uintptr

	call *copyCall // of all calls, so that they take no memory
}

// copyCall is what a call needs besides.
type copyCall struct {
	attributes    copyAttributes
	first, failed uintptr
}

// Reset forgets the copies.
func (c *Copies) Reset() { c.to, c.from, c.bytes = c.to[:0], c.from[:0], c.bytes[:0] }

// Len returns how many there are.
func (c *Copies) Len() int { return len(c.to) }

// Add adds a copy of n bytes, more than none.
func (c *Copies) Add(dst, src Ptr, n int) {
	c.to, c.from, c.bytes = append(c.to, uintptr(dst)), append(c.from, uintptr(src)), append(c.bytes, uintptr(n))
}

// copyAttributes is CUmemcpyAttributes: what the copies of a call have in common.
type copyAttributes struct {
	order  int32 // in which sources are read
	source [2]int32
	target [2]int32
	flags  uint32
}

const (
	orderOfStream = 1 // sources are read in the stream's order
	beside        = 1 // what computes
)

// CopyAll puts the copies into the stream, which go in any order among themselves.
func (s *Stream) CopyAll(c *Copies) error {
	n := c.Len()
	if n == 0 {
		return nil
	}
	if copyBatch.addr == 0 {
		for i := range n {
			if err := s.Copy(Ptr(c.to[i]), Ptr(c.from[i]), int(c.bytes[i])); err != nil {
				return err
			}
		}
		return nil
	}
	if c.call == nil {
		c.call = new(copyCall)
	}
	v := c.call
	*v = copyCall{attributes: copyAttributes{order: orderOfStream, flags: beside}}
	// All that the arguments point to is on the heap, and stays where it is.
	err := s.c.hot(&copyBatch, uintptr(unsafe.Pointer(&c.to[0])), uintptr(unsafe.Pointer(&c.from[0])),
		uintptr(unsafe.Pointer(&c.bytes[0])), uintptr(n),
		uintptr(unsafe.Pointer(&v.attributes)), uintptr(unsafe.Pointer(&v.first)), 1, uintptr(unsafe.Pointer(&v.failed)),
		s.handle)
	runtime.KeepAlive(c)
	if err != nil {
		i := min(int(v.failed), n-1)
		return fmt.Errorf("copy %d of %d, %d bytes from %#x to %#x: %w", i, n, c.bytes[i], c.from[i], c.to[i], err)
	}
	return nil
}

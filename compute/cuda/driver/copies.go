package driver

import (
	"fmt"
	"unsafe"
)

// copyBatch is the driver's call for many copies at once, which those before CUDA 12.8 do not have.
var copyBatch = symbol{name: "cuMemcpyBatchAsync"}

// Copies are copies between memory of the GPU and pinned memory that are started together. The zero value is none.
type Copies struct {
	to, from, bytes []uintptr
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
	attributes, first, failed := copyAttributes{order: orderOfStream, flags: beside}, uintptr(0), uintptr(0)
	err := s.c.call(copyBatch, uintptr(unsafe.Pointer(&c.to[0])), uintptr(unsafe.Pointer(&c.from[0])), uintptr(unsafe.Pointer(&c.bytes[0])), uintptr(n),
		uintptr(unsafe.Pointer(&attributes)), uintptr(unsafe.Pointer(&first)), 1, uintptr(unsafe.Pointer(&failed)), s.handle)
	if err != nil {
		i := min(int(failed), n-1)
		return fmt.Errorf("copy %d of %d, %d bytes from %#x to %#x: %w", i, n, c.bytes[i], c.from[i], c.to[i], err)
	}
	return nil
}

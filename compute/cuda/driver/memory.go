package driver

import "unsafe"

// Ptr is an address in a GPU's memory, or in pinned host memory as the GPU sees it.
type Ptr uintptr

// At returns the address n bytes further on.
func (p Ptr) At(n int) Ptr { return p + Ptr(n) }

// FreeMemory says how many bytes of the GPU's memory are free.
func (c *Context) FreeMemory() (int64, error) {
	var free, total uint64
	err := c.call(cu.memoryInfo, uintptr(unsafe.Pointer(&free)), uintptr(unsafe.Pointer(&total)))
	return int64(free), err
}

// Alloc takes n bytes of the GPU's memory, aligned to 256. Their content is undefined. The caller
// MUST Free them. No bytes are the address 0.
func (c *Context) Alloc(n int) (Ptr, error) {
	if n == 0 {
		return 0, nil
	}
	var p uintptr
	err := c.call(cu.memoryAlloc, uintptr(unsafe.Pointer(&p)), uintptr(n))
	return Ptr(p), err
}

// Free gives memory back, after the work under way on the GPU. The address 0 is ignored.
func (c *Context) Free(p Ptr) error {
	if p == 0 {
		return nil
	}
	return c.call(cu.memoryFree, uintptr(p))
}

// Host is pinned memory of the host, outside the Go heap. The GPU sees it at Ptr and copies from
// and to it run beside the host.
type Host struct {
	Bytes []byte
	Ptr   Ptr
}

// AllocHost takes n bytes of pinned memory. The caller MUST FreeHost them.
func (c *Context) AllocHost(n int) (*Host, error) {
	if n == 0 {
		return &Host{}, nil
	}
	const portable, mapped = 1, 2
	var p uintptr
	if err := c.call(cu.hostAlloc, uintptr(unsafe.Pointer(&p)), uintptr(n), portable|mapped); err != nil {
		return nil, err
	}
	// With unified addressing, which every 64-bit system has, the GPU uses the host's address.
	return &Host{Bytes: unsafe.Slice((*byte)(pointer(p)), n), Ptr: Ptr(p)}, nil
}

// FreeHost gives pinned memory back. Nothing may use its bytes afterwards.
func (c *Context) FreeHost(h *Host) error {
	if h == nil || h.Ptr == 0 {
		return nil
	}
	p := h.Ptr
	h.Bytes, h.Ptr = nil, 0
	return c.call(cu.hostFree, uintptr(p))
}

// Upload copies any host memory to the GPU and returns when it is there.
func (c *Context) Upload(dst Ptr, src []byte) error {
	if len(src) == 0 {
		return nil
	}
	if err := c.call(cu.copyToDevice, uintptr(dst), uintptr(unsafe.Pointer(&src[0])), uintptr(len(src))); err != nil {
		return err
	}
	return c.call(cu.streamSync, 0) // the copy may lag behind the call, and other streams do not wait for it
}

// Download waits for the GPU's work on the default stream and copies from the GPU to any host memory.
func (c *Context) Download(dst []byte, src Ptr) error {
	if len(dst) == 0 {
		return nil
	}
	return c.call(cu.copyToHost, uintptr(unsafe.Pointer(&dst[0])), uintptr(src), uintptr(len(dst)))
}

// Zero clears n bytes and returns when that is done.
func (c *Context) Zero(p Ptr, n int) error {
	if n == 0 {
		return nil
	}
	if err := c.hot(&cu.set8Async, uintptr(p), 0, uintptr(n), 0); err != nil {
		return err
	}
	return c.call(cu.streamSync, 0)
}

// Copy copies n bytes in the stream's order. Both addresses may be of the GPU or of pinned memory.
func (s *Stream) Copy(dst, src Ptr, n int) error {
	if n == 0 {
		return nil
	}
	return s.c.hot(&cu.copyAsync, uintptr(dst), uintptr(src), uintptr(n), s.handle)
}

// Fill sets n bytes in the stream's order.
func (s *Stream) Fill(dst Ptr, value byte, n int) error {
	if n == 0 {
		return nil
	}
	return s.c.hot(&cu.set8Async, uintptr(dst), uintptr(value), uintptr(n), s.handle)
}

// Fill32 sets n words of 32 bits in the stream's order.
func (s *Stream) Fill32(dst Ptr, value uint32, n int) error {
	if n == 0 {
		return nil
	}
	return s.c.hot(&cu.set32Async, uintptr(dst), uintptr(value), uintptr(n), s.handle)
}

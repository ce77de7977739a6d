// Package offheap gives memory outside the Go heap, for weights, activations and KV: the garbage
// collector never scans, moves or counts it.
package offheap

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"unsafe"
)

const hugePage = 2 << 20

// Block is a piece of memory outside the heap, zeroed at first. Its owner MUST Free it.
type Block struct {
	Bytes  []byte // aligned to 4 KiB, to 2 MiB when that large
	mapped []byte
}

var mapped atomic.Int64

// Mapped returns the bytes of all blocks that are not freed yet, touched or not.
func Mapped() int64 { return mapped.Load() }

// Alloc maps n bytes, backed by huge pages where n is large and the system has them.
func Alloc(n int) (*Block, error) {
	if n <= 0 {
		return &Block{}, nil
	}
	size := n
	if n >= hugePage {
		size += hugePage
	}
	m, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE|noReserve)
	if err != nil {
		return nil, fmt.Errorf("offheap: map %d bytes: %w", n, err)
	}
	mapped.Add(int64(len(m)))
	b := &Block{Bytes: m[:n:n], mapped: m}
	if n >= hugePage {
		skip := int(-uintptr(unsafe.Pointer(&m[0])) & (hugePage - 1))
		b.Bytes = m[skip : skip+n : skip+n]
		adviseHuge(b.Bytes)
	}
	return b, nil
}

// Free unmaps the block. Nothing may use its bytes afterwards.
func (b *Block) Free() {
	if b.mapped != nil {
		mapped.Add(-int64(len(b.mapped)))
		_ = syscall.Munmap(b.mapped) // fails only for addresses that Alloc did not return
		b.mapped, b.Bytes = nil, nil
	}
}

// Discard gives the memory back to the system and keeps the addresses: the bytes are zero, or
// undefined where the system cannot, when they are next used.
func (b *Block) Discard() {
	if len(b.Bytes) > 0 {
		discard(b.Bytes)
	}
}

// Slice views bytes as n values of T, which must fit and be aligned.
func Slice[T any](bytes []byte, n int) []T {
	if n == 0 {
		return nil
	}
	var v T
	if uintptr(n)*unsafe.Sizeof(v) > uintptr(len(bytes)) {
		panic(fmt.Sprintf("offheap: %d values of %d bytes in %d bytes", n, unsafe.Sizeof(v), len(bytes)))
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&bytes[0])), n)
}

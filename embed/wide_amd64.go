//go:build !noasm

package embed

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

var hasAVX2, hasAVX512 = cpu.X86.HasAVX2, cpu.X86.HasAVX512F

// prefetch asks for n bytes of memory that are about to be read. It changes nothing.
//
//go:noescape
func prefetch(p unsafe.Pointer, n int)

// prefetchFar asks for memory that is read a little later, into a larger cache.
//
//go:noescape
func prefetchFar(p unsafe.Pointer, n int)

// prefetchWrite asks for memory that is about to be written.
//
//go:noescape
func prefetchWrite(p unsafe.Pointer, n int)

// match32 returns a bit per tag of 64 that is equal.
//
//go:noescape
func match32(tags unsafe.Pointer, tag uint64) uint64

// match returns a bit per slot that has the tag.
func (s *set) match(tag uint64) uint64 {
	if hasAVX2 {
		return match32(unsafe.Pointer(&s.tags), tag)
	}
	return s.matchWords(tag)
}

// copyWide copies n bytes, a multiple of 512.
//
//go:noescape
func copyWide(dst, src unsafe.Pointer, n int)

// copyBytes is copy for rows from memory that is far.
func copyBytes(dst, src []byte) {
	if n := len(src); hasAVX512 && n > 0 && n%512 == 0 && len(dst) >= n {
		copyWide(unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(src)), n)
		return
	}
	copy(dst, src)
}

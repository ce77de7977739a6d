//go:build noasm || !amd64

package embed

import "unsafe"

// prefetch is a hint that not every build can give.
func prefetch(unsafe.Pointer, int) {}

func prefetchFar(unsafe.Pointer, int)   {}
func prefetchWrite(unsafe.Pointer, int) {}

// match returns a bit per slot that has the tag.
func (s *set) match(tag uint64) uint64 { return s.matchWords(tag) }

func copyBytes(dst, src []byte) { copy(dst, src) }

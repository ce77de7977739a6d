//go:build !race

package embed

import (
	"sync/atomic"
	"unsafe"
)

// This processor keeps the order of loads and that of stores: what is copied between two reads of a version
// was read between them. The race detector cannot know that; its builds copy by atomic words.

func copyRow(dst, src []byte)  { copyBytes(dst, src) }
func writeRow(dst, src []byte) { copyBytes(dst, src) }

// bump adds one to a version that only the caller changes. It does not wait for the stores before it, as an atomic
// addition would: others see it after them all the same.
//
//go:noinline
func bump(p *atomic.Uint32) { *(*uint32)(unsafe.Pointer(p))++ }

// mark stores a stamp without waiting for the stores before it, as an atomic one would: the row's copy.
func mark(p *atomic.Uint64, m uint64) { *(*uint64)(unsafe.Pointer(p)) = m }

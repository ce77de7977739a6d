//go:build race || !amd64

package embed

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// Words are loaded and stored atomically: the race detector then knows that readers check the version
// afterwards, and on processors that reorder loads the check comes last.

func copyRow(dst, src []byte) {
	for i := range words(src) {
		binary.NativeEndian.PutUint64(dst[i*8:], atomic.LoadUint64(&words(src)[i]))
	}
}

func writeRow(dst, src []byte) {
	for i := range words(dst) {
		atomic.StoreUint64(&words(dst)[i], binary.NativeEndian.Uint64(src[i*8:]))
	}
}

// words returns a cached row, whose beginning is aligned, as words.
func words(row []byte) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(row))), len(row)/8)
}

// bump adds one to a version.
func bump(p *atomic.Uint32) { p.Add(1) }

// mark stores a stamp.
func mark(p *atomic.Uint64, m uint64) { p.Store(m) }

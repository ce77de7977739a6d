//go:build !noasm

package embed

import "unsafe"

// prefetch asks for n bytes of memory that are about to be read. It changes nothing.
//
//go:noescape
func prefetch(p unsafe.Pointer, n int)

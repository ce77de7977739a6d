//go:build noasm || !amd64

package embed

import "unsafe"

// prefetch is a hint that not every build can give.
func prefetch(unsafe.Pointer, int) {}

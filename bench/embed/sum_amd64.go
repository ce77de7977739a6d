//go:build !noasm

package embed

import "golang.org/x/sys/cpu"

// addRows makes out[0:128] the sum of n ≥ 1 rows of 128 floats.
//
//go:noescape
func addRows(out, rows *float32, n int)

var hasAddRows = cpu.X86.HasAVX512F

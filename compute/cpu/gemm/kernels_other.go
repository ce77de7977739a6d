//go:build !amd64 || noasm

package gemm

import (
	"unsafe"

	"grebe/compute"
	"grebe/compute/cpu/internal/feature"
)

// assembly returns nil: this build has plain kernels only.
func assembly(feature.Level, compute.DType) *kernels { return nil }

// convertRow and convertRows are for tiles, which plain kernels do not use.
func convertRow(int, unsafe.Pointer, unsafe.Pointer) { panic("gemm: no tiles without AMX") }

func convertRows(int, int, unsafe.Pointer, int, unsafe.Pointer) { panic("gemm: no tiles without AMX") }

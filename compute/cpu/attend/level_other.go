//go:build !amd64 || noasm

package attend

import (
	"grebe/compute"
	"grebe/compute/cpu/internal/feature"
)

func kernelsFor(_ feature.Level, kv compute.DType, _ int) *kernels {
	return float32Kernels(kv, plainParts)
}

func pointwiseKernels(_ feature.Level, kv compute.DType, _ int) *kernels {
	k := float32Kernels(kv, plainParts)
	k.walk = pointwiseParts.walk
	return k
}

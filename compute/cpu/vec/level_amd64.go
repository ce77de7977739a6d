//go:build !noasm

package vec

import "grebe/compute/cpu/internal/feature"

func kernelsFor(l feature.Level) *kernels {
	switch l {
	case feature.AMX, feature.AVX512:
		return &avx512
	case feature.AVX2:
		return &avx2
	}
	return nil
}

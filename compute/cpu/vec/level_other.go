//go:build !amd64 || noasm

package vec

import "grebe/compute/cpu/internal/feature"

func kernelsFor(feature.Level) *kernels { return nil }

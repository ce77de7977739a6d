//go:build !noasm

package attend

import (
	"grebe/compute"
	"grebe/compute/cpu/internal/feature"
)

func kernelsFor(l feature.Level, kv compute.DType) *kernels {
	switch {
	case l == feature.AMX && kv == compute.BF16:
		return &kernels{
			size: 2, dimStep: 32, keyStep: 32,
			pack: packAMX, loadQ: loadQAMX, walk: walkAMX, storeO: storeOAVX512,
		}
	case l >= feature.AVX512:
		k := float32Kernels(kv, float32Parts{productAVX512, softmaxAVX512, rescaleAVX512})
		k.pack, k.loadQ, k.storeO = packF32AVX512, loadQAVX512, storeOAVX512
		if kv == compute.BF16 {
			k.pack = packBF16AVX512
		}
		return k
	case l == feature.AVX2:
		return float32Kernels(kv, float32Parts{productAVX2, softmaxAVX2, rescaleAVX2})
	}
	return float32Kernels(kv, plainParts)
}

// walkKeys bounds one call of assembly, which the runtime cannot interrupt, to about 10 µs.
const walkKeys = 4 * blockKeys

func walkAMX(w *walk) {
	for left := w.keys; left > 0; left -= walkKeys {
		w.keys = min(left, walkKeys)
		if w.cols == 1 {
			walkAMX1(w)
			continue
		}
		walkAMX2(w)
	}
}

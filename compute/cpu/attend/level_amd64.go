//go:build !noasm

package attend

import (
	"unsafe"

	"grebe/compute"
	"grebe/compute/cpu/internal/feature"
)

func kernelsFor(l feature.Level, kv compute.DType, dims int) *kernels {
	switch {
	case l == feature.AMX && kv == compute.BF16:
		return &kernels{
			size: 2, dimStep: 32, keyStep: 32,
			pack: packAMX, loadQ: loadQAMX, walk: walkAMX, storeO: storeOAVX512,
			scores: scoresAMX, weigh: weighAVX512,
		}
	case l >= feature.AVX512:
		k := float32Kernels(kv, float32Parts{productAVX512, softmaxAVX512, rescaleAVX512})
		k.pack, k.loadQ, k.storeO, k.weigh = packF32AVX512, loadQAVX512, storeOAVX512, weighAVX512
		if kv == compute.BF16 {
			k.pack = packBF16AVX512
		}
		return k
	case l == feature.AVX2:
		return avx2Kernels(float32Kernels(kv, float32Parts{productAVX2, softmaxAVX2, rescaleAVX2}), kv, dims)
	}
	return float32Kernels(kv, plainParts)
}

// pointwiseKernels are the kernels without a softmax.
func pointwiseKernels(l feature.Level, kv compute.DType, dims int) *kernels {
	k := kernelsFor(l, kv, dims)
	switch {
	case l == feature.AMX && kv != compute.F32:
		k.walk = pointAMX
	case l >= feature.AVX512:
		k.walk = (&float32Parts{productAVX512, pointwiseAVX512, rescaleAVX512}).walk
	case l == feature.AVX2:
		k.walk = (&float32Parts{productAVX2, pointwiseAVX2, rescaleAVX2}).walk
	default:
		k.walk = pointwiseParts.walk
	}
	return k
}

// pointAMX is walkAMX with pointwise kernels, and a window: the keys before closed come first, then whole
// blocks that all lanes see, then the rest.
func pointAMX(w *walk) {
	left := w.keys
	step, pipe := pointAMX2, pointPipeFor(w.dims)
	if w.cols == 1 {
		step, pipe = pointAMX1, nil
	}
	if pipe == nil {
		step(w)
		return
	}
	if edge := min(left, roundUp(max(0, w.closed-w.first), blockKeys)); edge > 0 {
		w.keys, left = edge, left-edge
		step(w)
	}
	if whole := min(left, w.open-w.first) / blockKeys * blockKeys; whole > 0 {
		if w.started == 0 {
			clear(unsafe.Slice((*float32)(w.o), w.dims*lanes)) // the pipe always adds
		}
		w.keys, left = whole, left-whole
		pipe(w)
	}
	if w.keys = left; left > 0 {
		step(w)
	}
}

func pointPipeFor(dims int) func(*walk) {
	switch dims {
	case 64:
		return pointPipeAMX64
	case 128:
		return pointPipeAMX128
	}
	return nil
}

func scoresAMX(w *walk) {
	if w.cols == 1 {
		scoresAMX1(w)
		return
	}
	scoresAMX2(w)
}

// walkAMX makes at most two calls of assembly, which the runtime cannot interrupt, of about 10 µs.
func walkAMX(w *walk) {
	left := w.keys
	step, pipe := walkAMX2, pipeFor(w.dims)
	if w.cols == 1 {
		step, pipe = walkAMX1, nil
	}
	if whole := min(left, w.open-w.first) / blockKeys * blockKeys; pipe != nil && whole > 0 {
		if w.started == 0 {
			clear(unsafe.Slice((*float32)(w.o), w.dims*lanes)) // the pipe always adds
		}
		w.keys, left = whole, left-whole
		pipe(w)
	}
	if w.keys = left; left > 0 {
		step(w)
	}
}

// pipeFor returns the kernel for two columns of heads of a common size, or nil.
func pipeFor(dims int) func(*walk) {
	switch dims {
	case 64:
		return pipeAMX64
	case 128:
		return pipeAMX128
	}
	return nil
}

// avx2Kernels replaces the parts of k that have a kernel for heads of dims.
func avx2Kernels(k *kernels, kv compute.DType, dims int) *kernels {
	if dims%k.dimStep != 0 {
		return k
	}
	k.pack, k.loadQ, k.storeO = pack8F32, loadQ8, storeO8
	if kv == compute.BF16 {
		k.pack = pack8BF16
	}
	return k
}

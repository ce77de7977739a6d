//go:build !noasm

package attend

import (
	"math"
	"unsafe"

	"grebe/compute"
	"grebe/compute/cpu/internal/feature"
)

// tileConfig configures eight tiles of 16 rows of 64 bytes.
var tileConfig = func() (c [64]byte) {
	c[0] = 1
	for i := range 8 {
		c[16+2*i], c[48+i] = 64, 16
	}
	return
}()

// interleave orders two halves of 16 words as pairs.
var interleave = func() (c [32]uint16) {
	for i := range 16 {
		c[2*i], c[2*i+1] = uint16(i), uint16(16+i)
	}
	return
}()

// exp2AVX2 has the constants of 2^t: the polynomial, the lowest t, the bias of exponents, and 1.
var exp2AVX2 = func() (c [9][8]uint32) {
	set := func(i int, v uint32) {
		for l := range c[i] {
			c[i][l] = v
		}
	}
	for i, v := range exp2Coefficients {
		set(i, math.Float32bits(v))
	}
	set(6, math.Float32bits(-127))
	set(7, 127)
	set(8, 1)
	return
}()

func kernelsFor(l feature.Level, kv compute.DType) *kernels {
	switch {
	case l == feature.AMX && kv == compute.BF16:
		return &kernels{
			size: 2, dimStep: 32, keyStep: 32,
			pack: packAMX, loadQ: loadQAMX, softmax: softmaxAMX, rescale: rescaleAVX512, storeO: storeOAVX512,
			scores: scoresAMX, values: valuesAMX,
		}
	case l >= feature.AVX512:
		k := float32Kernels(kv, productAVX512)
		k.loadQ, k.softmax, k.rescale, k.storeO = loadQAVX512, softmaxAVX512, rescaleAVX512, storeOAVX512
		k.pack = packF32AVX512
		if kv == compute.BF16 {
			k.pack = packBF16AVX512
		}
		return k
	case l == feature.AVX2:
		k := float32Kernels(kv, productAVX2)
		k.softmax, k.rescale = softmaxAVX2, rescaleAVX2
		return k
	}
	return float32Kernels(kv, productPlain)
}

func scoresAMX(s, k, q unsafe.Pointer, keys, dims, cols int) {
	if cols == 1 {
		scoresAMX1(s, k, q, keys, dims)
		return
	}
	scoresAMX2(s, k, q, keys, dims)
}

func valuesAMX(o, v, p unsafe.Pointer, keys, dims, _, cols int) {
	if cols == 1 {
		valuesAMX1(o, v, p, keys, dims)
		return
	}
	valuesAMX2(o, v, p, keys, dims)
}

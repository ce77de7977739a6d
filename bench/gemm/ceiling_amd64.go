//go:build !noasm

package gemm

const turnFLOPs = 24 * 16 * 2

// multiplyAdd runs a loop of 24 AVX-512 multiply-adds.
//
//go:noescape
func multiplyAdd(turns int)

//go:build !amd64 || noasm

package gemm

const turnFLOPs = 1

// multiplyAdd is never called: levels with AVX-512 need assembly.
func multiplyAdd(int) {}

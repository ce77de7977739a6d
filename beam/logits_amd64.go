//go:build !noasm

package beam

//go:noescape
func maxesAVX2(x, maxes *float32, blocks int) bool

//go:noescape
func sumsAVX2(x, maxes, sums *float32, blocks int)

//go:noescape
func weighAVX2(maxes, sums *float32, groups int, top float32) float64

// cpuid and xgetbv ask the CPU what it has, and what of it the operating system saves.
func cpuid(leaf, sub uint32) (eax, ebx, ecx, edx uint32)
func xgetbv() uint32

func pick() kernels {
	all := supported()
	return all[len(all)-1]
}

// supported returns what this CPU can run, the fastest last.
func supported() []kernels {
	const fma, osxsave, avx2, ymm = 1 << 12, 1 << 27, 1 << 5, 6
	top, _, _, _ := cpuid(0, 0)
	_, _, c, _ := cpuid(1, 0)
	if top < 7 || c&fma == 0 || c&osxsave == 0 || xgetbv()&ymm != ymm {
		return []kernels{plain}
	}
	if _, b, _, _ := cpuid(7, 0); b&avx2 == 0 {
		return []kernels{plain}
	}
	return []kernels{plain, {maxesAVX2, sumsAVX2, weighAVX2}}
}

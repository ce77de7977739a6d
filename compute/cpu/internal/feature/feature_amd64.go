//go:build linux && !noasm

package feature

import (
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/cpu"
)

var best = sync.OnceValue(func() Level {
	x := &cpu.X86
	return levelOf([]bool{x.HasAVX2, x.HasFMA, x.HasF16C},
		[]bool{x.HasAVX512F, x.HasAVX512BW, x.HasAVX512DQ, x.HasAVX512VL, x.HasBMI2},
		[]bool{x.HasAVX512BF16, x.HasAMXTile, x.HasAMXBF16}, permitTiles)
})

// levelOf returns the highest level all of whose instructions are there, as those of the levels below. tiles asks the
// system for the last one's registers.
func levelOf(avx2, avx512, amx []bool, tiles func() bool) Level {
	switch {
	case slices.Contains(avx2, false):
		return Plain
	case slices.Contains(avx512, false):
		return AVX2
	case slices.Contains(amx, false) || !tiles():
		return AVX512
	}
	return AMX
}

// vnni reports whether the CPU sums products of bytes in AVX-512.
func vnni() bool { return cpu.X86.HasAVX512VNNI }

// int8Tiles reports whether tiles may hold bytes; all CPUs with tiles have the other instructions for bytes, too.
func int8Tiles() bool { return cpu.X86.HasAMXInt8 && cpu.X86.HasAVX512VNNI }

// permitTiles asks Linux for the tile registers, once for the process; without it their use is
// an illegal instruction.
func permitTiles() bool {
	const archReqXcompPerm, tileData = 0x1023, 18
	_, _, e := syscall.RawSyscall(syscall.SYS_ARCH_PRCTL, archReqXcompPerm, tileData, 0)
	return e == 0
}

//go:build linux && !noasm

package feature

import (
	"sync"
	"syscall"

	"golang.org/x/sys/cpu"
)

var best = sync.OnceValue(func() Level {
	x := &cpu.X86
	switch {
	case !x.HasAVX2 || !x.HasFMA:
		return Plain
	case !x.HasAVX512F || !x.HasAVX512BW || !x.HasAVX512DQ || !x.HasAVX512VL:
		return AVX2
	case !x.HasAVX512BF16 || !x.HasAMXTile || !x.HasAMXBF16 || !permitTiles():
		return AVX512
	}
	return AMX
})

// permitTiles asks Linux for the tile registers, once for the process; without it their use is
// an illegal instruction.
func permitTiles() bool {
	const archReqXcompPerm, tileData = 0x1023, 18
	_, _, e := syscall.RawSyscall(syscall.SYS_ARCH_PRCTL, archReqXcompPerm, tileData, 0)
	return e == 0
}

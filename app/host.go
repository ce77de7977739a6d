package app

import (
	"os"
	"strconv"
	"strings"
	"syscall"

	"grebe/compute"
)

// totalMemory returns the machine's memory, or 0 if unknown.
func totalMemory() int64 {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit)
}

// freeMemory returns the free memory of a device, or of the host if the device computes there. It is negative if
// unknown.
func freeMemory(d compute.Device) int64 {
	if m := d.Memory(); m.Host() != m {
		free, _ := m.Sizes()
		return free
	}
	return freeHost()
}

// freeHost returns the host's free memory, or a negative number if unknown.
func freeHost() int64 {
	free, known := number("/proc/meminfo", "MemAvailable:")
	if known {
		free <<= 10 // from KiB
	} else {
		free = -1
	}
	// In a container the limit may be lower than the system's free memory. The page cache counts as used but is freed
	// on demand.
	limit, bounded := number("/sys/fs/cgroup/memory.max", "")
	used, _ := number("/sys/fs/cgroup/memory.current", "")
	files, _ := number("/sys/fs/cgroup/memory.stat", "file ")
	if left := max(0, limit-used+files); bounded && (free < 0 || left < free) {
		free = left
	}
	return free
}

// number reads the number after a word at the beginning of a line of a file.
func number(file, word string) (int64, bool) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, word); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

package app

import (
	"os"
	"strconv"
	"strings"
	"syscall"

	"grebe/compute"
)

// totalMemory is the machine's memory; 0 when the system does not tell.
func totalMemory() int64 {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit)
}

// freeMemory is what a device has left, or the host where it computes; negative when the system does not tell.
func freeMemory(d compute.Device) int64 {
	if m := d.Memory(); m.Host() != m {
		free, _ := m.Sizes()
		return free
	}
	return freeHost()
}

// freeHost is what the host has left; negative when the system does not tell.
func freeHost() int64 {
	free, known := number("/proc/meminfo", "MemAvailable:")
	if known {
		free <<= 10 // it is in KiB
	} else {
		free = -1
	}
	// In a container the system's free memory is not all ours. What files take there is given back when needed.
	limit, bounded := number("/sys/fs/cgroup/memory.max", "")
	used, _ := number("/sys/fs/cgroup/memory.current", "")
	files, _ := number("/sys/fs/cgroup/memory.stat", "file ")
	if left := max(0, limit-used+files); bounded && (free < 0 || left < free) {
		free = left
	}
	return free
}

// number reads the number behind a word that begins a line of a file.
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

package doctor

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"grebe/compute/cpu"
)

// machine reads what Linux tells about itself in files below root; tests give their own.
type machine struct{ root string }

func (m *machine) read(name string) string {
	data, err := os.ReadFile(filepath.Join(m.root, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// field returns the first value of a key in a file of "key: value" lines.
func (m *machine) field(name, key string) string {
	for line := range strings.Lines(m.read(name)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

var levelNames = map[string]string{
	"amx":    "AMX tiles with bf16, AVX-512 for float32",
	"avx512": "AVX-512",
	"avx2":   "AVX2 with FMA",
	"plain":  "portable Go",
}

func (m *machine) processor(r *Report) {
	name := m.field("proc/cpuinfo", "model name")
	if name == "" {
		name = runtime.GOARCH
	}
	var have []string
	flags := strings.Fields(m.field("proc/cpuinfo", "flags"))
	for _, f := range []string{"avx2", "fma", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16"} {
		if slices.Contains(flags, f) {
			have = append(have, f)
		}
	}
	r.add("processor", OK, "", "%s (%s)", name, strings.Join(have, " "))
	level := cpu.BestLevel()
	detail := levelNames[level]
	switch {
	case level == "plain" && runtime.GOARCH == "amd64":
		r.add("kernels", Warn, "run on a machine with AVX2 or better, and a build without the tag noasm", "%s: many times slower", detail)
	case level == "plain":
		r.add("kernels", Warn, "there are fast kernels for linux/amd64 only", "%s: many times slower", detail)
	case level != "amx" && slices.Contains(flags, "amx_bf16"):
		r.add("kernels", Warn, "Linux 5.16 or newer lets processes use AMX; some sandboxes forbid it", "%s; the processor has AMX, but the system refuses it", detail)
	default:
		r.add("kernels", OK, "", "%s", detail)
	}
}

func (m *machine) cores(r *Report) {
	use, have := runtime.GOMAXPROCS(0), runtime.NumCPU()
	if use < have {
		r.add("cores", OK, "", "%d of %d used (GOMAXPROCS or the container's limit)", use, have)
		return
	}
	r.add("cores", OK, "", "%d", have)
}

// memory returns the bytes that a server may take, 0 when the system does not tell.
func (m *machine) memory(r *Report) int64 {
	total, free := m.kilobytes("MemTotal"), m.kilobytes("MemAvailable")
	if total == 0 {
		r.add("memory", Info, "", "unknown: no /proc/meminfo")
		return 0
	}
	limit, err := strconv.ParseInt(m.read("sys/fs/cgroup/memory.max"), 10, 64)
	if err == nil && limit < total {
		r.add("memory", OK, "", "%s of %s free; the container may use %s", gigabytes(free), gigabytes(total), gigabytes(limit))
		return min(free, limit)
	}
	r.add("memory", OK, "", "%s of %s free", gigabytes(free), gigabytes(total))
	return free
}

func (m *machine) kilobytes(key string) int64 {
	text := strings.TrimSuffix(m.field("proc/meminfo", key), " kB")
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return n << 10
}

func gigabytes(n int64) string { return strconv.FormatFloat(float64(n)/1e9, 'f', 1, 64) + " GB" }

var chosen = regexp.MustCompile(`\[(\w+)\]`)

func (m *machine) hugePages(r *Report) {
	const file = "sys/kernel/mm/transparent_hugepage/enabled"
	found := chosen.FindStringSubmatch(m.read(file))
	switch {
	case found == nil:
		r.add("huge pages", Info, "", "the system does not tell")
	case found[1] == "never":
		r.add("huge pages", Warn, "echo madvise > /"+file, "never: products lose some percent to address translation")
	default:
		r.add("huge pages", OK, "", "%s", found[1])
	}
}

// The libraries that a GPU needs, each with the names that its versions have.
var gpuLibraries = []struct{ what, pattern, remedy string }{
	{"libcuda", "libcuda.so*", "it comes with NVIDIA's driver: in a container, use the NVIDIA runtime"},
	{"libnvrtc", "libnvrtc.so*", "install CUDA's NVRTC (package cuda-nvrtc) or add its folder to LD_LIBRARY_PATH"},
	{"libcublasLt", "libcublasLt.so*", "install cuBLAS (package libcublas) or add its folder to LD_LIBRARY_PATH"},
}

func (m *machine) gpu(r *Report) {
	driver := m.read("proc/driver/nvidia/version")
	cards, _ := filepath.Glob(filepath.Join(m.root, "dev/nvidia[0-9]*")) // the pattern is right
	if driver == "" && len(cards) == 0 {
		r.add("gpu", Info, "", "none: models run on the CPU")
		return
	}
	first, _, _ := strings.Cut(driver, "\n")
	r.add("gpu", Info, "", "%d found (%s), not used: this build runs on the CPU", len(cards), strings.TrimPrefix(first, "NVRM version: "))
	for _, lib := range gpuLibraries {
		if path := m.library(lib.pattern); path != "" {
			r.add(lib.what, Info, "", "%s", path)
		} else {
			r.add(lib.what, Info, lib.remedy, "not found")
		}
	}
}

// library finds a shared library by its file, where the dynamic linker would look.
func (m *machine) library(pattern string) string {
	dirs := filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))
	confs, _ := filepath.Glob(filepath.Join(m.root, "etc/ld.so.conf.d/*.conf"))
	for _, conf := range confs {
		for line := range strings.Lines(m.read(strings.TrimPrefix(conf, m.root))) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "/") {
				dirs = append(dirs, line)
			}
		}
	}
	dirs = append(dirs, "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
		"/usr/lib64", "/usr/lib", "/usr/local/lib", "/usr/local/cuda/lib64", "/usr/local/cuda/targets/*/lib", "/usr/local/nvidia/lib64")
	for _, dir := range dirs {
		if found, _ := filepath.Glob(filepath.Join(m.root, dir, pattern)); len(found) > 0 {
			return found[0]
		}
	}
	return ""
}

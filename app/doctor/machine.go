package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"grebe/compute/cpu"
	"grebe/compute/cuda/driver"
)

// machine reads Linux's information about itself from files below root, so that tests can provide their own.
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
		r.add("kernels", Warn, "run on a machine with AVX2 or better, and a build without the tag noasm",
			"%s: many times slower", detail)
	case level == "plain":
		r.add("kernels", Warn, "there are fast kernels for linux/amd64 only", "%s: many times slower", detail)
	case level != "amx" && slices.Contains(flags, "amx_bf16"):
		r.add("kernels", Warn, "Linux 5.16 or newer lets processes use AMX; some sandboxes forbid it",
			"%s; the processor has AMX, but the system refuses it", detail)
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

// memory returns the bytes that a server may use, or 0 if unknown.
func (m *machine) memory(r *Report) int64 {
	total, free := m.kilobytes("MemTotal"), m.kilobytes("MemAvailable")
	if total == 0 {
		r.add("memory", Info, "", "unknown: no /proc/meminfo")
		return 0
	}
	limit, err := strconv.ParseInt(m.read("sys/fs/cgroup/memory.max"), 10, 64)
	if err == nil && limit < total {
		r.add("memory", OK, "", "%s of %s free; the container may use %s", gigabytes(free), gigabytes(total),
			gigabytes(limit))
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

func gigabytes(n int64) string {
	if n < 100e6 {
		return strconv.FormatFloat(float64(n)/1e6, 'f', 1, 64) + " MB"
	}
	return strconv.FormatFloat(float64(n)/1e9, 'f', 1, 64) + " GB"
}

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

// gpuLibraries are the libraries that a GPU needs, each with a pattern for its versions.
var gpuLibraries = []struct{ what, pattern, remedy string }{
	{"libcuda", "libcuda.so*", "it comes with NVIDIA's driver: in a container, use the NVIDIA runtime"},
	{"libnvrtc", "libnvrtc.so.1[23]*", "install NVRTC of CUDA 12 or 13 (package cuda-nvrtc) or set CUDA_PATH to the " +
		"folder above its lib64"},
	{"libcublasLt", "libcublasLt.so.1[23]*", "install cuBLAS of CUDA 12 or 13 (package libcublas) or set CUDA_PATH to " +
		"the folder above its lib64"},
}

// gpu reports whether there is a GPU and everything needed to use it.
func (m *machine) gpu(r *Report) bool {
	version := m.read("proc/driver/nvidia/version")
	cards, _ := filepath.Glob(filepath.Join(m.root, "dev/nvidia[0-9]*")) // the pattern is valid
	if version == "" && len(cards) == 0 {
		r.add("gpu", Info, "", "none: models run on the CPU")
		return false
	}
	first, _, _ := strings.Cut(version, "\n")
	r.add("gpu", OK, "", "%d found (%s)", len(cards), strings.TrimPrefix(first, "NVRM version: "))
	complete := true
	for _, lib := range gpuLibraries {
		if path := m.library(lib.pattern); path != "" {
			r.add(lib.what, OK, "", "%s", path)
		} else {
			complete = false
			r.add(lib.what, Warn, lib.remedy, "not found: models run on the CPU")
		}
	}
	return complete
}

// openGPUs opens the GPUs as the server does.
func openGPUs(r *Report) {
	visible := os.Getenv("CUDA_VISIBLE_DEVICES")
	if visible != "" {
		r.add("cuda", Info, "", "CUDA_VISIBLE_DEVICES is %s: other GPUs are not used", visible)
	}
	n, err := driver.Count()
	if err != nil {
		remedy := "bring driver and libraries to versions that fit: CUDA 12 or 13"
		if visible != "" {
			remedy = "does CUDA_VISIBLE_DEVICES name a GPU or MIG instance that nvidia-smi -L lists? Otherwise " + remedy
		}
		r.add("cuda", Warn, remedy, "%v", err)
		return
	}
	compiler, err1 := driver.CompilerVersion()
	matrix, err2 := driver.BlasVersion()
	if err := errors.Join(err1, err2); err != nil {
		r.add("cuda", Warn, "", "%v", err)
		return
	}
	for i := range n {
		c, err := driver.New(i)
		if err != nil {
			r.add("cuda", Warn, "is the GPU used by others, or in a state that needs a reset? see nvidia-smi", "GPU %d: %v", i,
				err)
			continue
		}
		g := c.Info()
		status, remedy := OK, ""
		if g.Arch < leastArch {
			status, remedy = Warn, "a GPU of the Ampere generation or later is needed; models run on the CPU"
		}
		r.add("cuda", status, remedy, "GPU %d: %s, compute capability %d.%d, %d GiB; driver for CUDA %d.%d, NVRTC %s, "+
			"cuBLASLt %d",
			i, g.Name, g.Arch/10, g.Arch%10, g.Memory>>30, g.Driver/1000, g.Driver%1000/10, compiler, matrix)
		how := g.Sharing.String()
		if how == "" {
			how = "not divided by MIG or MPS"
		}
		r.add("cuda", OK, "", "GPU %d: %s, %s", i, g.Sharing.UUID, how)
		if err := c.Close(); err != nil {
			r.add("cuda", Warn, "", "GPU %d: %v", i, err)
		}
	}
}

// leastArch is the least compute capability that the kernels run on, times ten.
const leastArch = 80

// library finds a shared library by its file, where the dynamic linker would look.
func (m *machine) library(pattern string) string {
	dirs := filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))
	if base := os.Getenv("CUDA_PATH"); base != "" {
		dirs = append(dirs, filepath.Join(base, "lib64"), filepath.Join(base, "lib"), base)
	}
	confs, _ := filepath.Glob(filepath.Join(m.root, "etc/ld.so.conf.d/*.conf"))
	for _, conf := range confs {
		for line := range strings.Lines(m.read(strings.TrimPrefix(conf, m.root))) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "/") {
				dirs = append(dirs, line)
			}
		}
	}
	dirs = append(dirs, "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu",
		"/usr/lib/aarch64-linux-gnu",
		"/usr/lib64", "/usr/lib", "/usr/local/lib", "/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/*/lib",
		"/usr/local/nvidia/lib64",
		"/usr/local/lib/python3*/*-packages/nvidia/*/lib", "/opt/*/.venv/lib/python3*/site-packages/nvidia/*/lib",
		"/opt/*/lib/python3*/site-packages/nvidia/*/lib")
	for _, dir := range dirs {
		if found, _ := filepath.Glob(filepath.Join(m.root, dir, pattern)); len(found) > 0 {
			return found[0]
		}
	}
	return ""
}

// Package driver binds NVIDIA's driver, run-time compiler and matrix library without cgo: the
// libraries are opened when they are wanted, so the binary runs where there are none.
//
// A Context is one GPU. The driver keeps the current context per thread. So every call that touches a GPU is made
// between Enter and Leave on the same goroutine. Several goroutines may be inside at once. Calls return errors that
// name the call and its arguments. An error after which the driver refuses all further work is remembered: Lost
// returns it, and every later call fails with it.
//
// Whatever the driver reads after a call has returned lies outside the Go heap: see Host and Args.
// The package knows nothing of models.
package driver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/ebitengine/purego"
)

// symbol is a C function.
type symbol struct {
	name string
	addr uintptr
}

// Libraries says which files the libraries were opened from.
type Libraries struct {
	Driver, Compiler, Matrix string
}

// MissingError says which library could not be opened and how to get it.
type MissingError struct {
	Library string // what it is, for people
	Tried   []string
	Remedy  string
}

// Driver reports whether the driver itself is missing: the machine has no GPU that anyone set up.
func (e *MissingError) Driver() bool { return e.Library == driverLibrary.what }

func (e *MissingError) Error() string {
	return fmt.Sprintf("driver: no %s found (tried %s): %s", e.Library, strings.Join(e.Tried, ", "), e.Remedy)
}

// library is one of NVIDIA's shared libraries.
type library struct {
	what    string
	names   []string // as the system's loader finds them, newest first
	remedy  string
	symbols func() []*symbol
	opened  string
}

var driverLibrary = &library{
	what:  "NVIDIA driver (libcuda)",
	names: []string{"libcuda.so.1"},
	remedy: "install NVIDIA's driver 525 or newer; in a container, run it with the NVIDIA container toolkit (docker " +
		"run --gpus all)",
	symbols: func() []*symbol { return all(&cu) },
}

var compilerLibrary = &library{
	what:  "CUDA run-time compiler (libnvrtc)",
	names: []string{"libnvrtc.so.13", "libnvrtc.so.12"},
	remedy: "install CUDA 12 or 13 (package cuda-nvrtc-13-0, or pip install nvidia-cuda-nvrtc), or set CUDA_PATH to a " +
		"folder that has it",
	symbols: func() []*symbol { return all(&rtc) },
}

var matrixLibrary = &library{
	what:  "CUDA matrix library (libcublasLt)",
	names: []string{"libcublasLt.so.13", "libcublasLt.so.12"},
	remedy: "install CUDA 12 or 13 (package libcublas-13-0, or pip install nvidia-cublas), or set CUDA_PATH to a " +
		"folder that has it",
	symbols: func() []*symbol { return all(&lt) },
}

var opening struct {
	once sync.Once
	libs Libraries
	err  error
}

// Open opens the three libraries, once per process. Its error holds a MissingError for each one
// that is not there.
func Open() (Libraries, error) {
	if simulated {
		return Libraries{"simulated", "simulated", "simulated"}, nil
	}
	opening.once.Do(func() {
		o := &opening
		o.err = errors.Join(driverLibrary.open(), compilerLibrary.open(), matrixLibrary.open())
		o.libs = Libraries{driverLibrary.opened, compilerLibrary.opened, matrixLibrary.opened}
		if handle, err := purego.Dlopen(driverLibrary.opened, purego.RTLD_NOW); o.err == nil && err == nil {
			copyBatch.addr, _ = purego.Dlsym(handle, copyBatch.name) // there need not be one
		}
		if o.err == nil {
			o.err = result(cu.init, invoke(&cu.init, []uintptr{0}), nil)
		}
	})
	return opening.libs, opening.err
}

func (l *library) open() error {
	tried := l.candidates()
	for _, path := range tried {
		handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
		if err != nil {
			continue
		}
		l.opened = path
		for _, s := range l.symbols() {
			if s.addr, err = purego.Dlsym(handle, s.name); err != nil {
				return fmt.Errorf("driver: %s is too old: it has no %s: %s", path, s.name, l.remedy)
			}
		}
		return nil
	}
	return &MissingError{Library: l.what, Tried: l.names, Remedy: l.remedy}
}

// folders may hold libraries that the system's loader does not know of: CUDA's own, and those of
// Python packages.
var folders = []string{
	"/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/*/lib", "/usr/lib/*-linux-gnu",
	"/usr/lib/python3*/*-packages/nvidia/*/lib", "/usr/local/lib/python3*/*-packages/nvidia/*/lib",
	"/opt/*/lib/python3*/site-packages/nvidia/*/lib", "/opt/*/.venv/lib/python3*/site-packages/nvidia/*/lib",
}

// candidates lists what to try, the environment's own choice first.
func (l *library) candidates() []string {
	var out []string
	add := func(pattern string) {
		found, _ := filepath.Glob(pattern) // fails for malformed patterns only
		out = append(out, found...)
	}
	for _, v := range []string{"CUDA_PATH", "CUDA_HOME"} {
		if dir := os.Getenv(v); dir != "" {
			for _, n := range l.names {
				add(filepath.Join(dir, "lib64", n))
				add(filepath.Join(dir, "lib", n))
				add(filepath.Join(dir, n))
			}
		}
	}
	for _, n := range l.names {
		out = append(out, n)
		for _, f := range folders {
			add(filepath.Join(f, n))
		}
	}
	return out
}

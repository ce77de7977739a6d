// Package kernels holds the GPU's code: one operation per .cu file, and headers (.cuh). Load compiles a file for the
// GPU and the sizes at hand when it is first needed. It keeps the machine code on disk, keyed by everything that it
// was made from.
//
// Kernels include no CUDA headers. Lines that begin with "// check:" in a file give the defines with
// which the package's test compiles it where no CUDA is installed.
package kernels

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"grebe/compute/cuda/driver"
)

//go:embed *.cu *.cuh
var files embed.FS

// Plain is the define that keeps to instructions of Ampere, whatever the GPU has.
const Plain = "GREBE_ARCH=80"

// Load compiles file with the given defines ("HEAD_DIM=128"), or takes it from the cache. It defines
// GREBE_ARCH as 90 on Hopper and as 80 elsewhere, unless the caller does. The caller MUST close the
// module and MUST be inside the context.
func Load(c *driver.Context, file string, defines ...string) (*driver.Module, error) {
	text, err := source(file)
	if err != nil {
		return nil, fmt.Errorf("kernels: %w", err)
	}
	version, err := driver.CompilerVersion()
	if err != nil {
		return nil, fmt.Errorf("kernels: %w", err)
	}
	options := options(c.Info().Arch, defines)
	path := cached(file, text, version, options)
	if code, ok := read(path); ok {
		if m, err := c.Load(file, code); err == nil {
			return m, nil
		}
		_ = os.Remove(path) // made for another machine, or damaged
	}
	code, err := driver.Compile(file, text, options)
	if err != nil {
		return nil, fmt.Errorf("kernels: %w", err)
	}
	m, err := c.Load(file, code)
	if err != nil {
		return nil, fmt.Errorf("kernels: %w", err)
	}
	write(path, code)
	return m, nil
}

// Prepare compiles file with each of several lists of defines, side by side, so that Load finds them in the cache. What
// fails will fail in Load.
func Prepare(c *driver.Context, file string, lists [][]string) {
	text, err := source(file)
	version, versionErr := driver.CompilerVersion()
	if err != nil || versionErr != nil || CacheDir() == "" {
		return
	}
	var wg sync.WaitGroup
	free := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, defines := range lists {
		options := options(c.Info().Arch, defines)
		path := cached(file, text, version, options)
		if _, ok := read(path); ok {
			continue
		}
		wg.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			if code, err := driver.Compile(file, text, options); err == nil {
				write(path, code)
			}
		})
	}
	wg.Wait()
}

// options are the compiler's. Only Hopper has instructions of its own that the kernels use.
func options(arch int, defines []string) []string {
	target, path := fmt.Sprintf("sm_%d", arch), "GREBE_ARCH=80"
	if arch == 90 {
		target, path = "sm_90a", "GREBE_ARCH=90"
	}
	if !slices.ContainsFunc(defines, func(d string) bool { return strings.HasPrefix(d, "GREBE_ARCH=") }) {
		defines = append([]string{path}, defines...)
	}
	out := []string{"--gpu-architecture=" + target, "--std=c++17", "--device-as-default-execution-space",
		"--extra-device-vectorization"}
	for _, d := range defines {
		out = append(out, "-D"+d)
	}
	return out
}

// source returns a file with the headers that it includes in their places.
func source(file string) (string, error) {
	text, err := files.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("no kernel %s: %w", file, err)
	}
	out := expand(file, string(text), map[string]bool{}, &err)
	return out, err
}

func expand(file, text string, seen map[string]bool, failed *error) string {
	var out strings.Builder
	fmt.Fprintf(&out, "#line 1 %q\n", file)
	for i, line := range strings.SplitAfter(text, "\n") {
		name, isInclude := strings.CutPrefix(strings.TrimSpace(line), `#include "`)
		switch {
		case strings.HasPrefix(line, "#pragma once"):
			out.WriteString("\n")
		case !isInclude:
			out.WriteString(line)
		case !seen[strings.TrimSuffix(name, `"`)]:
			name = strings.TrimSuffix(name, `"`)
			seen[name] = true
			header, err := files.ReadFile(name)
			if err != nil {
				*failed = fmt.Errorf("%s includes %s, which is not there", file, name)
				return ""
			}
			out.WriteString(expand(name, string(header), seen, failed))
			fmt.Fprintf(&out, "\n#line %d %q\n", i+2, file)
		}
	}
	return out.String()
}

// CacheDir is where machine code and measurements are kept: GREBE_KERNEL_CACHE, or grebe/cuda in the
// user's cache folder. It is empty when there is neither.
func CacheDir() string {
	if d := os.Getenv("GREBE_KERNEL_CACHE"); d != "" {
		return d
	}
	d, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(d, "grebe", "cuda")
}

// cached returns where the machine code is kept, or nothing when it cannot be.
func cached(file, text, version string, options []string) string {
	dir := CacheDir()
	if dir == "" {
		return ""
	}
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %q", text, version, options)
	return filepath.Join(dir, strings.TrimSuffix(file, ".cu")+"-"+hex.EncodeToString(h.Sum(nil)[:12])+".cubin")
}

// Kept returns the file for measurements, of the given kind, of a kernel on this GPU: another one for whatever
// changes the machine code, for another GPU and for another driver. It is empty when nothing can be kept.
func Kept(c *driver.Context, kind, file string, defines ...string) (string, error) {
	text, err := source(file)
	if err != nil {
		return "", fmt.Errorf("kernels: %w", err)
	}
	version, err := driver.CompilerVersion()
	if err != nil {
		return "", fmt.Errorf("kernels: %w", err)
	}
	return kept(c.Info(), kind, cached(file, text, version, options(c.Info().Arch, defines))), nil
}

func kept(i driver.Info, kind, code string) string {
	if code == "" {
		return ""
	}
	gpu := sha256.Sum256(fmt.Appendf(nil, "%q %d %d", i.Name, i.Processors, i.Driver))
	return strings.TrimSuffix(code, ".cubin") + "-" + hex.EncodeToString(gpu[:4]) + "." + kind
}

// ReadKept returns what WriteKept kept in a file, if it is there and whole.
func ReadKept(path string) ([]byte, bool) { return read(path) }

// WriteKept keeps data. A cache that cannot be written costs time at the next start, no more.
func WriteKept(path string, data []byte) { write(path, data) }

// A cached file is its content followed by the content's hash: a torn write is not machine code.
func read(path string) ([]byte, bool) {
	data, err := os.ReadFile(path)
	if path == "" || err != nil || len(data) <= sha256.Size {
		return nil, false
	}
	code, sum := data[:len(data)-sha256.Size], data[len(data)-sha256.Size:]
	want := sha256.Sum256(code)
	return code, bytes.Equal(sum, want[:])
}

// write keeps code. A cache that cannot be written costs time at the next start, no more.
func write(path string, code []byte) {
	if path == "" || os.MkdirAll(filepath.Dir(path), 0o755) != nil {
		return
	}
	sum := sha256.Sum256(code)
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return
	}
	_, err = f.Write(append(slices.Clone(code), sum[:]...))
	if f.Close() != nil || err != nil || os.Rename(f.Name(), path) != nil {
		_ = os.Remove(f.Name())
	}
}

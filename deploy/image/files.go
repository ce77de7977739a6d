package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// user is the id of user and group in the image, as in deploy/Dockerfile and the chart.
const user = 10001

// program is where the binary lies in the image.
const program = "/usr/local/bin/grebe"

// file is a file or a folder of the image.
type file struct {
	path string // absolute
	mode fs.FileMode
	uid  int
	data []byte // of a file
	from string // of a file: where its data lie, instead of data
}

// contents returns the files of the image, folders before what is in them, and the architecture in Go's words.
func contents(binary string) ([]file, string, error) {
	arch, libraries, err := needs(binary)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", binary, err)
	}
	files := []file{
		{path: program, mode: 0o755, from: binary},
		{path: "/etc/passwd", mode: 0o644, data: fmt.Appendf(nil, "root:x:0:0:root:/:/sbin/nologin\ngrebe:x:%d:%[1]d:grebe:/var/lib/grebe:/sbin/nologin\n", user)},
		{path: "/etc/group", mode: 0o644, data: fmt.Appendf(nil, "root:x:0:\ngrebe:x:%d:\n", user)},
		{path: "/etc/grebe", mode: fs.ModeDir | 0o755},
		{path: "/models", mode: fs.ModeDir | 0o755},
		{path: "/tmp", mode: fs.ModeDir | fs.ModeSticky | 0o777},
		{path: "/var/lib/grebe", mode: fs.ModeDir | 0o750, uid: user},
	}
	for _, at := range slices.Sorted(maps.Keys(libraries)) {
		files = append(files, file{path: at, mode: 0o755, from: libraries[at]})
	}
	return withFolders(files), arch, nil
}

// withFolders adds the folders above files, and sorts.
func withFolders(files []file) []file {
	known := map[string]bool{"/": true}
	for _, f := range files {
		known[f.path] = true
	}
	for _, f := range slices.Clone(files) {
		for dir := path.Dir(f.path); !known[dir]; dir = path.Dir(dir) {
			known[dir] = true
			files = append(files, file{path: dir, mode: fs.ModeDir | 0o755})
		}
	}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.path, b.path) })
	return files
}

// machines are the architectures whose images are made.
var machines = map[elf.Machine]struct{ arch, folder string }{
	elf.EM_X86_64:  {"amd64", "x86_64-linux-gnu"},
	elf.EM_AARCH64: {"arm64", "aarch64-linux-gnu"},
}

// needs returns the architecture of a program, and the loader and the libraries that it is started with: their paths in
// the image, and on this machine.
func needs(binary string) (arch string, libraries map[string]string, err error) {
	f, err := elf.Open(binary)
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	m, ok := machines[f.Machine]
	if !ok {
		return "", nil, fmt.Errorf("a program for %v: want amd64 or arm64", f.Machine)
	}
	libraries = map[string]string{}
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		data := make([]byte, p.Filesz)
		if _, err := p.ReadAt(data, 0); err != nil {
			return "", nil, err
		}
		loader := strings.TrimRight(string(data), "\x00")
		libraries[loader] = loader
	}
	return m.arch, libraries, addLibraries(f, m.folder, libraries)
}

// addLibraries adds what a program or a library needs, and what that needs.
func addLibraries(f *elf.File, folder string, found map[string]string) error {
	names, err := f.ImportedLibraries()
	if err != nil {
		return err
	}
	for _, name := range names {
		at, err := findLibrary(name, folder, f.Machine)
		if err != nil {
			return err
		}
		// the loader looks in these folders without a cache, and loads itself from where the program names it
		if inside := path.Join("/lib", folder, name); found[inside] == "" {
			found[inside] = at
			lib, err := elf.Open(at)
			if err != nil {
				return err
			}
			err = addLibraries(lib, folder, found)
			lib.Close()
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// findLibrary returns the path of a library of an architecture on this machine.
func findLibrary(name, folder string, machine elf.Machine) (string, error) {
	for _, dir := range []string{"/lib/" + folder, "/usr/lib/" + folder, "/lib64", "/usr/lib64", "/lib", "/usr/lib"} {
		at := filepath.Join(dir, name)
		f, err := elf.Open(at)
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			return "", fmt.Errorf("library %s: %w", at, err)
		}
		f.Close()
		if f.Machine == machine {
			return at, nil
		}
	}
	return "", fmt.Errorf("library %s is not on this machine: build the image where the program runs", name)
}

// read returns a file's bytes.
func (f *file) read() ([]byte, error) {
	if f.from == "" {
		return f.data, nil
	}
	return os.ReadFile(f.from)
}

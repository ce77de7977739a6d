package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"grebe/deploy/tree"
)

// user is the id of user and group in the image, as in deploy/Dockerfile and the chart.
const user = 10001

// program is where the binary lies in the image.
const program = "/usr/local/bin/grebe"

// contents returns the files of the image, folders before what is in them, and the architecture in Go's words.
func contents(binary string) ([]tree.File, string, error) {
	arch, libraries, err := needs(binary)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", binary, err)
	}
	files := []tree.File{
		{Path: program, Mode: 0o755, From: binary},
		{Path: "/etc/passwd", Mode: 0o644, Data: fmt.Appendf(nil,
			"root:x:0:0:root:/:/sbin/nologin\ngrebe:x:%d:%[1]d:grebe:/var/lib/grebe:/sbin/nologin\n", user)},
		{Path: "/etc/group", Mode: 0o644, Data: fmt.Appendf(nil, "root:x:0:\ngrebe:x:%d:\n", user)},
		{Path: "/etc/grebe", Mode: fs.ModeDir | 0o755},
		{Path: "/models", Mode: fs.ModeDir | 0o755},
		{Path: "/tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
		{Path: "/var/lib/grebe", Mode: fs.ModeDir | 0o750, UID: user},
	}
	for _, at := range slices.Sorted(maps.Keys(libraries)) {
		files = append(files, tree.File{Path: at, Mode: 0o755, From: libraries[at]})
	}
	return tree.WithFolders(files), arch, nil
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
		if libraries[loader], err = findLibrary(path.Base(loader), m.folder, f.Machine, path.Dir(loader)); err != nil {
			return "", nil, err
		}
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
		at, err := findLibrary(name, folder, f.Machine, "/lib/"+folder)
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

// findLibrary returns the path of a library of an architecture on this machine: in the folder first, if it is there.
// Debian's libraries for programs of other architectures (libc6-arm64-cross) are found too.
func findLibrary(name, folder string, machine elf.Machine, first string) (string, error) {
	for _, dir := range []string{first, "/lib/" + folder, "/usr/lib/" + folder, "/lib64", "/usr/lib64", "/lib", "/usr/lib",
		"/usr/" + folder + "/lib"} {
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

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// entry is a file of a tar.
type entry struct {
	tar.Header
	data []byte
}

// untar reads all of a tar. A name that is there twice, leads out of the folder or comes before its folder is an error.
func untar(t *testing.T, data []byte) map[string]entry {
	t.Helper()
	out := map[string]entry{}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(h.Name, "/")
		if _, twice := out[name]; twice || !fs.ValidPath(name) || !h.ModTime.Equal(epoch) || h.Uname != "" {
			t.Errorf("file %q of %v by %q: twice, a bad name, or something of this machine", h.Name, h.ModTime, h.Uname)
		}
		if dir := path.Dir(name); dir != "." && out[dir].Typeflag != tar.TypeDir {
			t.Errorf("file %q comes before its folder", h.Name)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = entry{*h, content}
	}
}

// strict reads JSON without unknown fields.
func strict(t *testing.T, data []byte, into any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
}

// image is what a runtime gets from the layout.
type image struct {
	config imageConfig
	name   string
	files  map[string]entry
}

// open reads an image as a runtime does, and checks every digest and size on the way.
func open(t *testing.T, data []byte) *image {
	t.Helper()
	files := untar(t, data)
	used := 0
	blob := func(d descriptor, kind string) []byte {
		content := files["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")].data
		if d.MediaType != kind || d.Size != len(content) || digest(content) != d.Digest {
			t.Fatalf("descriptor %+v of %d bytes with %s, want %s", d, len(content), digest(content), kind)
		}
		used++
		return content
	}
	if got := string(files["oci-layout"].data); got != `{"imageLayoutVersion":"1.0.0"}` {
		t.Fatalf("oci-layout is %s", got)
	}
	var top index
	strict(t, files["index.json"].data, &top)
	if top.SchemaVersion != 2 || top.MediaType != indexType || len(top.Manifests) != 1 {
		t.Fatalf("index %+v", top)
	}
	var m manifest
	strict(t, blob(top.Manifests[0], manifestType), &m)
	if m.SchemaVersion != 2 || m.MediaType != manifestType || len(m.Layers) != 1 {
		t.Fatalf("manifest %+v", m)
	}
	i := &image{name: top.Manifests[0].Annotations["io.containerd.image.name"]}
	strict(t, blob(m.Config, configType), &i.config)
	r, err := gzip.NewReader(bytes.NewReader(blob(m.Layers[0], layerType)))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{digest(plain)}; i.config.RootFS.Type != "layers" || !slices.Equal(i.config.RootFS.DiffIDs, want) {
		t.Errorf("rootfs %+v, want layers %v", i.config.RootFS, want)
	}
	if p := top.Manifests[0].Platform; p == nil || *p != i.config.platform {
		t.Errorf("platform %v, and in the configuration %v", p, i.config.platform)
	}
	blobs := 0
	for name, f := range files {
		if strings.HasPrefix(name, "blobs/sha256/") && f.Typeflag == tar.TypeReg {
			blobs++
		}
	}
	if blobs != used {
		t.Errorf("%d blobs, %d of them used", blobs, used)
	}
	i.files = untar(t, plain)
	return i
}

// build makes an image of a program, twice.
func build(t *testing.T, program string) *image {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("programs of another system")
	}
	var data [2][]byte
	for i := range data {
		out := filepath.Join(t.TempDir(), "image.tar")
		if err := run(program, out, "grebe:1.2"); err != nil {
			t.Fatal(err)
		}
		var err error
		if data[i], err = os.ReadFile(out); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(data[0], data[1]) {
		t.Error("two images of one program differ")
	}
	return open(t, data[0])
}

func TestImage(t *testing.T) {
	small := "/bin/sh"
	if f, err := elf.Open(small); err == nil {
		f.Close()
	} else if small, err = os.Executable(); err != nil {
		t.Fatal(err)
	}
	i := build(t, small)
	c := i.config.Config
	if i.name != "grebe:1.2" || i.config.Architecture != runtime.GOARCH || i.config.OS != "linux" {
		t.Errorf("%s for %v", i.name, i.config.platform)
	}
	if c.User != "10001:10001" || !slices.Equal(c.Entrypoint, []string{program}) ||
		!slices.Equal(c.Healthcheck.Test, []string{"CMD", program, "health"}) {
		t.Errorf("configuration %+v", c)
	}
	want, err := os.ReadFile(small)
	if err != nil {
		t.Fatal(err)
	}
	if f := i.files[strings.TrimPrefix(program, "/")]; f.Mode != 0o755 || f.Uid != 0 || !bytes.Equal(f.data, want) {
		t.Errorf("the program has mode %o, owner %d and %d bytes", f.Mode, f.Uid, len(f.data))
	}
	for name, mode := range map[string]int64{"tmp": 0o1777, "models": 0o755, "etc/grebe": 0o755} {
		if f := i.files[name]; f.Typeflag != tar.TypeDir || f.Mode != mode || f.Uid != 0 {
			t.Errorf("folder %s has mode %o and owner %d", name, f.Mode, f.Uid)
		}
	}
	if f := i.files["var/lib/grebe"]; f.Uid != user || f.Gid != user || c.WorkingDir != "/var/lib/grebe" {
		t.Errorf("the data's folder belongs to %d", f.Uid)
	}
	for name, f := range i.files {
		if f.Typeflag == tar.TypeReg && f.Mode&0o022 != 0 {
			t.Errorf("%s can be written by others", name)
		}
	}
}

// A program with libraries has all of them in its image: it starts there, as the image's user, with nothing else around
// it.
func TestProgramWithLibraries(t *testing.T) {
	const shell = "/bin/sh"
	f, err := elf.Open(shell)
	if err != nil {
		t.Skip(err)
	}
	libraries, err := f.ImportedLibraries()
	f.Close()
	if err != nil || len(libraries) == 0 {
		t.Skipf("%s needs no library: %v", shell, err)
	}
	i := build(t, shell)
	for _, l := range libraries {
		if !slices.ContainsFunc(slices.Collect(keys(i.files)), func(name string) bool { return path.Base(name) == l }) {
			t.Errorf("no %s in the image", l)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("only root can start a program in another root folder")
	}
	root := t.TempDir()
	extract(t, root, i)
	cmd := exec.Command(program, "-c", "exit 7")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: user, Gid: user}}
	err = cmd.Run()
	if errors.Is(err, syscall.EPERM) {
		t.Skip("this machine does not let root change its root folder")
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("the program in its image: %v, want exit status 7", err)
	}
}

func keys(m map[string]entry) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// extract writes the image's files below a folder that its user can enter.
func extract(t *testing.T, root string, i *image) {
	t.Helper()
	for dir := root; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range slices.Sorted(keys(i.files)) {
		f, at := i.files[name], filepath.Join(root, name)
		var err error
		if f.Typeflag == tar.TypeDir {
			err = os.Mkdir(at, 0o755)
		} else {
			err = os.WriteFile(at, f.data, fs.FileMode(f.Mode))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestBadArguments(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range [][3]string{
		{filepath.Join(dir, "none"), "a.tar", "grebe:1"}, {text, "a.tar", "grebe:1"}, {self, "a.tar", "grebe"},
		{self, "a.tar", ":1"},
		{self, filepath.Join("none", "a.tar"), "grebe:1"},
	} {
		out := filepath.Join(dir, bad[1])
		if err := run(bad[0], out, bad[2]); err == nil {
			t.Errorf("%v: no error", bad)
		}
		if _, err := os.Stat(out); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v: a file is left: %v", bad, err)
		}
	}
}

// The image has what deploy/Dockerfile says.
func TestSameAsDockerfile(t *testing.T) {
	text, err := os.ReadFile("../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	c := configOf(platform{"amd64", "linux"}, "").Config
	said := map[string]any{}
	for line := range strings.Lines(string(text)) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		var list []string
		if at := strings.Index(rest, "["); at >= 0 && json.Unmarshal([]byte(rest[at:]), &list) == nil {
			said[word] = list
			continue
		}
		said[word] = rest
	}
	for word, want := range map[string]any{"USER": c.User, "WORKDIR": c.WorkingDir, "ENTRYPOINT": c.Entrypoint,
		"CMD": c.Cmd, "HEALTHCHECK": c.Healthcheck.Test[1:]} {
		if word == "WORKDIR" && said[word] != want || word != "WORKDIR" && !reflect.DeepEqual(said[word], want) {
			t.Errorf("%s is %v in the Dockerfile, %v in the image", word, said[word], want)
		}
	}
}

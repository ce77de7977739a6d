package main

import (
	"bytes"
	"crypto/md5"
	"embed"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"grebe/deploy/tree"
)

//go:embed debian
var debian embed.FS

// configuration is the file that dpkg keeps as its administrator left it.
const configuration = "/etc/grebe/grebe.yaml"

// deb returns a Debian package of the files, with the service and its configuration.
func (r *release) deb(arch string, files []tree.File) ([]byte, error) {
	unit, err := r.unit()
	if err != nil {
		return nil, fmt.Errorf("deploy/grebe.service: %w", err)
	}
	files = append(slices.Clone(files), tree.File{Path: "/usr/lib/systemd/system/grebe.service", Mode: 0o644, Data: unit})
	for name, at := range map[string]string{"grebe.yaml": configuration, "copyright": docs + "/copyright"} {
		data, err := debian.ReadFile("debian/" + name)
		if err != nil {
			return nil, err
		}
		files = append(files, tree.File{Path: at, Mode: 0o644, Data: data})
	}
	files = tree.WithFolders(files)
	control, err := r.control(arch, files)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.WriteString("!<arch>\n")
	member(&out, "debian-binary", r.when, []byte("2.0\n"))
	for _, part := range []struct {
		name  string
		files []tree.File
	}{{"control.tar.gz", control}, {"data.tar.gz", files}} {
		data, err := tree.Tar(part.files, "./", r.when)
		if err == nil {
			data, err = tree.Gzip(data)
		}
		if err != nil {
			return nil, err
		}
		member(&out, part.name, r.when, data)
	}
	return out.Bytes(), nil
}

// member writes one file of an ar archive, as deb(5) describes it.
func member(out *bytes.Buffer, name string, when time.Time, data []byte) {
	fmt.Fprintf(out, "%-16s%-12d%-6d%-6d%-8o%-10d`\n", name, when.Unix(), 0, 0, 0o100644, len(data))
	out.Write(data)
	if len(data)%2 == 1 {
		out.WriteByte('\n')
	}
}

// control returns what dpkg reads of a package before it unpacks its files.
func (r *release) control(arch string, files []tree.File) ([]tree.File, error) {
	var sums strings.Builder
	size := 0
	for i := range files {
		f := &files[i]
		if f.Mode.IsDir() {
			size++
			continue
		}
		data, err := f.Read()
		if err != nil {
			return nil, err
		}
		size += (len(data) + 1023) / 1024
		if f.Path != configuration {
			fmt.Fprintf(&sums, "%x  %s\n", md5.Sum(data), strings.TrimPrefix(f.Path, "/"))
		}
	}
	text := fmt.Sprintf(`Package: grebe
Version: %s
Architecture: %s
Maintainer: The Grebe Authors <grebe@localhost>
Installed-Size: %d
Depends: libc6 (>= 2.17), passwd
Section: net
Priority: optional
Description: server for generative recommenders
 Grebe ranks candidates with a language model, generates items of a catalog by
 beam search, and reuses the keys and values that earlier requests computed.
 .
 The service is started by an administrator after a model is named in
 /etc/grebe/grebe.yaml. "grebe demo" needs no configuration.
`, r.version.debian, arch, size)
	out := []tree.File{
		{Path: "/conffiles", Mode: 0o644, Data: []byte(configuration + "\n")},
		{Path: "/control", Mode: 0o644, Data: []byte(text)},
		{Path: "/md5sums", Mode: 0o644, Data: []byte(sums.String())},
	}
	for _, script := range []string{"postinst", "postrm", "prerm"} {
		data, err := debian.ReadFile("debian/" + script)
		if err != nil {
			return nil, err
		}
		out = append(out, tree.File{Path: "/" + script, Mode: 0o755, Data: data})
	}
	return out, nil
}

// unit returns the service of deploy with the package's paths. Its user is a fixed one, so that files of keys and
// certificates can belong to it.
func (r *release) unit() ([]byte, error) {
	f := tree.File{From: filepath.Join(r.source, "deploy/grebe.service")}
	text, err := f.Read()
	if err != nil {
		return nil, err
	}
	first := bytes.Index(text, []byte("[Unit]"))
	text = text[max(first, 0):] // how to install it by hand
	for _, change := range [][2]string{
		{"ExecStart=/usr/local/bin/", "ExecStart=/usr/bin/"}, {"DynamicUser=yes\n", "User=grebe\nGroup=grebe\n"},
	} {
		if text, err = replaceOnce(text, change[0], change[1]); err != nil {
			return nil, err
		}
	}
	return text, nil
}

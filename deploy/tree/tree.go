// Package tree holds the files of a container image or a package, and writes them as a tar. The same files give the
// same bytes: nothing in the tar names the machine that wrote it.
package tree

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// File is a file or a folder.
type File struct {
	Path string // absolute
	Mode fs.FileMode
	UID  int    // of user and group
	Data []byte // of a file
	From string // of a file: where its data lie, instead of Data
}

// Read returns a file's bytes.
func (f *File) Read() ([]byte, error) {
	if f.From == "" {
		return f.Data, nil
	}
	return os.ReadFile(f.From)
}

// WithFolders adds the folders above files and sorts: folders come before what is in them.
func WithFolders(files []File) []File {
	known := map[string]bool{"/": true}
	for _, f := range files {
		known[f.Path] = true
	}
	for _, f := range slices.Clone(files) {
		for dir := path.Dir(f.Path); !known[dir]; dir = path.Dir(dir) {
			known[dir] = true
			files = append(files, File{Path: dir, Mode: fs.ModeDir | 0o755})
		}
	}
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return files
}

// Tar returns the files as a tar, in the given order. Names begin with prefix instead of "/", and all times are when.
func Tar(files []File, prefix string, when time.Time) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for i := range files {
		f := &files[i]
		h := &tar.Header{Name: prefix + strings.TrimPrefix(f.Path, "/"), Mode: int64(f.Mode.Perm()), Uid: f.UID, Gid: f.UID,
			ModTime: when, Format: tar.FormatUSTAR}
		if f.Mode&fs.ModeSticky != 0 {
			h.Mode |= 0o1000
		}
		var data []byte
		if f.Mode.IsDir() {
			h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		} else {
			var err error
			if data, err = f.Read(); err != nil {
				return nil, err
			}
			h.Typeflag, h.Size = tar.TypeReg, int64(len(data))
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Path, err)
		}
		if _, err := w.Write(data); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

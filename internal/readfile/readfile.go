// Package readfile reads small files that others gave us. A path may name a device, a pipe or a file that grows: none
// of them costs more memory than the caller allows, and none blocks.
package readfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// ErrPointer says that a file is not there: Git clones a pointer in its place unless Git LFS is installed.
var ErrPointer = errors.New("it is a pointer of Git LFS, not the file: run git lfs pull in its folder")

// IsPointer reports whether a file that begins with these bytes, eight or more, is a pointer of Git LFS.
func IsPointer(begin []byte) bool {
	const pointer = "version https://git-lfs.github.com/spec/"
	return len(begin) >= 8 && bytes.HasPrefix(begin, []byte(pointer[:min(len(begin), len(pointer))]))
}

// Regular reads a regular file of at most so many bytes. A pointer of Git LFS is ErrPointer.
func Regular(path string, most int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe without a writer would block
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > most {
		return nil, fmt.Errorf("%s is not a regular file of at most %d bytes", path, most)
	}
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	switch {
	case err == nil && int64(len(data)) > most:
		err = fmt.Errorf("%s is not a regular file of at most %d bytes", path, most)
	case err == nil && IsPointer(data):
		err = fmt.Errorf("%s: %w", path, ErrPointer)
	}
	if err != nil {
		return nil, err
	}
	return data, nil
}

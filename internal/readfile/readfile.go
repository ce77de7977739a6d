// Package readfile reads small files that others gave us. A path may name a device, a pipe or a file that grows: none
// of them costs more memory than the caller allows, and none blocks.
package readfile

import (
	"fmt"
	"io"
	"os"
	"syscall"
)

// Regular reads a regular file of at most so many bytes.
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
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("%s is not a regular file of at most %d bytes", path, most)
	}
	if err != nil {
		return nil, err
	}
	return data, nil
}

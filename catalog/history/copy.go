package history

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// File is an open file of the versions. The caller MUST Close it.
type File struct {
	*os.File
	Name string // in the folder of the versions
	Size int64  // bytes that belong to the versions; the file may have more
}

// Files opens the files of all versions that are on disk, as they are at one moment. They can be read while versions
// come and go: what they have up to Size does not change. The caller MUST close each.
func (h *History) Files() (files []File, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := map[*Generation]bool{}
	for _, v := range h.versions {
		g := v.gen
		if seen[g] || g.dir == "" || g == h.current && !g.stored {
			continue
		}
		seen[g] = true
		for _, kind := range []string{"items", "log"} {
			f, err := os.Open(g.file(kind))
			if errors.Is(err, fs.ErrNotExist) && (kind == "log" || g.failed) {
				continue // it was just begun, or could not be written
			}
			if err != nil {
				return nil, errors.Join(err, CloseFiles(files))
			}
			st, err := f.Stat()
			if err != nil {
				return nil, errors.Join(err, f.Close(), CloseFiles(files))
			}
			size := st.Size()
			if kind == "log" && g == h.current {
				size = g.size
			}
			files = append(files, File{f, filepath.Base(f.Name()), size})
		}
	}
	return files, nil
}

// CloseFiles closes files.
func CloseFiles(files []File) error {
	var errs []error
	for _, f := range files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

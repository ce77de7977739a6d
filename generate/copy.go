package generate

import (
	"errors"
	"os"
	"path/filepath"

	"grebe/catalog/history"
)

// Files opens the files of the versions and of the activations, as they are at one moment. The caller MUST close each.
func (k *Keeper) Files() ([]history.File, error) {
	k.build.Lock() // no version is activated and none begins
	defer k.build.Unlock()
	files, err := k.history.Files()
	if err != nil || k.dir == "" {
		return files, err
	}
	for _, name := range []string{k.pinFile(), k.pinCopy()} {
		f, err := os.Open(name)
		if missing(err) {
			continue
		}
		if err != nil {
			return nil, errors.Join(err, history.CloseFiles(files))
		}
		st, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close(), history.CloseFiles(files))
		}
		files = append(files, history.File{File: f, Name: filepath.Base(name), Size: st.Size()})
	}
	return files, nil
}

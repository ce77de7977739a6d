package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// loadedFiles remembers which catalog files were loaded into the data folder, so that a restart does
// not undo what was changed or deleted since. A file that changed is loaded again.
type loadedFiles struct{ path string }

// fileState tells whether a file is still the one that was loaded.
type fileState struct {
	Size    int64     `json:"size"`
	ModTime time.Time `json:"mod_time"`
}

// once loads the file called name, if there is a name, unless it was loaded before as it is now.
func (l *loadedFiles) once(name string, load func(path string) (int, error)) error {
	if name == "" {
		return nil
	}
	known, err := l.read()
	if err != nil {
		return err
	}
	full, err := filepath.Abs(name)
	if err != nil {
		return err
	}
	info, err := os.Stat(full)
	if err != nil {
		return err
	}
	state := fileState{info.Size(), info.ModTime().UTC()}
	if known[full] == state {
		return nil
	}
	if _, err := load(name); err != nil {
		return err
	}
	known[full] = state
	return l.write(known)
}

func (l *loadedFiles) read() (map[string]fileState, error) {
	known := map[string]fileState{}
	data, err := os.ReadFile(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return known, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(data, &known); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w; remove it to load the catalog's files again", l.path, err)
	}
	return known, nil
}

// write replaces the file whole: a crash leaves the old or the new one.
func (l *loadedFiles) write(known map[string]fileState) error {
	data, err := json.MarshalIndent(known, "", "  ")
	if err != nil {
		return err
	}
	part := l.path + ".part"
	if err := os.WriteFile(part, data, 0o600); err != nil {
		return err
	}
	return os.Rename(part, l.path)
}

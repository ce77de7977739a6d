package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// importState says how far the import of a file into a target is: everything before Offset is
// durable. It is kept in a file named after both, so that a file that changed begins anew. It may lag
// behind: lines that are imported again change nothing.
type importState struct {
	Offset int64 `json:"offset"`
	Line   int64 `json:"line"` // lines before Offset
	counts
	name  string
	saved time.Time
	at    int64 // Offset when saved
}

func loadImportState(dir string, src *source, target string) (*importState, error) {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %d %s %s %s", src.size, src.mtime, src.head, src.kind, target))
	s := &importState{name: filepath.Join(dir, hex.EncodeToString(sum[:16])+".json"), saved: time.Now()}
	data, err := os.ReadFile(s.name)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	// One that cannot be read, for instance after a power failure, begins anew.
	if json.Unmarshal(data, s) != nil || s.Offset < 0 || s.Offset > src.size || s.Line < 0 {
		s.begin()
	}
	s.at = s.Offset
	return s, nil
}

// begin forgets what was done.
func (s *importState) begin() { *s = importState{name: s.name, saved: s.saved} }

// saveSometimes saves twice a second, or every few megabytes where that comes first.
func (s *importState) saveSometimes() error {
	if time.Since(s.saved) < 500*time.Millisecond && s.Offset-s.at < 4<<20 {
		return nil
	}
	return s.save()
}

func (s *importState) save() error {
	s.saved, s.at = time.Now(), s.Offset
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(s.name), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(s.name+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(s.name+".new", s.name)
}

func (s *importState) remove() error {
	if err := os.Remove(s.name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

package ingest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"grebe/internal/durable"
)

// importState records the progress of importing a file into a catalog: everything before Offset is durable. It is
// stored in a file named after both. It applies only if the file still begins with the bytes that were imported. It may
// lag behind, because importing a line again changes nothing.
type importState struct {
	Offset int64  `json:"offset"` // in the decompressed file; of Parquet: rows
	Line   int64  `json:"line"`   // lines or rows before Offset
	Digest string `json:"digest"` // SHA-256 of the bytes before Offset, of Parquet of all; "" in memory: to be computed
	Import string `json:"import"` // id of the import that it belongs to
	counts
	name  string
	saved time.Time
	at    int64 // Offset at the last save
	read  int64 // bytes of the file that were read
}

// loadImportState reads the state of importing a file into a catalog. target is the catalog's id.
func loadImportState(dir string, src *source, target string) (*importState, error) {
	full, err := filepath.Abs(src.path)
	if err != nil {
		return nil, err
	}
	name := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s", full+src.query+src.shape, src.kind, target))
	s := &importState{name: filepath.Join(dir, hex.EncodeToString(name[:16])+".json"), saved: time.Now()}
	data, err := os.ReadFile(s.name)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil { // the process before may have been killed before it did
		err = durable.SyncDir(dir)
	}
	if err != nil {
		return nil, err
	}
	// A state that cannot be read, for instance after a power failure, begins anew.
	if json.Unmarshal(data, s) != nil || s.Offset < 0 || s.Line < 0 {
		s.begin()
		return s, nil
	}
	sum, err := src.prefixSum(s.Offset)
	if err != nil {
		return nil, err
	}
	if hex.EncodeToString(sum.Sum(nil)) != s.Digest { // another file, or one that changed before Offset
		s.begin()
	}
	s.at = s.Offset
	return s, nil
}

// begin resets the state.
func (s *importState) begin() { *s = importState{name: s.name, saved: s.saved} }

// saveSometimes saves twice a second, or every few megabytes if that is sooner.
func (s *importState) saveSometimes(src *source) error {
	if time.Since(s.saved) < 500*time.Millisecond && s.Offset-s.at < 4<<20 {
		return nil
	}
	return s.save(src)
}

func (s *importState) save(src *source) error {
	s.saved, s.at = time.Now(), s.Offset
	if s.Digest == "" {
		sum, err := src.prefixSum(s.Offset)
		if err != nil {
			return err
		}
		s.Digest = hex.EncodeToString(sum.Sum(nil))
	}
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := durable.MkdirAll(filepath.Dir(s.name)); err != nil {
		return err
	}
	return durable.WriteFile(s.name, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// remove ends the import, durably: a state that came back would make the next import of the file skip lines.
func (s *importState) remove() error { return durable.Remove(s.name) }

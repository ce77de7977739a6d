package app

import (
	"cmp"
	"crypto/sha256"
	le "encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"grebe/catalog"
	"grebe/catalog/history"
)

// loadedFiles records which catalog files were loaded into the data folder, and their lines. A file with the same
// content is not loaded again, even if its modification time differs. Of a file that changed, only the changed lines
// are loaded, so other changes to the catalog (puts, appends, deletions) stay. Deleted users are not brought back.
//
//	catalog.loaded.json                 {"format": 2, "files": {PATH: {"digest": SHA-256 of the content}}}
//	catalog.loaded-HASH.lines           "grebeLL1" · digest of the content (32) · {id, line}… · CRC-32C (4)
//
// If one of the two is damaged or missing, the other is enough. Without the lines, a file that changed adds only ids
// that the catalog lacks.
//
// id and line are the first 8 bytes of the SHA-256 of a line's id and of the line, sorted. HASH is of the path.
type loadedFiles struct {
	path    string
	log     *slog.Logger
	damaged bool // the list was damaged: the loaded files are unknown
	// other members of a cluster may have loaded the files: what is new here adds only ids that the catalog lacks
	shared bool
}

// fileState identifies the content that was loaded.
type fileState struct {
	Digest string `json:"digest"`
	// Earlier format, without a digest.
	Size    int64     `json:"size,omitempty"`
	ModTime time.Time `json:"mod_time,omitzero"`
}

type loadedList struct {
	Format int                  `json:"format"`
	Files  map[string]fileState `json:"files"`
}

const (
	loadedFormat = 2
	linesMagic   = "grebeLL1"
)

// lineSum identifies a line of a file that was loaded.
type lineSum struct{ id, line uint64 }

func sum8(b []byte) uint64 {
	s := sha256.Sum256(b)
	return le.LittleEndian.Uint64(s[:])
}

// once loads the named file unless its content is the one that was loaded before. An empty name loads nothing. load
// loads the lines that a filter passes. there reports whether the catalog has an id, and whether it was deleted and
// must not come back.
func (l *loadedFiles) once(name string, there func(id string) (has, deleted bool, err error),
	load func(path string, filter catalog.Filter) (int, error)) error {
	if name == "" {
		return nil
	}
	full, err := filepath.Abs(name)
	if err != nil {
		return err
	}
	digest, info, err := digestFile(full)
	if err != nil {
		return err
	}
	known, err := l.read()
	if err != nil {
		return err
	}
	state, before := known[full]
	f := &lineFilter{there: there, before: before || l.damaged || l.shared}
	was, lines, err := l.readLines(full)
	switch {
	case err == nil:
		state, before, f.lines = fileState{Digest: was}, true, lines
	case before && state.Digest != "" || !errors.Is(err, fs.ErrNotExist):
		f.before = true
		l.log.Warn("the record of a loaded catalog file is unusable: only ids that the catalog lacks are added", "file", full,
			"error", err)
	}
	if state.Digest == digest {
		return nil
	}
	same := before && state.Digest == "" && state.Size == info.Size() && state.ModTime.Equal(info.ModTime())
	f.none = same // loaded by an earlier version, and unchanged since
	n, err := load(name, f.wants)
	if err != nil {
		return err
	}
	if f.deleted > 0 {
		l.log.Warn("a catalog file has items or users that were deleted: they are skipped until they are put again",
			"file", full, "lines", f.deleted)
	}
	if f.replaced > 0 {
		l.log.Warn("a catalog file that is loaded for the first time replaces items or users, with their events",
			"file", full, "lines", f.replaced)
	}
	if before && !same {
		l.log.Info("a catalog file has changed", "file", full, "lines_loaded", n, "lines", len(f.now))
	}
	if err := l.writeLines(full, digest, f.now); err != nil {
		return err
	}
	known[full] = fileState{Digest: digest}
	return l.write(known)
}

// lineFilter selects the lines to load, and collects the sums of all.
type lineFilter struct {
	there   func(id string) (has, deleted bool, err error)
	before  bool      // the file was loaded before
	none    bool      // it has not changed since
	lines   []lineSum // as loaded before, sorted; nil: unknown
	now     []lineSum
	deleted int // lines left out
	// lines of a file that was never loaded, whose items or users somebody else put
	replaced int
}

func (f *lineFilter) wants(id string, line []byte) (bool, error) {
	s := lineSum{sum8([]byte(id)), sum8(line)}
	f.now = append(f.now, s)
	if f.none {
		return false, nil
	}
	if f.lines != nil {
		i, ok := slices.BinarySearchFunc(f.lines, s.id, func(a lineSum, id uint64) int { return cmp.Compare(a.id, id) })
		if ok && f.lines[i].line == s.line {
			return false, nil
		}
	}
	has, deleted, err := f.there(id)
	if err != nil {
		return false, err
	}
	if deleted {
		f.deleted++
		return false, nil
	}
	if f.lines == nil && !f.before && has {
		f.replaced++
	}
	return f.lines != nil || !f.before || !has, nil
}

func digestFile(name string) (digest string, info fs.FileInfo, err error) {
	f, err := os.Open(name)
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", nil, err
	}
	info, err = f.Stat()
	return hex.EncodeToString(sum.Sum(nil)), info, err
}

// read returns the loaded files. A list that cannot be read is reported and counts as empty.
func (l *loadedFiles) read() (known map[string]fileState, err error) {
	data, err := os.ReadFile(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]fileState{}, nil
	}
	if err != nil {
		return nil, err
	}
	var list loadedList
	if err = json.Unmarshal(data, &list); err == nil && list.Format == loadedFormat && list.Files != nil {
		return list.Files, nil
	}
	// The earlier format is the map alone.
	if before := map[string]fileState{}; json.Unmarshal(data, &before) == nil && list.Format == 0 {
		return before, nil
	}
	l.damaged = true
	l.log.Warn("the list of catalog files that were loaded is damaged: only ids that the catalog lacks are added from "+
		"them", "file", l.path, "error", err)
	return map[string]fileState{}, nil
}

func (l *loadedFiles) write(known map[string]fileState) error {
	data, err := json.MarshalIndent(loadedList{loadedFormat, known}, "", "  ")
	if err != nil {
		return err
	}
	return history.WriteFile(l.path, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

func (l *loadedFiles) linesFile(full string) string {
	sum := sha256.Sum256([]byte(full))
	return fmt.Sprintf("%s-%s.lines", l.path[:len(l.path)-len(filepath.Ext(l.path))], hex.EncodeToString(sum[:8]))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (l *loadedFiles) writeLines(full, digest string, lines []lineSum) error {
	slices.SortFunc(lines, func(a, b lineSum) int { return cmp.Compare(a.id, b.id) })
	raw, err := hex.DecodeString(digest)
	if err != nil {
		return err
	}
	b := append([]byte(linesMagic), raw...)
	for _, s := range lines {
		b = le.LittleEndian.AppendUint64(le.LittleEndian.AppendUint64(b, s.id), s.line)
	}
	b = le.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return history.WriteFile(l.linesFile(full), func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	})
}

// readLines returns the recorded digest and lines of a file.
func (l *loadedFiles) readLines(full string) (digest string, lines []lineSum, err error) {
	b, err := os.ReadFile(l.linesFile(full))
	if err != nil {
		return "", nil, err
	}
	const head = len(linesMagic) + sha256.Size
	if len(b) < head+4 || (len(b)-head-4)%16 != 0 || string(b[:len(linesMagic)]) != linesMagic {
		return "", nil, fmt.Errorf("%s is not a file of loaded lines", l.linesFile(full))
	}
	body := b[:len(b)-4]
	if le.LittleEndian.Uint32(b[len(body):]) != crc32.Checksum(body, castagnoli) {
		return "", nil, fmt.Errorf("the checksum of %s is wrong", l.linesFile(full))
	}
	lines = make([]lineSum, (len(body)-head)/16)
	for i := range lines {
		at := body[head+16*i:]
		lines[i] = lineSum{le.LittleEndian.Uint64(at), le.LittleEndian.Uint64(at[8:])}
	}
	return hex.EncodeToString(body[len(linesMagic):head]), lines, nil
}

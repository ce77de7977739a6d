// Package backup copies what a running server knows into a folder, and makes a data_dir of such a folder.
//
// A backup has the catalog's items and users, its versions and which of them are activated, the tables of embeddings
// in Pebble, and the record of loaded catalog files. All of it is of one moment: versions are opened first, and the
// catalog has at least what they have. KV is not in a backup: it can be computed again.
//
// The server writes its Contents as a stream. The client receives it into a folder beside the final one. The stream
// ends with a manifest that names each file with its length and SHA-256. The folder gets its name when all files are
// complete and synced, so a folder of that name is a whole backup. Restore reads every file once before it changes
// anything.
package backup

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"grebe/catalog"
	"grebe/catalog/history"
	"grebe/embed"
)

// Names of files in a backup. Those of versions are below versionsDir.
const (
	catalogFile  = "catalog.pairs"
	tablesFile   = "tables.pairs"
	versionsDir  = "versions"
	manifestFile = "manifest.json"
)

const (
	magic  = "grebeBK1"
	format = 1
	piece  = 1 << 20 // bytes that are read, hashed and sent together, about
)

// Manifest describes a backup.
type Manifest struct {
	Created   time.Time `json:"created"`
	Program   string    `json:"program"` // that made it
	Version   uint64    `json:"version"` // of the catalog
	Items     int       `json:"items"`
	Users     int       `json:"users"`
	Elsewhere []string  `json:"elsewhere,omitempty"` // stores that the backup does not have
	Files     []File    `json:"files"`
}

// File is a file of a backup.
type File struct {
	Name   string `json:"name"` // with slashes
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// Bytes returns the length of all files.
func (m *Manifest) Bytes() (n int64) {
	for _, f := range m.Files {
		n += f.Bytes
	}
	return n
}

// sealed is the content of manifest.json.
type sealed struct {
	Format   int             `json:"format"`
	Manifest json.RawMessage `json:"manifest"`
	SHA256   string          `json:"sha256"` // of the bytes of Manifest
}

func seal(m *Manifest) ([]byte, error) {
	body, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	return json.Marshal(sealed{format, body, sum(sha256.Sum256(body))})
}

func unseal(data []byte) (*Manifest, error) {
	var s sealed
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", manifestFile, err)
	}
	if s.Format != format {
		return nil, fmt.Errorf("the backup has format %d, and this build reads format %d", s.Format, format)
	}
	if s.SHA256 != sum(sha256.Sum256(s.Manifest)) {
		return nil, fmt.Errorf("%s: its checksum is wrong", manifestFile)
	}
	m := new(Manifest)
	if err := json.Unmarshal(s.Manifest, m); err != nil {
		return nil, fmt.Errorf("%s: %w", manifestFile, err)
	}
	return m, nil
}

func sum(b [sha256.Size]byte) string { return hex.EncodeToString(b[:]) }

// Contents is what a server can back up.
type Contents struct {
	Program   string
	Catalog   *catalog.Catalog
	Versions  func() ([]history.File, error) // nil: no versions are kept
	Tables    *embed.Tables                  // nil: none
	DataDir   string                         // has the record of loaded catalog files
	Elsewhere []string
}

// Write writes a backup of this moment to w.
func (s *Contents) Write(ctx context.Context, w io.Writer) (err error) {
	out := &stream{ctx: ctx, w: bufio.NewWriterSize(w, piece)}
	out.m = Manifest{Created: time.Now().UTC().Truncate(time.Second), Program: s.Program, Elsewhere: s.Elsewhere}
	// A version of the catalog MUST NOT be later than the catalog, so versions come first.
	loaded, err := filepath.Glob(filepath.Join(s.DataDir, loadedFiles))
	if err != nil {
		return err
	}
	var versions []history.File
	if s.Versions != nil {
		if versions, err = s.Versions(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, history.CloseFiles(versions)) }()
	}
	items, err := s.Catalog.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer items.Close()
	rows, err := s.Tables.Snapshot()
	if err != nil {
		return err
	}
	if rows != nil {
		defer func() { err = errors.Join(err, rows.Close()) }()
	}
	out.bytes([]byte(magic))
	for _, f := range versions {
		out.file(versionsDir+"/"+f.Name, io.NewSectionReader(f, 0, f.Size))
	}
	for _, name := range loaded {
		out.copyFile(name)
	}
	out.pairs(catalogFile, items.Next)
	if rows != nil {
		out.pairs(tablesFile, rows.Next)
	}
	out.m.Version, out.m.Items, out.m.Users = items.Version, items.Items, items.Users
	return out.end()
}

// stream writes files one after the other: name, pieces, an empty piece; an empty name ends it.
type stream struct {
	ctx context.Context
	w   *bufio.Writer
	m   Manifest
	err error // the first
}

func (o *stream) bytes(b []byte) {
	if o.err == nil {
		o.err = o.ctx.Err()
	}
	if o.err == nil {
		_, o.err = o.w.Write(b)
	}
}

// piece writes bytes behind their length.
func (o *stream) piece(b []byte) {
	o.bytes(binary.AppendUvarint(nil, uint64(len(b))))
	o.bytes(b)
}

// begin begins a file. Call the result with each piece, and with nil at the end.
func (o *stream) begin(name string) (add func(b []byte)) {
	h := sha256.New()
	n := int64(0)
	o.piece([]byte(name))
	return func(b []byte) {
		if o.piece(b); b == nil {
			o.m.Files = append(o.m.Files, File{name, n, hex.EncodeToString(h.Sum(nil))})
			return
		}
		h.Write(b)
		n += int64(len(b))
	}
}

func (o *stream) file(name string, r io.Reader) {
	add := o.begin(name)
	buf := make([]byte, piece)
	for o.err == nil {
		n, err := r.Read(buf)
		if n > 0 {
			add(buf[:n])
		}
		if errors.Is(err, io.EOF) {
			add(nil)
			return
		}
		if err != nil {
			o.err = err
		}
	}
}

func (o *stream) copyFile(name string) {
	data, err := os.ReadFile(name)
	if err != nil {
		o.err = errors.Join(o.err, err)
		return
	}
	add := o.begin(filepath.Base(name))
	if len(data) > 0 {
		add(data)
	}
	add(nil)
}

func (o *stream) pairs(name string, next func(most int) ([]byte, error)) {
	add := o.begin(name)
	for o.err == nil {
		pairs, err := next(piece)
		if err != nil {
			o.err = err
			return
		}
		if add(pairs); pairs == nil {
			return
		}
	}
}

// end writes the manifest and the end of the stream.
func (o *stream) end() error {
	if o.err != nil {
		return o.err
	}
	slices.SortFunc(o.m.Files, func(a, b File) int { return cmp.Compare(a.Name, b.Name) })
	data, err := seal(&o.m)
	if err != nil {
		return err
	}
	o.piece([]byte(manifestFile))
	o.piece(data)
	o.piece(nil)
	o.piece(nil)
	if o.err != nil {
		return o.err
	}
	return o.w.Flush()
}

package backup

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"grebe/catalog"
	"grebe/embed"
	"grebe/internal/datadir"
	"grebe/internal/durable"
	"grebe/internal/human"
	"grebe/internal/pebbleopen"
)

// loadedFiles matches the record of catalog files that were loaded; see package app.
const loadedFiles = "catalog.loaded*"

// partDir is the folder in a data_dir in which a restore prepares what it puts in place at the end.
const partDir = "restore.part"

// Restore makes the data_dir of a server out of a backup. It first reads the backup, and changes nothing if that is
// damaged. A data_dir that has data is refused without force; with force that data is replaced, KV included. No server
// starts on a data_dir while its restore is not complete: see datadir.Check. After an interruption call it again.
func Restore(dir, dataDir string, force bool) (*Manifest, error) {
	m, err := Verify(dir)
	if err != nil {
		return nil, err
	}
	if err := durable.MkdirAll(dataDir); err != nil {
		return nil, err
	}
	interrupted := datadir.Check(dataDir) != nil
	if has, err := occupied(dataDir); err != nil || has != "" && !force && !interrupted {
		return nil, errors.Join(err, fmt.Errorf("%s has data (%s): restore into an empty folder, or replace it with --force",
			dataDir, has))
	}
	if err := durable.MkdirAll(datadir.Catalog(dataDir)); err != nil {
		return nil, err
	}
	lock, err := lockFolder(datadir.Catalog(dataDir)) // a running server has it
	if err != nil {
		return nil, fmt.Errorf("stop the server first: %w", err)
	}
	defer lock.Close()
	marker := datadir.Restoring(dataDir)
	if err := durable.WriteFile(marker, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, dir)
		return err
	}); err != nil {
		return nil, err
	}
	if err := prepare(m, dir, filepath.Join(dataDir, partDir)); err != nil {
		return nil, fmt.Errorf("backup: restore: %w", err)
	}
	if err := replace(dataDir); err != nil {
		return nil, fmt.Errorf("backup: restore: %w", err)
	}
	return m, durable.Remove(marker)
}

// occupied names something of a server in a data_dir; "": there is nothing.
func occupied(dataDir string) (string, error) {
	entries, err := os.ReadDir(dataDir)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		full := filepath.Join(dataDir, e.Name())
		if !belongs(e.Name()) {
			continue
		}
		if inside, err := os.ReadDir(full); err == nil && e.IsDir() &&
			(len(inside) == 0 || len(inside) == 1 && inside[0].Name() == lockFile) {
			continue // a restore that was refused leaves a folder with its lock
		}
		return e.Name(), nil
	}
	return "", nil
}

// belongs reports whether a name in a data_dir is a server's data.
func belongs(name string) bool {
	for _, own := range datadir.Names() {
		if ok, err := filepath.Match(own, name); ok && err == nil {
			return true
		}
	}
	return false
}

// id returns the id of the restored catalog: all nodes of a cluster that are restored from one backup have the same.
// It differs from the original's, whose later changes the restored one does not have: what others remember of those,
// such as how far an import came, does not apply to it.
func (m *Manifest) id() string {
	h := sha256.New()
	for _, f := range m.Files {
		fmt.Fprintf(h, "%s %d %s\n", f.Name, f.Bytes, f.SHA256)
	}
	return strings.ToUpper(hex.EncodeToString(h.Sum(nil)[:13]))
}

// prepare makes all folders and files of a data_dir in a folder beside them.
func prepare(m *Manifest, dir, part string) error {
	if err := durable.RemoveAll(part); err != nil {
		return err
	}
	if err := durable.MkdirAll(part); err != nil {
		return err
	}
	for _, f := range m.Files {
		from := filepath.Join(dir, filepath.FromSlash(f.Name))
		var err error
		switch f.Name {
		case catalogFile:
			err = readPairs(from, func(next func() ([]byte, error)) error {
				items, users, err := catalog.Restore(datadir.Catalog(part), m.id(), m.Version, next)
				if err == nil && (items != m.Items || users != m.Users) {
					err = fmt.Errorf("%s has %s and %s, want %d and %d", f.Name, human.Count(items, "item"),
						human.Count(users, "user"), m.Items, m.Users)
				}
				return err
			})
		case tablesFile:
			err = readPairs(from, func(next func() ([]byte, error)) error {
				return embed.RestoreFolder(datadir.Tables(part), next)
			})
		default:
			err = copyFile(from, filepath.Join(part, filepath.FromSlash(f.Name)))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func copyFile(from, to string) error {
	if err := durable.MkdirAll(filepath.Dir(to)); err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	return durable.WriteFile(to, func(w io.Writer) error {
		_, err := io.Copy(w, in)
		return err
	})
}

// readPairs opens a file of pairs and calls use with a function that returns some of them, whole, and nil at the end.
func readPairs(name string, use func(next func() ([]byte, error)) error) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, piece)
	return use(func() ([]byte, error) {
		var out, key, value []byte
		for len(out) < piece {
			key, err = readBytes(r, key)
			if errors.Is(err, io.EOF) {
				return out, nil
			}
			if err == nil {
				value, err = readBytes(r, value)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", filepath.Base(name), broken(err))
			}
			out = pebbleopen.AppendPair(out, key, value)
		}
		return out, nil
	})
}

// readBytes reads bytes behind their length. It returns io.EOF at the end alone.
func readBytes(r *bufio.Reader, buf []byte) ([]byte, error) {
	n, err := binary.ReadUvarint(r)
	if err != nil {
		return nil, err
	}
	if n > mostPiece {
		return nil, fmt.Errorf("an entry of %d bytes", n)
	}
	if uint64(cap(buf)) < n {
		buf = make([]byte, n)
	}
	if _, err := io.ReadFull(r, buf[:n]); err != nil {
		return nil, fmt.Errorf("an entry is cut off: %w", io.ErrUnexpectedEOF)
	}
	return buf[:n], nil
}

// replace puts what was prepared in the place of a data_dir's data. The catalog comes last.
func replace(dataDir string) error {
	entries, err := os.ReadDir(dataDir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if belongs(e.Name()) {
			err = errors.Join(err, durable.RemoveAll(filepath.Join(dataDir, e.Name())))
		}
	}
	if err != nil {
		return err
	}
	part := filepath.Join(dataDir, partDir)
	prepared, err := os.ReadDir(part)
	if err != nil {
		return err
	}
	isCatalog := func(e os.DirEntry) bool { return e.Name() == filepath.Base(datadir.Catalog(dataDir)) }
	if i := slices.IndexFunc(prepared, isCatalog); i >= 0 {
		prepared = append(slices.Delete(slices.Clone(prepared), i, i+1), prepared[i])
	}
	for _, e := range prepared {
		if err := durable.Rename(filepath.Join(part, e.Name()), filepath.Join(dataDir, e.Name())); err != nil {
			return err
		}
	}
	return errors.Join(durable.SyncDir(dataDir), durable.RemoveAll(part))
}

package backup

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"grebe/internal/durable"
)

// ErrIncomplete reports a folder that is not a whole backup.
var ErrIncomplete = errors.New("not a complete backup")

// PartSuffix ends the name of a backup that is being received.
const PartSuffix = ".part"

const (
	lockFile  = "LOCK"
	mostPiece = 1 << 30 // bytes of one item or user with its key, and some more
	mostName  = 255
)

// names are the files that a backup may have.
var names = regexp.MustCompile(`^(versions/)?[a-zA-Z0-9][a-zA-Z0-9.-]*$`)

// Receive makes a backup of what Contents.Write wrote, in a folder that must not exist. Until all of it is durable the
// folder has the suffix PartSuffix. What an interrupted call left there is removed.
func Receive(r io.Reader, dir string) (*Manifest, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := Free(dir); err != nil {
		return nil, err
	}
	part := dir + PartSuffix
	if err := durable.MkdirAll(part); err != nil {
		return nil, err
	}
	lock, err := lockFolder(part)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if err := empty(part); err != nil {
		return nil, err
	}
	m, err := receive(bufio.NewReaderSize(r, piece), part)
	if err != nil {
		return nil, fmt.Errorf("backup: %w (the folder %s is incomplete)", err, part)
	}
	if err := durable.Rename(part, dir); err != nil {
		return nil, err
	}
	if err := durable.SyncDir(filepath.Dir(dir)); err != nil {
		return nil, err
	}
	return m, durable.Remove(filepath.Join(dir, lockFile))
}

// Free returns an error if a backup cannot get this name, because something has it.
func Free(dir string) error {
	_, err := os.Lstat(dir)
	switch {
	case err == nil:
		return fmt.Errorf("%s exists: a backup is never written over another file or folder", dir)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return err
}

func lockFolder(dir string) (io.Closer, error) {
	lock, err := pebble.LockDirectory(dir, vfs.Default)
	if err != nil {
		return nil, fmt.Errorf("%s is in use by another process: %w", dir, err)
	}
	return lock, nil
}

// empty removes everything in a folder but the lock.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if e.Name() != lockFile {
			err = errors.Join(err, durable.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

// receive writes the files of a stream into a folder and compares them with the manifest, which it writes last.
func receive(r *bufio.Reader, dir string) (*Manifest, error) {
	start := make([]byte, len(magic))
	if _, err := io.ReadFull(r, start); err != nil || string(start) != magic {
		return nil, errors.Join(errors.New("this is not a backup"), err)
	}
	var got []File
	for {
		name, err := readName(r)
		if err != nil {
			return nil, err
		}
		if name == manifestFile {
			return finish(r, dir, got)
		}
		if slices.ContainsFunc(got, func(f File) bool { return f.Name == name }) || !names.MatchString(name) {
			return nil, fmt.Errorf("file %q is unexpected", name)
		}
		if strings.HasPrefix(name, versionsDir+"/") {
			if err := durable.MkdirAll(filepath.Join(dir, versionsDir)); err != nil {
				return nil, err
			}
		}
		f := File{Name: name}
		err = durable.WriteFile(filepath.Join(dir, filepath.FromSlash(name)), func(w io.Writer) error {
			h := sha256.New()
			f.Bytes, err = readPieces(r, io.MultiWriter(w, h))
			f.SHA256 = hex.EncodeToString(h.Sum(nil))
			return err
		})
		if err != nil {
			return nil, err
		}
		got = append(got, f)
	}
}

// finish compares the files with the manifest, writes it, and expects the stream's end.
func finish(r *bufio.Reader, dir string, got []File) (*Manifest, error) {
	var data strings.Builder
	if _, err := readPieces(r, &data); err != nil {
		return nil, err
	}
	if name, err := readName(r); err != nil || name != "" {
		return nil, errors.Join(errors.New("data follows the manifest, which must be last"), err)
	}
	m, err := unseal([]byte(data.String()))
	if err != nil {
		return nil, err
	}
	slices.SortFunc(got, func(a, b File) int { return cmp.Compare(a.Name, b.Name) })
	if !slices.Equal(got, m.Files) {
		return nil, errors.New("files differ from the manifest")
	}
	return m, durable.WriteFile(filepath.Join(dir, manifestFile), func(w io.Writer) error {
		_, err := io.WriteString(w, data.String())
		return err
	})
}

func broken(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("the stream broke: %w", err)
}

func readName(r *bufio.Reader) (string, error) {
	n, err := binary.ReadUvarint(r)
	if err != nil {
		return "", broken(err)
	}
	if n > mostName {
		return "", fmt.Errorf("a name of %d bytes", n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return "", broken(err)
	}
	return string(b), nil
}

// readPieces copies the pieces of a file to w.
func readPieces(r *bufio.Reader, w io.Writer) (bytes int64, err error) {
	for {
		n, err := binary.ReadUvarint(r)
		if err != nil {
			return bytes, broken(err)
		}
		if n == 0 {
			return bytes, nil
		}
		if n > mostPiece {
			return bytes, fmt.Errorf("a piece of %d bytes", n)
		}
		k, err := io.CopyN(w, r, int64(n))
		bytes += k
		if err != nil {
			return bytes, broken(err)
		}
	}
}

// Verify reads a backup and compares each file with the manifest. A folder with PartSuffix is incomplete: its command
// did not report success.
func Verify(dir string) (*Manifest, error) {
	if strings.HasSuffix(filepath.Clean(dir), PartSuffix) {
		return nil, fmt.Errorf("%s is %w: its name ends in %s. It was interrupted: make another",
			dir, ErrIncomplete, PartSuffix)
	}
	data, err := os.ReadFile(filepath.Join(dir, manifestFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is %w: it has no %s. It was interrupted: make another", dir, ErrIncomplete, manifestFile)
	}
	if err != nil {
		return nil, err
	}
	m, err := unseal(data)
	if err != nil {
		return nil, fmt.Errorf("%s is %w: %w", dir, ErrIncomplete, err)
	}
	for _, f := range m.Files {
		if !names.MatchString(f.Name) || f.Name != path.Clean(f.Name) {
			return nil, fmt.Errorf("%s is %w: file %q is unexpected", dir, ErrIncomplete, f.Name)
		}
		if err := f.check(dir); err != nil {
			return nil, fmt.Errorf("%s is %w: %w", dir, ErrIncomplete, err)
		}
	}
	if !slices.ContainsFunc(m.Files, func(f File) bool { return f.Name == catalogFile }) {
		return nil, fmt.Errorf("%s is %w: it has no %s", dir, ErrIncomplete, catalogFile)
	}
	return m, nil
}

func (f *File) check(dir string) error {
	in, err := os.Open(filepath.Join(dir, filepath.FromSlash(f.Name)))
	if err != nil {
		return err
	}
	defer in.Close()
	h := sha256.New()
	n, err := io.Copy(h, in)
	if err != nil {
		return fmt.Errorf("read %s: %w", f.Name, err)
	}
	if got := hex.EncodeToString(h.Sum(nil)); n != f.Bytes || got != f.SHA256 {
		return fmt.Errorf("%s is damaged: %d bytes with SHA-256 %s, want %d with %s", f.Name, n, got, f.Bytes, f.SHA256)
	}
	return nil
}

// Package safetensors reads and writes checkpoints in the safetensors format: one file, or shards
// named by an index.
//
// Files are memory-mapped and tensors are views of the mapping, so opening a checkpoint reads its
// headers only. Everything in them is checked before it is used: a truncated or hostile file gets one
// error that names file and tensor, and costs no more memory than its own header. A file MUST NOT be
// changed while it is open; no reader of a mapping can defend against that.
package safetensors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"grebe/compute"
	"grebe/internal/readfile"
)

// The names of a checkpoint's files in its folder.
const (
	SingleFile = "model.safetensors"
	IndexFile  = "model.safetensors.index.json"
)

// Set is the tensors of one checkpoint. Its owner MUST Close it.
type Set struct {
	tensors map[string]entry
	shards  []*shard
}

type entry struct {
	Info
	shard *shard
}

// shard is one mapped file.
type shard struct {
	path    string
	mapped  []byte
	data    []byte // the part behind the header
	tensors []Info
}

// Open opens the checkpoint of a folder: model.safetensors, or the shards of
// model.safetensors.index.json.
func Open(dir string) (*Set, error) {
	single := filepath.Join(dir, SingleFile)
	_, err := os.Stat(single)
	if err == nil {
		return OpenFile(single)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	index := filepath.Join(dir, IndexFile)
	if _, err := os.Stat(index); errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("safetensors: %s has neither %s nor %s", dir, SingleFile, IndexFile)
	}
	return openIndex(dir, index)
}

// OpenFile opens a single file.
func OpenFile(path string) (*Set, error) {
	s := &Set{tensors: map[string]entry{}}
	if err := s.add(path); err != nil {
		return nil, err
	}
	return s, nil
}

// add maps a file and takes its tensors.
func (s *Set) add(path string) error {
	sh, err := openShard(path)
	if err != nil {
		return fmt.Errorf("safetensors: %s: %w", path, err)
	}
	s.shards = append(s.shards, sh)
	for _, t := range sh.tensors {
		if old, ok := s.tensors[t.Name]; ok {
			return fmt.Errorf("safetensors: tensor %q is in both %s and %s", t.Name, old.File, path)
		}
		s.tensors[t.Name] = entry{t, sh}
	}
	if len(s.tensors) > maxTensors {
		return fmt.Errorf("safetensors: %s: the checkpoint has more than %d tensors", path, maxTensors)
	}
	return nil
}

func openShard(path string) (*shard, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	header, err := readHeader(f, st.Size())
	if err != nil {
		return nil, err
	}
	start := int64(8 + len(header))
	tensors, err := parseHeader(header, st.Size()-start)
	if err != nil {
		return nil, err
	}
	if int64(int(st.Size())) != st.Size() {
		return nil, errors.New("too large to map")
	}
	m, err := syscall.Mmap(int(f.Fd()), 0, int(st.Size()), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map: %w", err)
	}
	for i := range tensors {
		tensors[i].File = path
	}
	return &shard{path: path, mapped: m, data: m[start:], tensors: tensors}, nil
}

// readHeader returns the header's bytes: 8 bytes of length, then as many of JSON.
func readHeader(f *os.File, size int64) ([]byte, error) {
	var length [8]byte
	if size < int64(len(length)) {
		return nil, fmt.Errorf("%d bytes are too few for a header", size)
	}
	if _, err := f.ReadAt(length[:], 0); err != nil {
		return nil, fmt.Errorf("read header length: %w", err)
	}
	if readfile.IsPointer(length[:]) {
		return nil, readfile.ErrPointer
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > maxHeader {
		return nil, fmt.Errorf("header of %d bytes, at most %d are allowed", n, maxHeader)
	}
	if int64(n) > size-8 {
		return nil, fmt.Errorf("header of %d bytes in a file of %d: truncated", n, size)
	}
	header := make([]byte, n)
	if _, err := f.ReadAt(header, 8); err != nil {
		return nil, fmt.Errorf("read header: %w", err)
	}
	return header, nil
}

// Names returns the names of all tensors, sorted.
func (s *Set) Names() []string {
	names := make([]string, 0, len(s.tensors))
	for name := range s.tensors {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Lookup returns what the header says about a tensor.
func (s *Set) Lookup(name string) (Info, bool) {
	t, ok := s.tensors[name]
	return t.Info, ok
}

// Files returns the paths of the files, in the order they were opened.
func (s *Set) Files() []string {
	files := make([]string, len(s.shards))
	for i, sh := range s.shards {
		files[i] = sh.path
	}
	return files
}

// Bytes returns the size of all tensors' data.
func (s *Set) Bytes() int64 {
	var n int64
	for _, sh := range s.shards {
		n += int64(len(sh.data))
	}
	return n
}

// Tensor returns a view of a matrix or vector of F32, F16 or BF16. It is valid until Close and MUST
// NOT be written to. Its data starts where the file has it, which may be at an odd address.
func (s *Set) Tensor(name string) (compute.Tensor, error) {
	t, ok := s.tensors[name]
	if !ok {
		return compute.Tensor{}, fmt.Errorf("safetensors: no tensor %q", name)
	}
	dt, err := t.computeDType()
	if err != nil {
		return compute.Tensor{}, fmt.Errorf("safetensors: %s: tensor %q: %w", t.File, name, err)
	}
	v := compute.Tensor{DType: dt, Rows: 1, Cols: 1, Data: t.shard.data[t.begin:t.end:t.end]}
	switch len(t.Shape) {
	case 0:
	case 1:
		v.Cols = t.Shape[0]
	case 2:
		v.Rows, v.Cols = t.Shape[0], t.Shape[1]
	default:
		return compute.Tensor{}, fmt.Errorf("safetensors: %s: tensor %q: shape %v is neither a matrix nor a vector",
			t.File, name, t.Shape)
	}
	return v, nil
}

// Raw returns a view of a tensor's bytes, whatever its format.
func (s *Set) Raw(name string) ([]byte, error) {
	t, ok := s.tensors[name]
	if !ok {
		return nil, fmt.Errorf("safetensors: no tensor %q", name)
	}
	return t.shard.data[t.begin:t.end:t.end], nil
}

// Flat is Tensor for a tensor of any number of dimensions, as one row.
func (s *Set) Flat(name string) (compute.Tensor, error) {
	t, ok := s.tensors[name]
	if !ok {
		return compute.Tensor{}, fmt.Errorf("safetensors: no tensor %q", name)
	}
	dt, err := t.computeDType()
	if err != nil {
		return compute.Tensor{}, fmt.Errorf("safetensors: %s: tensor %q: %w", t.File, name, err)
	}
	data := t.shard.data[t.begin:t.end:t.end]
	return compute.Tensor{DType: dt, Rows: 1, Cols: len(data) / dt.Size(), Data: data}, nil
}

func (t *Info) computeDType() (compute.DType, error) {
	for dt, name := range dtypeNames {
		if name == t.DType {
			return compute.DType(dt), nil
		}
	}
	return 0, fmt.Errorf("dtype %s is not supported, want F32, F16 or BF16", t.DType)
}

var dtypeNames = [...]string{compute.F32: "F32", compute.BF16: "BF16", compute.F16: "F16"}

// Release gives a tensor's pages back to the system. They are read again when the tensor is used again.
func (s *Set) Release(name string) {
	if t, ok := s.tensors[name]; ok {
		start := int64(len(t.shard.mapped) - len(t.shard.data))
		release(t.shard.mapped, int(start+t.begin), int(start+t.end))
	}
}

// Close unmaps all files. No view may be used afterwards.
func (s *Set) Close() error {
	var errs []error
	for _, sh := range s.shards {
		if err := syscall.Munmap(sh.mapped); err != nil {
			errs = append(errs, fmt.Errorf("safetensors: unmap %s: %w", sh.path, err))
		}
	}
	s.shards, s.tensors = nil, nil
	return errors.Join(errs...)
}

package safetensors

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"grebe/compute"
)

// Named is a tensor to write. Data is called once, when its turn comes, and writes exactly the
// tensor's bytes, so that a checkpoint larger than memory can be produced piece by piece.
type Named struct {
	Name  string
	DType compute.DType
	Shape []int
	Data  func(w io.Writer) error
}

// Bytes wraps data that exists already as Named.Data.
func Bytes(data []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	}
}

// writtenNames are the formats that can be written; those of 8 bits are read as bytes only.
var writtenNames = [...]string{
	compute.F32: "F32", compute.BF16: "BF16", compute.F16: "F16", compute.FP8: "F8_E4M3", compute.INT8: "I8",
}

func (t *Named) size() (int64, error) {
	if int(t.DType) >= len(writtenNames) {
		return 0, fmt.Errorf("%v cannot be written", t.DType)
	}
	return dataSize(writtenNames[t.DType], t.Shape)
}

// Write writes a file with the tensors in the given order. The file appears under its name only when
// it is complete.
func Write(path string, tensors []Named) error {
	tmp := path + ".part"
	err := write(tmp, tensors)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return fmt.Errorf("safetensors: write %s: %w", path, errors.Join(err, removeIfThere(tmp)))
	}
	return nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func write(path string, tensors []Named) error {
	header, err := makeHeader(tensors)
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	_, err = w.Write(header)
	for i := 0; i < len(tensors) && err == nil; i++ {
		err = writeTensor(w, &tensors[i])
	}
	if err == nil {
		err = w.Flush()
	}
	return errors.Join(err, f.Close())
}

func writeTensor(w io.Writer, t *Named) error {
	size, err := t.size()
	if err != nil {
		return err
	}
	c := &countWriter{w: w}
	if err := t.Data(c); err != nil {
		return fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	if c.n != size {
		return fmt.Errorf("tensor %q: %d bytes of data, want %d", t.Name, c.n, size)
	}
	return nil
}

type countWriter struct {
	w io.Writer
	n int64
}

func (c *countWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// makeHeader returns length and JSON, padded so that the data starts at a multiple of 64 bytes.
func makeHeader(tensors []Named) ([]byte, error) {
	buf := bytes.NewBuffer(make([]byte, 8, 1<<12))
	buf.WriteString(`{"__metadata__":{"format":"pt"}`)
	seen := map[string]bool{"__metadata__": true}
	var at int64
	for i := range tensors {
		t := &tensors[i]
		if seen[t.Name] {
			return nil, fmt.Errorf("tensor %q occurs twice", t.Name)
		}
		seen[t.Name] = true
		size, err := t.size()
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		name, err := json.Marshal(t.Name)
		if err != nil {
			return nil, err
		}
		shape, err := json.Marshal(append([]int{}, t.Shape...))
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(buf, `,%s:{"dtype":%q,"shape":%s,"data_offsets":[%d,%d]}`,
			name, writtenNames[t.DType], shape, at, at+size)
		at += size
	}
	buf.WriteByte('}')
	for buf.Len()%64 != 0 {
		buf.WriteByte(' ')
	}
	header := buf.Bytes()
	binary.LittleEndian.PutUint64(header, uint64(len(header)-8))
	return header, nil
}

// WriteSharded writes the tensors to dir as shards of up to maxBytes of data each (one tensor at
// least), with their index.
func WriteSharded(dir string, maxBytes int64, tensors []Named) error {
	shards, total, err := split(tensors, maxBytes)
	if err != nil {
		return fmt.Errorf("safetensors: write %s: %w", dir, err)
	}
	weightMap := map[string]string{}
	for i, shard := range shards {
		file := fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(shards))
		for _, t := range shard {
			weightMap[t.Name] = file
		}
		if err := Write(filepath.Join(dir, file), shard); err != nil {
			return err
		}
	}
	index, err := json.MarshalIndent(map[string]any{
		"metadata":   map[string]any{"total_size": total},
		"weight_map": weightMap,
	}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, IndexFile), append(index, '\n'), 0o666)
}

func split(tensors []Named, maxBytes int64) (shards [][]Named, total int64, err error) {
	var room int64
	for _, t := range tensors {
		size, err := t.size()
		if err != nil {
			return nil, 0, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		if len(shards) == 0 || size > room {
			shards, room = append(shards, nil), maxBytes
		}
		last := len(shards) - 1
		shards[last] = append(shards[last], t)
		room -= size
		total += size
	}
	return shards, total, nil
}

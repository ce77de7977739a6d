package arrays

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// array is a slice of numbers and its shape.
type array struct {
	values any
	shape  []int
}

func flat[T uint8 | uint16 | int32 | int64 | float32](values []T) array {
	return array{values, []int{len(values)}}
}

// save writes arrays as dir/prefix.name.npy.
func save(dir, prefix string, arrays map[string]array) error {
	for name, a := range arrays {
		if err := a.write(filepath.Join(dir, prefix+"."+name+".npy")); err != nil {
			return fmt.Errorf("arrays: %w", err)
		}
	}
	return nil
}

// write writes NumPy's format, version 1.
func (a array) write(path string) error {
	kinds := map[string]string{"[]uint8": "|u1", "[]uint16": "<u2", "[]int32": "<i4", "[]int64": "<i8", "[]float32": "<f4"}
	kind := kinds[fmt.Sprintf("%T", a.values)]
	shape := strings.Trim(strings.ReplaceAll(fmt.Sprint(a.shape), " ", ", "), "[]")
	if len(a.shape) == 1 {
		shape += ","
	}
	header := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", kind, shape)
	const prefix = 10 // magic, version, length
	header += strings.Repeat(" ", 63-(prefix+len(header))%64) + "\n"
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	b := bufio.NewWriterSize(f, 1<<20)
	_, e1 := b.WriteString("\x93NUMPY\x01\x00")
	e2 := binary.Write(b, binary.LittleEndian, uint16(len(header)))
	_, e3 := b.WriteString(header)
	e4 := binary.Write(b, binary.LittleEndian, a.values)
	return errors.Join(e1, e2, e3, e4, b.Flush(), f.Close())
}

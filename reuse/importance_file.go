package reuse

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/url"
	"os"
	"path/filepath"

	"grebe/blend"
	"grebe/internal/durable"
	"grebe/kv"
	"grebe/plan"
)

// A file of importance has the magic, the key of what it was learned with (32 bytes), the number of tokens, their
// values as float32, and a CRC-32C of all that. Numbers are little-endian.
const importanceMagic = "grebeim1"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ImportanceFile returns the file of a model's importance.
func ImportanceFile(dataDir, model string) string {
	return filepath.Join(dataDir, "importance", url.PathEscape(model)+".importance")
}

// importanceSpace returns the key of everything that importance depends on except the prompts.
func (c *Cache) importanceSpace() plan.Key {
	return kv.KeyOf(c.leadIn.key, nil, "importance")
}

// WriteImportance writes importance to a file, atomically.
func (c *Cache) WriteImportance(file string, m *blend.Importance) error {
	space := c.importanceSpace()
	raw := append([]byte(importanceMagic), space[:]...)
	raw = binary.LittleEndian.AppendUint32(raw, uint32(len(m.Tokens())))
	raw, err := binary.Append(raw, binary.LittleEndian, m.Tokens())
	if err == nil {
		raw = binary.LittleEndian.AppendUint32(raw, crc32.Checksum(raw, castagnoli))
		err = replaceFile(file, raw)
	}
	if err != nil {
		return fmt.Errorf("reuse: write importance: %w", err)
	}
	return nil
}

func replaceFile(name string, raw []byte) error {
	if err := durable.MkdirAll(filepath.Dir(name)); err != nil {
		return err
	}
	return durable.WriteFile(name, func(w io.Writer) error {
		_, err := w.Write(raw)
		return err
	})
}

// ErrDamaged means that a file is damaged.
var ErrDamaged = errors.New("reuse: the file is damaged")

// ReadImportance reads importance from a file. If there is none, the error is fs.ErrNotExist.
func (c *Cache) ReadImportance(file string) (*blend.Importance, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reuse: read importance: %w", err)
	}
	space := c.importanceSpace()
	head := len(importanceMagic) + len(space) + 4
	n := len(raw) - 4
	if n < head || string(raw[:len(importanceMagic)]) != importanceMagic ||
		crc32.Checksum(raw[:n], castagnoli) != binary.LittleEndian.Uint32(raw[n:]) ||
		uint64(n-head) != 4*uint64(binary.LittleEndian.Uint32(raw[head-4:])) {
		return nil, fmt.Errorf("%w: %s", ErrDamaged, file)
	}
	if !bytes.Equal(raw[len(importanceMagic):head-4], space[:]) {
		return nil, fmt.Errorf("%w: %s", ErrOtherModel, file)
	}
	of := make([]float32, (n-head)/4)
	if _, err := binary.Decode(raw[head:n], binary.LittleEndian, of); err != nil {
		return nil, fmt.Errorf("reuse: read importance: %w", err)
	}
	for i, v := range of {
		if !(v >= 0) { // NaN would always choose its token
			return nil, fmt.Errorf("%w: %s: token %d has %v", ErrDamaged, file, i, v)
		}
	}
	return blend.NewImportance(of), nil
}

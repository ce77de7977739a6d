package generate

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"grebe/catalog/history"
)

// Pin is an activated version of a model.
type Pin struct {
	Version uint64 `json:"version"`
	At      uint64 `json:"at"` // version of the catalog at the activation; the model sees later changes of items
}

// pinsFile is the content of activated.json. See FORMAT.md of package history.
type pinsFile struct {
	Format   int             `json:"format"`
	Pins     json.RawMessage `json:"pins"`
	Checksum string          `json:"checksum"` // of the bytes of Pins
}

const pinsFormat = 2

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func pinsChecksum(pins []byte) string { return fmt.Sprintf("%08x", crc32.Checksum(pins, castagnoli)) }

func (k *Keeper) pinFile() string { return filepath.Join(k.dir, "activated.json") }

// pinCopy is a second copy of the file, in case the first is damaged.
func (k *Keeper) pinCopy() string { return filepath.Join(k.dir, "activated.copy.json") }

// readPins reads the activated versions. hurt is the damage that was repaired from the other copy. If both copies are
// damaged, err stops the start: a model would silently generate other items.
func (k *Keeper) readPins(version uint64) (hurt, err error) {
	if k.dir == "" {
		return nil, nil
	}
	pins, err := decodePins(k.pinFile(), version)
	if err == nil {
		if pins == nil { // never activated or lost; if lost, the copy has it
			copied, err := decodePins(k.pinCopy(), version)
			if err != nil || copied == nil {
				return err, nil
			}
			return errors.New("the file is missing: its copy is used"), k.writePins(copied)
		}
		k.pins = pins
		if copied, err := decodePins(k.pinCopy(), version); err != nil || copied == nil {
			return err, k.writePins(pins)
		}
		return nil, nil
	}
	if !errors.Is(err, history.ErrDamaged) {
		return nil, err
	}
	copied, second := decodePins(k.pinCopy(), version)
	if second != nil || copied == nil {
		return nil, fmt.Errorf("generate: %s and its copy are damaged: the activated version of the catalog is unknown. "+
			"Remove both files to generate the latest items, then activate the version you want: %w", k.pinFile(),
			errors.Join(err, second))
	}
	return err, k.writePins(copied)
}

// decodePins reads one copy; nil: it does not exist.
func decodePins(name string, version uint64) (map[string]Pin, error) {
	data, err := os.ReadFile(name)
	if missing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	damaged := func(err error) (map[string]Pin, error) {
		return nil, fmt.Errorf("%w: %s: %w", history.ErrDamaged, filepath.Base(name), err)
	}
	// The old format is a map of numbers without a checksum.
	before := map[string]uint64{}
	if json.Unmarshal(data, &before) == nil {
		pins := map[string]Pin{}
		for model, number := range before {
			pins[model] = Pin{Version: number, At: version}
		}
		return pins, nil
	}
	var f pinsFile
	if err := json.Unmarshal(data, &f); err != nil {
		return damaged(err)
	}
	if f.Format != pinsFormat || f.Checksum != pinsChecksum(f.Pins) {
		return damaged(fmt.Errorf("format %d with checksum %q, want %d with %q", f.Format, f.Checksum, pinsFormat,
			pinsChecksum(f.Pins)))
	}
	pins := map[string]Pin{}
	if err := json.Unmarshal(f.Pins, &pins); err != nil {
		return damaged(err)
	}
	return pins, nil
}

// Pins returns the activated versions by model.
func (k *Keeper) Pins() map[string]Pin {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := map[string]Pin{}
	for model, p := range k.pins {
		out[model] = p
	}
	return out
}

// writePins stores the activated versions durably.
func (k *Keeper) writePins(pins map[string]Pin) error {
	if k.dir != "" {
		body, err := json.Marshal(pins)
		if err != nil {
			return err
		}
		data, err := json.Marshal(pinsFile{Format: pinsFormat, Pins: body, Checksum: pinsChecksum(body)})
		if err != nil {
			return err
		}
		// Write the copy second: after a crash between the two, the file itself is valid.
		for _, name := range []string{k.pinFile(), k.pinCopy()} {
			err = errors.Join(err, history.WriteFile(name, func(w io.Writer) error {
				_, err := w.Write(append(data, '\n'))
				return err
			}))
		}
		if err != nil {
			return fmt.Errorf("generate: the activated version cannot be written: %w", err)
		}
	}
	k.mu.Lock()
	k.pins = pins
	k.mu.Unlock()
	return nil
}

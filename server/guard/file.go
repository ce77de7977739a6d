package guard

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"go.yaml.in/yaml/v3"
)

// maxFile bounds a file of keys, in bytes.
const maxFile = 1 << 20

// ReadFile reads a YAML list of keys, each with name, sha256, roles, and rate and burst if it has them.
func ReadFile(name string) ([]Key, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("guard: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("larger than %d bytes", maxFile)
	}
	if err != nil {
		return nil, fmt.Errorf("guard: read %s: %w", name, err)
	}
	keys, err := decode(data)
	if err != nil {
		return nil, fmt.Errorf("guard: %s: %w", name, err)
	}
	return keys, nil
}

// decode refuses what it does not know: a misspelled rate would be no limit.
func decode(data []byte) ([]Key, error) {
	var list []struct {
		Name   string  `yaml:"name"`
		SHA256 string  `yaml:"sha256"`
		Roles  []Role  `yaml:"roles"`
		Rate   float64 `yaml:"rate"`
		Burst  int     `yaml:"burst"`
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(&list); errors.Is(err, io.EOF) {
		return nil, errors.New("has no keys: `grebe key` makes one, and without a file everyone is let in")
	} else if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, errors.New("has no keys: `grebe key` makes one, and without a file everyone is let in")
	}
	keys := make([]Key, len(list))
	for i, k := range list {
		keys[i] = Key{Name: k.Name, SHA256: k.SHA256, Roles: k.Roles, Rate: k.Rate, Burst: k.Burst}
		if _, err := parse(&keys[i]); err != nil {
			return nil, fmt.Errorf("key %d: %w", i, err)
		}
	}
	return keys, nil
}
